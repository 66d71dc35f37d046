// Philox 4x32-10, the numbers of kernels/src/philox (Salmon, Moraes, Dror, Shaw 2011).
#pragma once
#include <stdint.h>

// Four random words for a counter under a key, low words first.
__device__ inline uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; round++) {
    uint64_t a = uint64_t(0xd2511f53u) * counter.x, b = uint64_t(0xcd9e8d57u) * counter.z;
    counter = {uint32_t(b >> 32) ^ counter.y ^ key.x, uint32_t(b), uint32_t(a >> 32) ^ counter.w ^ key.y, uint32_t(a)};
    key.x += 0x9e3779b9u, key.y += 0xbb67ae85u;
  }
  return counter;
}
