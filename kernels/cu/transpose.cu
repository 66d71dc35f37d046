// Transposes matrices. Contract: kernels/src/transpose/mod.rs. Bound by memory. 256 threads a block; grid: tiles, all rows of tiles of a
// matrix one behind the other. N is how many elements 16 bytes hold.
//
// `packed` (both rows and columns are whole sectors of 32 bytes, and both arrays begin at multiples of 16 bytes): a thread turns N by N
// elements in registers; a row of them is an access, before and after. Eight threads of a warp lie along the columns and four along the
// rows, so that a warp reads 128 bytes of a row and writes 64 of a row, whole sectors both. Tiles of 32 N by 8 N elements.
//
// Else tiles of `high` by `wide` elements go through dynamic shared memory, as whoever sees all of a side has a run of neighbours before or
// after, which is moved 16 bytes at a time wherever it begins. Slots of 32 bits lie so that whole tiles of 64 by 64 make no bank conflict.
#include <stdint.h>

template <class T> struct alignas(16) Line {
  static constexpr uint32_t N = 16 / sizeof(T);
  T of[N];
};

template <class T> __device__ inline void turn(const T* x, T* y, uint32_t rows, uint32_t columns) {
  constexpr uint32_t N = Line<T>::N, WARPS = 8, ALONG_COLUMNS = 8, ALONG_ROWS = 4;
  constexpr uint32_t HIGH = WARPS * ALONG_ROWS * N, WIDE = ALONG_COLUMNS * N;
  uint32_t across = (columns - 1) / WIDE + 1, down = (rows - 1) / HIGH + 1, matrix = blockIdx.x / across / down;
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t column = (blockIdx.x % across) * WIDE + lane % ALONG_COLUMNS * N;
  uint32_t row = (blockIdx.x / across % down) * HIGH + (warp * ALONG_ROWS + lane / ALONG_COLUMNS) * N;
  if (row >= rows || column >= columns) return;
  size_t begin = size_t(matrix) * rows * columns;
  x += begin + size_t(row) * columns + column, y += begin + size_t(column) * rows + row;
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
}

// Goes through `runs` runs of `len` elements, `pitch` from one to the next: whole(at, place) for what 16 bytes hold, one(at, place) for each
// element at the ends of a run that is none of those. `place` counts elements over all runs.
template <class T, class Whole, class One> __device__ inline void for_pieces(T* x, uint32_t runs, uint32_t len, size_t pitch, Whole whole, One one) {
  constexpr uint32_t N = Line<T>::N;
  // A run that begins behind a multiple of 16 bytes has a piece more.
  uint32_t most = (len + 2 * N - 2) / N;
#pragma unroll 1
  for (uint32_t item = threadIdx.x; item < runs * most; item += blockDim.x) {
    uint32_t run = item / most;
    T* begin = x + run * pitch;
    int before = reinterpret_cast<uint64_t>(begin) / sizeof(T) % N, first = int(item % most * N) - before, end = min(first + int(N), int(len));
    first = max(first, 0);
    if (end - first == N) {
      whole(begin + first, run * len + first);
      continue;
    }
#pragma unroll 1
    for (int at = first; at < end; at++) one(begin + at, run * len + at);
  }
}

// Of an element of a tile.
template <uint32_t N> __device__ inline uint32_t slot_of(uint32_t row, uint32_t column, uint32_t wide) {
  return row * (wide + wide / N) + row / N * (N / 2) + column + column / N;
}

template <class T> __device__ inline void turn_staged(const T* x, T* y, uint32_t rows, uint32_t columns, uint32_t high, uint32_t wide) {
  constexpr uint32_t N = Line<T>::N;
  extern __shared__ uint32_t slots[];
  uint32_t across = (columns - 1) / wide + 1, down = (rows - 1) / high + 1;
  uint32_t column = blockIdx.x % across * wide, row = blockIdx.x / across % down * high;
  uint32_t own_columns = min(wide, columns - column), own_rows = min(high, rows - row), all = own_rows * own_columns;
  size_t begin = size_t(blockIdx.x / across / down) * rows * columns;
  bool whole_rows = wide == columns, whole_columns = high == rows;
  x += begin + size_t(row) * columns + column, y += begin + size_t(column) * rows + row;
  auto slot = [&](uint32_t r, uint32_t c) -> uint32_t& { return slots[slot_of<N>(r, c, wide)]; };
  auto of_row = [&](uint32_t place) -> uint32_t& { return slot(place / own_columns, place % own_columns); };
  auto of_column = [&](uint32_t place) -> uint32_t& { return slot(place % own_rows, place / own_rows); };
  for_pieces(
      x, whole_rows ? 1 : own_rows, whole_rows ? all : own_columns, columns,
      [&](const T* at, uint32_t place) {
        auto line = *reinterpret_cast<const Line<T>*>(at);
#pragma unroll
        for (uint32_t i = 0; i < N; i++) of_row(place + i) = line.of[i];
      },
      [&](const T* at, uint32_t place) { of_row(place) = *at; });
  __syncthreads();
  for_pieces(
      y, whole_columns ? 1 : own_columns, whole_columns ? all : own_rows, rows,
      [&](T* at, uint32_t place) {
        Line<T> line;
#pragma unroll
        for (uint32_t i = 0; i < N; i++) line.of[i] = T(of_column(place + i));
        *reinterpret_cast<Line<T>*>(at) = line;
      },
      [&](T* at, uint32_t place) { *at = T(of_column(place)); });
}

#define ENTRY(T, BITS)                                                                                                                      \
  extern "C" __global__ void transpose_##BITS(const T* x, T* y, uint32_t rows, uint32_t columns, uint32_t packed, uint32_t high,            \
                                              uint32_t wide) {                                                                              \
    packed ? turn(x, y, rows, columns) : turn_staged(x, y, rows, columns, high, wide);                                                      \
  }

ENTRY(uint16_t, 16)
ENTRY(uint32_t, 32)
