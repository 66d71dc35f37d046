// What a program under the recorder calls beside CUB: it names a case, its buffers, and writes down what was launched.
#pragma once
#include <cstddef>

namespace recorder {

// Starts a case; the file OUT/MODULE.NAME.json is written by `end`.
void begin(const char* name);

// A device address for `bytes` bytes. Nothing lies behind it: host code may pass it on, not read it.
void* allocate(const char* name, std::size_t bytes);

void end();

template <typename T>
T* buffer(const char* name, std::size_t count) {
  return static_cast<T*>(allocate(name, count * sizeof(T)));
}

// A CUB device-wide algorithm asks for its temporary storage in a first call and works in a second.
template <typename Algorithm>
void device_wide(const char* name, Algorithm algorithm) {
  begin(name);
  auto call = algorithm();
  std::size_t bytes = 0;
  call(nullptr, bytes);
  call(allocate("temporary", bytes), bytes);
  end();
}

}  // namespace recorder
