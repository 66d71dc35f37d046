// A list of tensors that one launch goes through: a block has a chunk of one of them (kernels/src/launch/list.rs).
#pragma once
#include <stdint.h>

constexpr uint32_t CHUNK = 16384;

// A tensor with at least one element.
struct Entry {
  // The tensors that go together, each of `len` elements.
  void* of[5];
  uint64_t len;
  // Chunks of the tensors before it.
  uint64_t first;
  uint64_t flags;
  // The op's own.
  uint64_t number;
};

// All of the entry's tensors begin at multiples of 16 bytes.
constexpr uint64_t PACKED = 1;

// The elements of this block.
struct Chunk {
  const Entry* entry;
  size_t begin;
  uint32_t count;
  // Of the entry, as stores of a kernel would have them read anew.
  uint64_t flags, number;

  __device__ bool has(uint64_t flag) const { return flags & flag; }
  template <class T> __device__ T* of(int which) const { return static_cast<T*>(entry->of[which]) + begin; }
};

// The last tensor whose first chunk does not lie behind the block's.
__device__ inline Chunk chunk_of(const Entry* list, uint32_t tensors) {
  uint32_t low = 0;
#pragma unroll 1
  for (uint32_t step = 1u << (31 - __clz(tensors)); step > 0; step /= 2) {
    if (low + step < tensors && list[low + step].first <= blockIdx.x) low += step;
  }
  size_t begin = (blockIdx.x - list[low].first) * CHUNK, rest = list[low].len - begin;
  return {list + low, begin, uint32_t(rest < CHUNK ? rest : CHUNK), list[low].flags, list[low].number};
}
