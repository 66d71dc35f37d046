// The main loops of a matrix product: a block's tile of c = a b in f32. Of a and of b a block has TILE rows; K is the sums' length.
//
// K is cut into steps of a constant length, in order; where it is no multiple, the first step is the one that is filled up, with
// zeros in front. So an element's bits depend on its row of a, its row of b and K: not on the tile, its place there, or on how the
// operands lie in memory.
#pragma once
#include "mma.cuh"

// Where the elements of an operand's rows lie.
enum Layout {
  // Side by side: [rows, K].
  ALONG,
  // A row apart: [K, rows].
  ACROSS,
};

// An operand, and which of its rows the block has: from `first` on, below `end`; where `apart` is not 0 a tile's second half are
// those that lie `apart` behind the first half. Rows from `end` on are read as the last one: what comes of them is not written.
template <class T> struct Operand {
  const T* data;
  uint32_t rows, length, first, end, apart;

  template <uint32_t TILE> __device__ uint32_t row(uint32_t local) const {
    uint32_t half = apart != 0 && local >= TILE / 2;
    return min(first + local - half * (TILE / 2), end - 1) + half * apart;
  }
};

// Products by tensor cores: four warps, two by two, have a quarter of the tile each.
constexpr uint32_t THREADS = 128, STEP = 32, STAGES = 4;

// A step of an operand in shared memory, in units of eight elements. The units of a line are exchanged so that any eight that one
// access goes to lie in different banks.
template <uint32_t TILE, Layout LAYOUT> struct Step {
  static constexpr uint32_t BYTES = TILE * STEP * 2, LINE = LAYOUT == ALONG ? STEP * 2 : TILE * 2, UNITS = LINE / 16;

  __device__ static uint32_t at(uint32_t line, uint32_t unit) { return line * LINE + ((unit ^ ((LAYOUT == ALONG ? line >> 1 & 3 : line & 7))) << 4); }
};

// Brings an operand to shared memory, step by step.
template <class T, uint32_t TILE, Layout LAYOUT, bool PACKED> struct Loader;

// Where all units are aligned: rows and K are such, and the address.
template <class T, uint32_t TILE, Layout LAYOUT> struct Loader<T, TILE, LAYOUT, true> {
  using At = Step<TILE, LAYOUT>;
  static constexpr uint32_t COUNT = At::BYTES / 16 / THREADS, LINES = THREADS / At::UNITS;
  const T* from[COUNT];
  size_t stride;
  uint32_t to;

  // `pad`: zeros in front of the first step.
  __device__ Loader(const Operand<T>& operand, uint32_t pad, const void* shared) {
    uint32_t line = threadIdx.x / At::UNITS, unit = threadIdx.x % At::UNITS;
    to = shared_address(shared) + At::at(line, unit);
    stride = LAYOUT == ALONG ? STEP : size_t(STEP) * operand.rows;
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
      if constexpr (LAYOUT == ALONG) {
        from[i] = operand.data + size_t(operand.template row<TILE>(line + i * LINES)) * operand.length + unit * 8 - pad;
      } else {
        // A unit is inside or outside as a whole.
        from[i] = operand.data + (ptrdiff_t(line + i * LINES) - ptrdiff_t(pad)) * operand.rows + min(operand.first + unit * 8, operand.end - 8);
      }
    }
  }

  // A step of which the first elements are zeros.
  __device__ void next_behind(uint32_t zeros, uint32_t stage) {
    uint32_t line = threadIdx.x / At::UNITS, unit = threadIdx.x % At::UNITS;
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
      bool there = (LAYOUT == ALONG ? unit * 8 : line + i * LINES) >= zeros;
      copy_16(to + stage + i * (THREADS * 16), from[i], there ? 16 : 0);
      from[i] += stride;
    }
  }

  __device__ void next(uint32_t stage) {
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
      copy_16(to + stage + i * (THREADS * 16), from[i]);
      from[i] += stride;
    }
  }
};

// For any other operand, element by element.
template <class T, uint32_t TILE, Layout LAYOUT> struct Loader<T, TILE, LAYOUT, false> {
  using At = Step<TILE, LAYOUT>;
  Operand<T> operand;
  unsigned char* shared;
  // Of the next step, counted from where the zeros end.
  int32_t begin;

  __device__ Loader(const Operand<T>& operand, uint32_t pad, unsigned char* shared) : operand(operand), shared(shared), begin(-int32_t(pad)) {}

  __device__ void next_behind(uint32_t, uint32_t stage) { copy<true>(stage); }

  __device__ void next(uint32_t stage) { copy<false>(stage); }

  template <bool ZEROS> __device__ void copy(uint32_t stage) {
#pragma unroll 4
    for (uint32_t i = 0; i < TILE * STEP / THREADS; i++) {
      uint32_t of = threadIdx.x + i * THREADS, line = of / (At::LINE / 2), place = of % (At::LINE / 2);
      int32_t k = begin + int32_t(LAYOUT == ALONG ? place : line);
      size_t row = operand.template row<TILE>(LAYOUT == ALONG ? line : place);
      T element = ZEROS && k < 0 ? from_f32<T>(0.0f) : operand.data[LAYOUT == ALONG ? row * operand.length + k : size_t(k) * operand.rows + row];
      reinterpret_cast<T*>(shared + stage + At::at(line, place / 8))[place % 8] = element;
    }
    begin += STEP;
  }
};

// Where a lane's rows of a warp's fragments lie in a stage. An operand's fragments of 16 rows by 16 of K are four matrices of
// 8 by 8; b's are those of two products, and the matrices in the middle change places.
template <uint32_t TILE, Layout LAYOUT, bool IS_B> struct Fragments {
  static constexpr uint32_t COUNT = TILE / 32;
  uint32_t at;

  __device__ Fragments(uint32_t warp, const void* shared) {
    uint32_t lane = threadIdx.x % 32, first = lane / 8 % 2, second = lane / 16;
    uint32_t rows = IS_B ? second : first, k = IS_B ? first : second;
    if constexpr (LAYOUT == ALONG) {
      at = Step<TILE, LAYOUT>::at(warp * (TILE / 2) + rows * 8 + lane % 8, k);
    } else {
      at = Step<TILE, LAYOUT>::at(k * 8 + lane % 8, warp * (TILE / 16) + rows);
    }
    at += shared_address(shared);
  }

  // Those of half a step.
  __device__ void load(uint32_t (&to)[COUNT][4], uint32_t stage, uint32_t half) const {
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
      if constexpr (LAYOUT == ALONG) {
        ldmatrix(to[i], ((at + stage) ^ half << 5) + i * 16 * Step<TILE, LAYOUT>::LINE);
      } else {
        ldmatrix_transposed(to[i], ((at + stage) ^ i << 5) + half * 16 * Step<TILE, LAYOUT>::LINE);
      }
    }
  }
};

// A warp's quarter of the tile, as fragments of 16 by 8.
template <uint32_t TILE> using Sums = float[TILE / 32][TILE / 16][4];

template <class T, uint32_t COUNT>
__device__ inline void multiply(float (&sums)[COUNT][2 * COUNT][4], const uint32_t (&a)[COUNT][4], const uint32_t (&b)[COUNT][4]) {
#pragma unroll
  for (uint32_t i = 0; i < COUNT; i++) {
#pragma unroll
    for (uint32_t j = 0; j < 2 * COUNT; j++) mma<T>(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
  }
}

// Bytes of shared memory that product() uses: a multiple of 128 is its alignment.
template <uint32_t TILE> constexpr uint32_t PIPELINE_BYTES = STAGES * 2 * TILE * STEP * 2;

// The tile of a b. Shared memory is free again at the end.
template <class T, uint32_t TILE, Layout A, Layout B, bool PACKED>
__device__ inline void product(Sums<TILE>& sums, const Operand<T>& a, const Operand<T>& b, unsigned char* shared) {
  constexpr uint32_t STAGE = 2 * Step<TILE, A>::BYTES;
  __builtin_assume(threadIdx.x < THREADS);
  uint32_t steps = a.length / STEP + (a.length % STEP != 0), pad = steps * STEP - a.length, warp = threadIdx.x / 32;
  Loader<T, TILE, A, PACKED> load_a(a, pad, shared);
  Loader<T, TILE, B, PACKED> load_b(b, pad, shared + STAGE / 2);
  Fragments<TILE, A, false> of_a(warp / 2, shared);
  Fragments<TILE, B, true> of_b(warp % 2, shared + STAGE / 2);
  uint32_t now_a[2][TILE / 32][4], now_b[2][TILE / 32][4];
#pragma unroll 1
  for (uint32_t step = 0; step < STAGES - 1; step++) {
    uint32_t zeros = step == 0 ? pad : 0;
    if (step < steps) load_a.next_behind(zeros, step * STAGE), load_b.next_behind(zeros, step * STAGE);
    if (PACKED) copy_commit();
  }
  if (PACKED) copy_wait<STAGES - 2>();
  __syncthreads();
  of_a.load(now_a[0], 0, 0), of_b.load(now_b[0], 0, 0);
#pragma unroll 1
  for (uint32_t step = 0; step < steps; step++) {
    uint32_t stage = step % STAGES * STAGE;
    of_a.load(now_a[1], stage, 1), of_b.load(now_b[1], stage, 1);
    // Its stage was read last before the barrier of the step before this.
    uint32_t ahead = step + STAGES - 1;
    if (ahead < steps) load_a.next(ahead % STAGES * STAGE), load_b.next(ahead % STAGES * STAGE);
    if (PACKED) copy_commit();
    multiply<T>(sums, now_a[0], now_b[0]);
    if (PACKED) copy_wait<STAGES - 2>();
    __syncthreads();
    // After the last step these are of a step that is long over, or of none; nothing is made of them.
    stage = (step + 1) % STAGES * STAGE;
    of_a.load(now_a[0], stage, 0), of_b.load(now_b[0], stage, 0);
    multiply<T>(sums, now_a[1], now_b[1]);
  }
  __syncthreads();
}

// Products in f32 by the plain units: a thread has eight rows of a and eight of b, in two times four.
constexpr uint32_t F32_STEP = 8;
template <uint32_t TILE> constexpr uint32_t F32_THREADS = TILE * TILE / 64;
template <uint32_t TILE> constexpr uint32_t F32_PIPELINE_BYTES = STAGES * 2 * F32_STEP * (TILE + 4) * 4;

// A step is [K, rows] in shared memory; four floats more a line keep writes of eight lines in different banks.
template <uint32_t TILE, Layout LAYOUT> struct F32Loader {
  static constexpr uint32_t COUNT = TILE * F32_STEP / F32_THREADS<TILE>, LINE = TILE + 4;
  // How much further each of a thread's copies is.
  static constexpr uint32_t ROWS = LAYOUT == ALONG ? F32_THREADS<TILE> / F32_STEP : 0, LINES = LAYOUT == ALONG ? 0 : F32_THREADS<TILE> / TILE;
  const float* from[COUNT];
  size_t stride;
  uint32_t line, to;

  __device__ F32Loader(const Operand<float>& operand, uint32_t pad, const void* shared) {
    line = LAYOUT == ALONG ? threadIdx.x % F32_STEP : threadIdx.x / TILE;
    uint32_t row = LAYOUT == ALONG ? threadIdx.x / F32_STEP : threadIdx.x % TILE;
    to = shared_address(shared) + (line * LINE + row) * 4;
    stride = LAYOUT == ALONG ? F32_STEP : size_t(F32_STEP) * operand.rows;
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
      size_t at = operand.template row<TILE>(row + i * ROWS);
      ptrdiff_t k = ptrdiff_t(line + i * LINES) - ptrdiff_t(pad);
      from[i] = operand.data + (LAYOUT == ALONG ? ptrdiff_t(at * operand.length) + k : k * operand.rows + ptrdiff_t(at));
    }
  }

  // `pad`: how many lines of it are zeros.
  __device__ void next(uint32_t stage, uint32_t pad) {
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
      copy_4(to + stage + (i * LINES * LINE + i * ROWS) * 4, from[i], line + i * LINES < pad ? 0 : 4);
      from[i] += stride;
    }
  }
};

// The tile of a b: sums[i][j] is row tall(i) of a and tall(j) of b, see f32_row. Shared memory is free again at the end.
template <uint32_t TILE, Layout A, Layout B>
__device__ inline void f32_product(float (&sums)[8][8], const Operand<float>& a, const Operand<float>& b, unsigned char* shared) {
  __builtin_assume(threadIdx.x < F32_THREADS<TILE>);
  constexpr uint32_t LINE = TILE + 4, HALF = F32_STEP * LINE * 4, STAGE = 2 * HALF;
  uint32_t steps = a.length / F32_STEP + (a.length % F32_STEP != 0), pad = steps * F32_STEP - a.length;
  F32Loader<TILE, A> load_a(a, pad, shared);
  F32Loader<TILE, B> load_b(b, pad, shared + HALF);
  uint32_t row = threadIdx.x / (TILE / 8) * 4, column = threadIdx.x % (TILE / 8) * 4;
  for (uint32_t step = 0; step < STAGES - 1; step++) {
    if (step < steps) load_a.next(step * STAGE, step ? 0 : pad), load_b.next(step * STAGE, step ? 0 : pad);
    copy_commit();
  }
#pragma unroll 1
  for (uint32_t step = 0; step < steps; step++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    uint32_t ahead = step + STAGES - 1;
    if (ahead < steps) load_a.next(ahead % STAGES * STAGE, 0), load_b.next(ahead % STAGES * STAGE, 0);
    copy_commit();
    const float* of_a = reinterpret_cast<const float*>(shared + step % STAGES * STAGE);
    const float* of_b = reinterpret_cast<const float*>(shared + step % STAGES * STAGE + HALF);
#pragma unroll 4
    for (uint32_t k = 0; k < F32_STEP; k++) {
      Run<float, 4> x[2] = {load<4>(of_a + k * LINE + row), load<4>(of_a + k * LINE + TILE / 2 + row)};
      Run<float, 4> y[2] = {load<4>(of_b + k * LINE + column), load<4>(of_b + k * LINE + TILE / 2 + column)};
#pragma unroll
      for (uint32_t i = 0; i < 8; i++) {
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) sums[i][j] = fmaf(x[i / 4].of[i % 4], y[j / 4].of[j % 4], sums[i][j]);
      }
    }
  }
  __syncthreads();
}
