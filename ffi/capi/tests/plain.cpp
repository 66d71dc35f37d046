// The header in C++: handles in objects, statuses as exceptions of the program's own, a kernel on the device that is named.
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

#include "warpweft.h"

namespace {

void check(ww_status status) {
  if (status != WW_OK) throw std::runtime_error(ww_last_error());
}

template <typename T, ww_status (*Free)(T *)>
struct Free_with {
  void operator()(T *handle) const { Free(handle); }
};

using Device = std::unique_ptr<ww_device, Free_with<ww_device, ww_device_close>>;
using Stream = std::unique_ptr<ww_stream, Free_with<ww_stream, ww_stream_destroy>>;
using Buffer = std::unique_ptr<ww_buffer, Free_with<ww_buffer, ww_buffer_destroy>>;

Buffer make(const ww_device *device, std::size_t count) {
  ww_buffer *buffer = nullptr;
  check(ww_buffer_create(device, WW_F32, count, &buffer));
  return Buffer(buffer);
}

float *data(const Buffer &buffer) {
  void *address = nullptr;
  check(ww_buffer_data(buffer.get(), &address));
  return static_cast<float *>(address);
}

void run(const char *name) {
  constexpr std::size_t rows = 3, columns = 4;
  ww_device *opened = nullptr;
  check(ww_device_open(name, &opened));
  Device device(opened);
  ww_stream *made = nullptr;
  check(ww_stream_create(device.get(), &made));
  Stream stream(made);
  std::vector<float> x(rows * columns), y(rows * columns);
  for (std::size_t i = 0; i < x.size(); i++) x[i] = 0.25f * static_cast<float>(i % 5);
  Buffer from = make(device.get(), x.size()), to = make(device.get(), y.size());
  check(ww_buffer_copy_from_host(stream.get(), from.get(), 0, x.data(), x.size()));
  ww_softmax_options options{};
  options.size = sizeof options;
  options.scale = 2.0f;
  check(ww_softmax_forward(stream.get(), rows, columns, &options, WW_F32, data(from), data(to)));
  check(ww_buffer_copy_to_host(stream.get(), to.get(), 0, y.data(), y.size()));
  for (std::size_t row = 0; row < rows; row++) {
    double sum = 0.0;
    for (std::size_t c = 0; c < columns; c++) sum += std::exp(2.0 * x[row * columns + c]);
    for (std::size_t c = 0; c < columns; c++)
      if (!(std::fabs(y[row * columns + c] - std::exp(2.0 * x[row * columns + c]) / sum) <= 1e-6)) throw std::runtime_error("y is wrong");
  }
  try {
    check(ww_softmax_forward(stream.get(), rows, columns, &options, WW_F64, data(from), data(to)));
    throw std::logic_error("f64 was taken");
  } catch (const std::runtime_error &) {
  }
}

}  // namespace

int main(int count, char **arguments) try {
  if (count < 2) return 2;
  run(arguments[1]);
  std::puts("plain: all checks passed");
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
