// Wrong data that only the device sees: the status word of the device (device/src/fault.rs).
#pragma once
#include <stdint.h>

// Notes that `row` of the data with this number holds `value`, which is not below `limit`, unless something is noted already.
__device__ inline void note_fault(uint64_t* word, uint64_t number, uint64_t row, uint64_t value, uint64_t limit) {
  if (atomicCAS(reinterpret_cast<unsigned long long*>(word), 0ull, static_cast<unsigned long long>(number)) == 0) {
    word[1] = row, word[2] = value, word[3] = limit;
  }
}
