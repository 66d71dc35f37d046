// Rotary positions, in place. Contract: kernels/src/rope/mod.rs.
//
// Grid: a block a row (a token of a sequence), 128 threads. Dynamic shared memory: head_size floats, the row's cosines and sines.
// `frequencies`: base^(-2d/D) / pi of every pair in f64, so that an angle, a position times it, is reduced exactly: quarter turns come off
// without rounding. Cosine and sine are rounded once. `positions` may be null; then tokens stand at 0, 1, 2 and so on.
// `packed`: half a head (or, interleaved, a head) is a multiple of 16 bytes, and all rows begin at multiples of 16 bytes.
#include "element.cuh"

// Cosine and sine of pi x, by Taylor's series within an eighth of a turn: 4e-13 off at most.
__device__ inline void angle_of(double x, float& cos, float& sin) {
  double quarters = rint(2.0 * x), r = (x - 0.5 * quarters) * 3.14159265358979323846, z = r * r;
  double c = 1.0 + z * (-1.0 / 2 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z / 479001600.0)))));
  double s = r * (1.0 + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800 + z / 6227020800.0))))));
  int64_t quarter = int64_t(quarters);
  bool odd = quarter & 1;
  double rest = odd ? s : c, sine = odd ? c : s;
  cos = float((quarter + 1) & 2 ? -rest : rest), sin = float(quarter & 2 ? -sine : sine);
}

// (a, b) turned, each operation rounded as on the CPU.
template <class T> __device__ inline void turn(T& first, T& second, float cos, float sin) {
  float a = to_f32(first), b = to_f32(second);
  first = from_f32<T>(__fmaf_rn(a, cos, -__fmul_rn(b, sin)));
  second = from_f32<T>(__fmaf_rn(b, cos, __fmul_rn(a, sin)));
}

// All heads of a row whose pairs are half a head apart.
template <class T, uint32_t N> __device__ inline void turn_halves(T* row, uint32_t heads, uint32_t half, const float* cos, const float* sin) {
  uint32_t runs = half / N;
  for (uint32_t item = threadIdx.x; item < heads * runs; item += blockDim.x) {
    uint32_t pair = item % runs * N;
    T* at = row + size_t(item / runs) * 2 * half + pair;
    auto first = load<N>(at), second = load<N>(at + half);
    for (uint32_t i = 0; i < N; i++) turn(first.of[i], second.of[i], cos[pair + i], sin[pair + i]);
    store(at, first), store(at + half, second);
  }
}

// All heads of a row whose pairs are neighbours, run by run.
template <class T> __device__ inline void turn_neighbours(T* row, uint32_t heads, uint32_t half, const float* cos, const float* sin) {
  constexpr uint32_t N = 16 / sizeof(T);
  uint32_t runs = 2 * half / N;
  for (uint32_t item = threadIdx.x; item < heads * runs; item += blockDim.x) {
    uint32_t pair = item % runs * (N / 2);
    T* at = row + size_t(item) * N;
    auto run = load<N>(at);
    for (uint32_t i = 0; i < N / 2; i++) turn(run.of[2 * i], run.of[2 * i + 1], cos[pair + i], sin[pair + i]);
    store(at, run);
  }
}

// The same, pair by pair.
template <class T> __device__ inline void turn_pairs(T* row, uint32_t heads, uint32_t half, const float* cos, const float* sin) {
  for (uint32_t item = threadIdx.x; item < heads * half; item += blockDim.x) {
    T* at = row + size_t(item) * 2;
    turn(at[0], at[1], cos[item % half], sin[item % half]);
  }
}

template <class T>
__device__ inline void rotate(T* x, const uint32_t* positions, const double* frequencies, uint32_t tokens, uint32_t heads, uint32_t half, size_t stride,
                              uint64_t begin, float sign, bool interleaved, bool packed) {
  extern __shared__ float table[];
  float *cos = table, *sin = table + half;
  uint64_t position = begin + (positions ? positions[blockIdx.x] : blockIdx.x % tokens);
  for (uint32_t pair = threadIdx.x; pair < half; pair += blockDim.x) {
    float c, s;
    angle_of(double(position) * frequencies[pair], c, s);
    cos[pair] = c, sin[pair] = sign * s;
  }
  __syncthreads();
  T* row = x + size_t(blockIdx.x) * stride;
  constexpr uint32_t N = 16 / sizeof(T);
  if (interleaved) {
    packed ? turn_neighbours(row, heads, half, cos, sin) : turn_pairs(row, heads, half, cos, sin);
  } else {
    packed ? turn_halves<T, N>(row, heads, half, cos, sin) : turn_halves<T, 1>(row, heads, half, cos, sin);
  }
}

#define ENTRIES(T)                                                                                                                      \
  extern "C" __global__ void rope_rotate_##T(T* x, const uint32_t* positions, const double* frequencies, uint32_t tokens,               \
                                             uint32_t heads, uint32_t half, uint64_t stride, uint64_t begin, float sign,                \
                                             uint32_t interleaved, uint32_t packed) {                                                   \
    rotate<T>(x, positions, frequencies, tokens, heads, half, stride, begin, sign, interleaved, packed);                                \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
