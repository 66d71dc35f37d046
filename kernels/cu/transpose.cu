// Transposes matrices. Contract: kernels/src/transpose/mod.rs. Bound by memory.
//
// A thread turns N by N elements in registers, N being what 16 bytes hold: a row of them is an access, before and after. Eight threads of a
// warp lie along the columns and four along the rows, so that a warp reads 128 bytes of a row and writes 64 of a row, whole sectors both;
// shared memory is not needed. Grid: tiles of TILE x 8 N elements, all rows of tiles of a matrix one behind the other; 256 threads.
// `packed`: rows and columns are multiples of N, and both arrays begin at multiples of 16 bytes.
#include <stdint.h>

template <class T> struct alignas(16) Line {
  static constexpr uint32_t N = 16 / sizeof(T);
  T of[N];
};

template <class T>
__device__ inline void transpose(const T* x, T* y, uint32_t rows, uint32_t columns, bool packed) {
  constexpr uint32_t N = Line<T>::N, WARPS = 8, ALONG_COLUMNS = 8, ALONG_ROWS = 4;
  constexpr uint32_t HIGH = WARPS * ALONG_ROWS * N, WIDE = ALONG_COLUMNS * N;
  uint32_t across = (columns - 1) / WIDE + 1, down = (rows - 1) / HIGH + 1, matrix = blockIdx.x / across / down;
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t column = (blockIdx.x % across) * WIDE + lane % ALONG_COLUMNS * N;
  uint32_t row = (blockIdx.x / across % down) * HIGH + (warp * ALONG_ROWS + lane / ALONG_COLUMNS) * N;
  if (row >= rows || column >= columns) return;
  size_t begin = size_t(matrix) * rows * columns;
  x += begin + size_t(row) * columns + column, y += begin + size_t(column) * rows + row;
  if (packed) {
    Line<T> from[N];
#pragma unroll
    for (uint32_t i = 0; i < N; i++) from[i] = *reinterpret_cast<const Line<T>*>(x + size_t(i) * columns);
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
      Line<T> to;
#pragma unroll
      for (uint32_t i = 0; i < N; i++) to.of[i] = from[i].of[j];
      *reinterpret_cast<Line<T>*>(y + size_t(j) * rows) = to;
    }
    return;
  }
  uint32_t high = min(N, rows - row), wide = min(N, columns - column), at = 0;
#pragma unroll 1
  do {
    uint32_t i = at / wide, j = at % wide;
    y[size_t(j) * rows + i] = x[size_t(i) * columns + j];
  } while (++at < high * wide);
}

#define ENTRY(T, BITS)                                                                                                               \
  extern "C" __global__ void transpose_##BITS(const T* x, T* y, uint32_t rows, uint32_t columns, uint32_t packed) {                  \
    transpose<T>(x, y, rows, columns, packed);                                                                                       \
  }

ENTRY(uint16_t, 16)
ENTRY(uint32_t, 32)
