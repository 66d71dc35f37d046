// x + branch + bias. Contract: kernels/src/residual/mod.rs. Bound by memory.
//
// Launch: blockDim.x threads a row, blockDim.y rows a block. `bias` may be null. `packed`: columns are a multiple of what 16 bytes hold, and
// all arrays begin at multiples of 16 bytes.
#include "element.cuh"

template <class T>
__device__ inline void forward(const T* x, const T* branch, const T* bias, T* out, uint32_t rows, uint32_t columns, bool packed) {
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  size_t begin = size_t(row) * columns;
  x += begin, branch += begin, out += begin;
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(x + at), more = load<count.VALUE>(branch + at);
    auto own = run;
    if (bias) own = load<count.VALUE>(bias + at);
    for (uint32_t i = 0; i < count.VALUE; i++) {
      float value = to_f32(run.of[i]);
      if (bias) value += to_f32(own.of[i]);
      run.of[i] = from_f32<T>(value + to_f32(more.of[i]));
    }
    store(out + at, run);
  });
}

#define ENTRIES(T)                                                                                                                   \
  extern "C" __global__ void residual_forward_##T(const T* x, const T* branch, const T* bias, T* out, uint32_t rows,                 \
                                                  uint32_t columns, uint32_t packed) {                                              \
    forward<T>(x, branch, bias, out, rows, columns, packed);                                                                         \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
