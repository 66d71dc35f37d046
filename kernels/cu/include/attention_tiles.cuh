// Tiles of attention on tensor cores: rows of D 16-bit elements in shared memory, and products of them.
//
// A tile's 16-byte chunk c of row r lies at chunk c ^ (r % 8) of that row, so that the eight rows of a matrix that ldmatrix
// reads lie in different banks, and so do eight neighbouring chunks of a row that a copy writes.
#pragma once
#include "attention.cuh"
#include "mma.cuh"

constexpr uint32_t THREADS = 128, WARPS = THREADS / 32;

// The least head size that comes to a kernel of D elements; all are multiples of 8.
template <uint32_t D> constexpr uint32_t LEAST_SIZE = D == 64 ? 8 : D / 2 + 8;

template <uint32_t D> __device__ inline uint32_t place(uint32_t row, uint32_t chunk) { return row * (2 * D) + ((chunk ^ (row & 7)) << 4); }

// This lane's address for fragments at row 0, chunk 0 of a tile that begins at `tile`: of 16 x 16 elements as A, or as B where
// the tile's rows are B's depth (then transposed). Tiles begin at multiples of 128 bytes.
template <uint32_t D> __device__ inline uint32_t lane_as_a(uint32_t tile) {
  uint32_t lane = threadIdx.x % 32;
  return tile + place<D>(lane % 16, lane / 16);
}

// The same as B where the tile's rows are B's columns: two fragments of 8 columns.
template <uint32_t D> __device__ inline uint32_t lane_as_b(uint32_t tile) {
  uint32_t lane = threadIdx.x % 32;
  return tile + place<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// From there to the fragment at row `row` (a multiple of 8) and elements 16 `step` and on.
template <uint32_t D> __device__ inline uint32_t fragment(uint32_t lane, uint32_t row, uint32_t step) {
  return (lane ^ (step % 4 * 32)) + step / 4 * 128 + row * (2 * D);
}

// at + number * stride, where it stands: the compiler would make the products before a loop, and run out of registers.
__device__ inline uint64_t behind(uint64_t at, uint32_t number, uint32_t stride) {
  uint64_t to;
  asm volatile("mad.wide.u32 %0,%1,%2,%3;" : "=l"(to) : "r"(stride), "r"(number), "l"(at));
  return to;
}

// A thread's part of the copies of tiles from rows of one array to shared memory.
template <uint32_t D> struct Copier {
  static constexpr uint32_t CHUNKS = D / 8, AT_ONCE = THREADS / CHUNKS;
  // This thread's chunk of the first row that it copies.
  uint64_t from;
  // Bytes from a row to the next.
  uint32_t stride;
  uint32_t bytes;

  // Rows lie `row` elements apart and have `size` elements; what is right of them is zero in shared memory.
  template <class T> __device__ Copier(const T* rows, uint32_t row, uint32_t size) : stride(row * 2) {
    uint32_t chunk = threadIdx.x % CHUNKS;
    bytes = chunk * 8 < size ? 16 : 0;
    from = __cvta_generic_to_global(rows + size_t(first()) * row + (bytes ? chunk * 8 : 0));
  }

  __device__ static uint32_t first() { return threadIdx.x / CHUNKS; }

  // Where this thread's chunk of row `row` of a tile lies.
  __device__ static uint32_t at(uint32_t tile, uint32_t row) {
    static_assert(AT_ONCE % 4 == 0, "a thread's rows are alike");
    return (tile + place<D>(first(), threadIdx.x % CHUNKS) ^ (row & 4) << 4) + row * (2 * D);
  }

  // Goes on to the rows from `row` on.
  __device__ void start(uint32_t row) { from = behind(from, row, stride); }

  // Goes back by `ROWS` rows, and begins to copy that many.
  template <uint32_t ROWS> __device__ void copy_before(uint32_t tile) {
    uint64_t step = behind(0, AT_ONCE, stride);
#pragma unroll
    for (uint32_t i = ROWS; i > 0; i -= AT_ONCE) {
      asm volatile("sub.u64 %0,%0,%1;" : "+l"(from) : "l"(step));
      copy_16(at(tile, i - AT_ONCE), from, bytes);
    }
  }

  // The same where only `rows` of the rows are there; the others are zero.
  template <uint32_t ROWS> __device__ void copy_before(uint32_t tile, uint32_t rows) {
    asm volatile("sub.u64 %0,%0,%1;" : "+l"(from) : "l"(behind(0, ROWS, stride)));
    copy<ROWS>(tile, rows);
  }

  template <uint32_t ROWS> __device__ void copy(uint32_t tile, uint32_t rows) const {
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i += AT_ONCE) {
      bool there = first() + i < rows;
      copy_16(at(tile, i), behind(from, i, stride), there ? bytes : 0);
    }
  }
};

// sums[i][j] += rows 16 i of `a` times rows 8 j of `b`, over D: both as tiles' lanes.
template <class T, uint32_t D, uint32_t I, uint32_t J>
__device__ inline void multiply_rows(float (&sums)[I][J][4], uint32_t a, uint32_t b) {
#pragma unroll
  for (uint32_t step = 0; step < D / 16; step++) {
    uint32_t left[I][4];
#pragma unroll
    for (uint32_t i = 0; i < I; i++) ldmatrix(left[i], fragment<D>(a, 16 * i, step));
#pragma unroll
    for (uint32_t j = 0; j < J; j += 2) {
      uint32_t right[4];
      ldmatrix(right, fragment<D>(b, 8 * j, step));
#pragma unroll
      for (uint32_t i = 0; i < I; i++) {
        mma<T>(sums[i][j], left[i], right[0], right[1]);
        mma<T>(sums[i][j + 1], left[i], right[2], right[3]);
      }
    }
  }
}

// sums[i][j] += weights[i] (16 rows, 8 K columns, rounded to T) times the 8 K rows of `b`, elements 8 (`first` + j) and on.
template <class T, uint32_t D, uint32_t I, uint32_t K, uint32_t J>
__device__ inline void multiply_weights(float (&sums)[I][J][4], const float (&weights)[I][K][4], uint32_t b, uint32_t first = 0) {
#pragma unroll
  for (uint32_t k = 0; k < K; k += 2) {
    uint32_t left[I][4];
#pragma unroll
    for (uint32_t i = 0; i < I; i++) {
      left[i][0] = pack<T>(weights[i][k][0], weights[i][k][1]);
      left[i][1] = pack<T>(weights[i][k][2], weights[i][k][3]);
      left[i][2] = pack<T>(weights[i][k + 1][0], weights[i][k + 1][1]);
      left[i][3] = pack<T>(weights[i][k + 1][2], weights[i][k + 1][3]);
    }
#pragma unroll
    for (uint32_t j = 0; j < J; j += 2) {
      uint32_t right[4];
      ldmatrix_transposed(right, fragment<D>(b, 8 * k, first / 2 + j / 2));
#pragma unroll
      for (uint32_t i = 0; i < I; i++) {
        mma<T>(sums[i][j], left[i], right[0], right[1]);
        mma<T>(sums[i][j + 1], left[i], right[2], right[3]);
      }
    }
  }
}

// Calls work(i, j, c, row, column) for the elements of sums[I][J][4] of this lane, with their place in the tile.
template <uint32_t I, uint32_t J, class Work> __device__ inline void for_elements(Work work) {
  int32_t row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (uint32_t i = 0; i < I; i++) {
#pragma unroll
    for (uint32_t j = 0; j < J; j++) {
#pragma unroll
      for (uint32_t c = 0; c < 4; c++) work(i, j, c, row + int32_t(16 * i + c / 2 * 8), column + int32_t(8 * j + c % 2));
    }
  }
}

template <uint32_t I, uint32_t J> __device__ inline void clear(float (&sums)[I][J][4]) {
  for_elements<I, J>([&](uint32_t i, uint32_t j, uint32_t c, int32_t, int32_t) { sums[i][j][c] = 0.0f; });
}

// Writes the 16 I rows of a warp, from `first` on, of which `rows` are there, `size` elements of each; 16 bytes at a time by way
// of the warp's own rows of a tile at `staging`, which nobody else uses and whose contents the warp has read. Elements from
// `column` on.
template <class T, uint32_t D, uint32_t I, uint32_t J>
__device__ inline void write_rows(const float (&sums)[I][J][4], uint32_t staging, T* to, size_t stride, int32_t rows, uint32_t column, uint32_t size) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t i = 0; i < I; i++) {
#pragma unroll
    for (uint32_t j = 0; j < J; j++) {
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        uint32_t at = staging + place<D>(16 * i + 8 * half + lane / 4, j) + lane % 4 * 4;
        asm volatile("st.shared.u32 [%0],%1;" ::"r"(at), "r"(pack<T>(sums[i][j][2 * half], sums[i][j][2 * half + 1])) : "memory");
      }
    }
  }
  __syncwarp();
#pragma unroll 1
  for (uint32_t at = lane; at < 16 * I * J; at += 32) {
    uint32_t row = at / J, chunk = at % J;
    if (int32_t(row) >= rows || column + 8 * chunk >= size) continue;
    uint4 run;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(run.x), "=r"(run.y), "=r"(run.z), "=r"(run.w) : "r"(staging + place<D>(row, chunk)) : "memory");
    *reinterpret_cast<uint4*>(to + row * stride + column + 8 * chunk) = run;
  }
}

// Writes the rows as f32, or adds them to what is there.
template <uint32_t D, bool ADD, uint32_t I, uint32_t J>
__device__ inline void write_sums(const float (&sums)[I][J][4], float* to, size_t stride, int32_t rows, uint32_t column, uint32_t size) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t i = 0; i < I; i++) {
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
      int32_t row = 16 * i + 8 * half + lane / 4;
      if (row >= rows) continue;
      float* at = to + row * stride + column + lane % 4 * 2;
#pragma unroll
      for (uint32_t j = 0; j < J; j++) {
        // No head is too small for the first ones.
        if (D - 8 * J + 8 * j + 8 > LEAST_SIZE<D> && size < column + 8 * j + 8) continue;
        Run<float, 2> pair{{sums[i][j][2 * half], sums[i][j][2 * half + 1]}};
        if (ADD) {
          auto there = load<2>(at + 8 * j);
          pair.of[0] += there.of[0], pair.of[1] += there.of[1];
        }
        store(at + 8 * j, pair);
      }
    }
  }
}
