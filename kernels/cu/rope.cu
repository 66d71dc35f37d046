// Rotary positions, in place. Contract: kernels/src/rope/mod.rs.
//
// Grid: a block a row (a token of a sequence); blockDim.x threads a head, at most one for each of its runs, by blockDim.y heads. A run is
// the pairs that a thread turns at once: in 16 bytes where `packed`, else one. Dynamic shared memory: head_size floats, the row's cosines
// and sines.
// `frequencies`: base^(-2d/D) / pi of every pair in f64, so that an angle, a position times it, is reduced exactly: quarter turns come off
// without rounding. Cosine and sine are rounded once. `positions` may be null; then tokens stand at 0, 1, 2 and so on.
// `packed`: half a head (or, interleaved, a head) is a multiple of 16 bytes, and all rows begin at multiples of 16 bytes.
#include "element.cuh"

// Cosine and sine of pi x, by Taylor's series within an eighth of a turn: 4e-13 off at most.
__device__ inline void angle_of(double x, float& cos, float& sin) {
  double quarters = rint(2.0 * x), r = (x - 0.5 * quarters) * 3.14159265358979323846, z = r * r;
  double c = 1.0 + z * (-1.0 / 2 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z * (1.0 / 479001600))))));
  double s = r * (1.0 + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800 + z * (1.0 / 6227020800)))))));
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

// The pair whose cosine and sine lie at `slot` of the table. Where a thread turns eight pairs at once, the first four of each eight come
// before all the second four, so that neighbouring threads read neighbouring 16 bytes.
__device__ inline uint32_t pair_of(uint32_t slot, uint32_t half, bool eight) {
  if (!eight) return slot;
  bool second = slot >= half / 2;
  uint32_t within = second ? slot - half / 2 : slot;
  return within / 4 * 8 + (second ? 4 : 0) + within % 4;
}

template <uint32_t P> __device__ inline Run<float, P> angles(const float* table, uint32_t half, uint32_t run) {
  if constexpr (P < 8) {
    return load<P>(table + run * P);
  } else {
    auto first = load<4>(table + run * 4), second = load<4>(table + half / 2 + run * 4);
    return {{first.of[0], first.of[1], first.of[2], first.of[3], second.of[0], second.of[1], second.of[2], second.of[3]}};
  }
}

// Calls turn(head, pair, cos, sin) for all runs of P pairs of all heads. A thread reads the cosines and sines of its runs once.
template <uint32_t P, class Turn> __device__ inline void for_runs(uint32_t heads, uint32_t half, const float* table, Turn turn) {
  uint32_t run = threadIdx.x;
#pragma unroll 1
  do {
    auto cos = angles<P>(table, half, run), sin = angles<P>(table + half, half, run);
#pragma unroll 1
    for (uint32_t head = threadIdx.y; head < heads; head += blockDim.y) turn(head, run * P, cos.of, sin.of);
  } while ((run += blockDim.x) < half / P);
}

// All heads of a row whose pairs are half a head apart.
template <class T, uint32_t N> __device__ inline void turn_halves(T* row, uint32_t heads, uint32_t half, const float* table) {
  for_runs<N>(heads, half, table, [&](uint32_t head, uint32_t pair, const float* cos, const float* sin) {
    T* at = row + size_t(head) * 2 * half + pair;
    auto first = load<N>(at), second = load<N>(at + half);
    for (uint32_t i = 0; i < N; i++) turn(first.of[i], second.of[i], cos[i], sin[i]);
    store(at, first), store(at + half, second);
  });
}

// All heads of a row whose pairs are neighbours. Accesses are of ALIGNED elements.
template <class T, uint32_t N, uint32_t ALIGNED> __device__ inline void turn_neighbours(T* row, uint32_t heads, uint32_t half, const float* table) {
  for_runs<N / 2>(heads, half, table, [&](uint32_t head, uint32_t pair, const float* cos, const float* sin) {
    T* at = row + (size_t(head) * half + pair) * 2;
    Run<T, ALIGNED> runs[N / ALIGNED];
    for (uint32_t i = 0; i < N / ALIGNED; i++) runs[i] = load<ALIGNED>(at + i * ALIGNED);
    for (uint32_t i = 0; i < N; i += 2) turn(runs[i / ALIGNED].of[i % ALIGNED], runs[(i + 1) / ALIGNED].of[(i + 1) % ALIGNED], cos[i / 2], sin[i / 2]);
    for (uint32_t i = 0; i < N / ALIGNED; i++) store(at + i * ALIGNED, runs[i]);
  });
}

template <class T>
__device__ inline void rotate(T* x, const uint32_t* positions, const double* frequencies, uint32_t tokens, uint32_t heads, uint32_t half, size_t stride,
                              uint64_t begin, float sign, bool interleaved, bool packed) {
  constexpr uint32_t N = 16 / sizeof(T);
  extern __shared__ __align__(16) float table[];
  uint64_t position = begin + (positions ? positions[blockIdx.x] : blockIdx.x % tokens);
  bool eight = N == 8 && packed && !interleaved;
  for (uint32_t slot = threadIdx.y * blockDim.x + threadIdx.x; slot < half; slot += blockDim.x * blockDim.y) {
    float c, s;
    angle_of(double(position) * frequencies[pair_of(slot, half, eight)], c, s);
    table[slot] = c, table[half + slot] = sign * s;
  }
  __syncthreads();
  T* row = x + size_t(blockIdx.x) * stride;
  if (interleaved) {
    packed ? turn_neighbours<T, N, N>(row, heads, half, table) : turn_neighbours<T, 2, 1>(row, heads, half, table);
  } else {
    packed ? turn_halves<T, N>(row, heads, half, table) : turn_halves<T, 1>(row, heads, half, table);
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
