// LayerNorm of rows, and its gradients. Contract: kernels/src/layernorm/mod.rs; launch: row_norm.cuh.
#include "row_norm.cuh"

#define ENTRIES(T)                                                                                                                          \
  extern "C" __global__ void layernorm_forward_##T(const T* x, const T* branch, T* sum, const T* w, const T* b, T* y, f32* mean, f32* rstd, \
                                                   uint32_t rows, uint32_t columns, float eps, uint32_t packed, uint32_t staged) {          \
    norm_forward<true, T>(x, branch, sum, w, b, y, mean, rstd, rows, columns, eps, packed, staged);                                         \
  }                                                                                                                                         \
  extern "C" __global__ void layernorm_backward_input_##T(const T* dy, const T* x, const T* w, const f32* mean, const f32* rstd, T* dx,     \
                                                          uint32_t rows, uint32_t columns, uint32_t add, uint32_t packed,                   \
                                                          uint32_t staged) {                                                                \
    norm_backward_input<true, T>(dy, x, w, mean, rstd, dx, rows, columns, add, packed, staged);                                             \
  }                                                                                                                                         \
  extern "C" __global__ void layernorm_backward_weight_##T(const T* dy, const T* x, const f32* mean, const f32* rstd, f32* partials,        \
                                                           uint32_t rows, uint32_t columns, uint32_t packed) {                              \
    if (packed) {                                                                                                                           \
      norm_backward_weight<true, 16 / sizeof(T)>(dy, x, mean, rstd, partials, rows, columns);                                               \
    } else {                                                                                                                                \
      norm_backward_weight<true, 1>(dy, x, mean, rstd, partials, rows, columns);                                                            \
    }                                                                                                                                       \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)

// Grid: columns by 32, 2; block 32 x PART_WARPS.
extern "C" __global__ void layernorm_add_parts(const f32* partials, uint32_t parts, uint32_t columns, f32* dw, f32* db) {
  add_parts<2>(partials, parts, columns, {dw, db});
}
