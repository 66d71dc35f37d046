// Device-wide selection, partition, run lengths, histograms, differences and element-wise work.
#include <cub/cub.cuh>

#include "recorder.h"

struct Below {
  int limit;
  __host__ __device__ bool operator()(int x) const { return x < limit; }
};
struct Scaled {
  float by;
  __host__ __device__ float operator()(float x, int y) const { return x * by + static_cast<float>(y); }
};
struct Bump {
  int* counters;
  __device__ void operator()(int i) const { atomicAdd(&counters[i % 5], i); }
};

void record_all() {
  using recorder::buffer;
  recorder::device_wide("select_if", [] {
    const int n = 15000;
    auto in = buffer<int>("in", n), out = buffer<int>("out", n), count = buffer<int>("count", 1);
    return [=](void* t, size_t& bytes) { cub::DeviceSelect::If(t, bytes, in, out, count, n, Below{40}); };
  });
  recorder::device_wide("select_flagged", [] {
    const int n = 11000;
    auto in = buffer<double>("in", n), out = buffer<double>("out", n);
    auto flags = buffer<char>("flags", n);
    auto count = buffer<int>("count", 1);
    return [=](void* t, size_t& bytes) { cub::DeviceSelect::Flagged(t, bytes, in, flags, out, count, n); };
  });
  recorder::device_wide("select_unique", [] {
    const int n = 14000;
    auto in = buffer<short>("in", n), out = buffer<short>("out", n);
    auto count = buffer<int>("count", 1);
    return [=](void* t, size_t& bytes) { cub::DeviceSelect::Unique(t, bytes, in, out, count, n); };
  });
  recorder::device_wide("unique_by_key", [] {
    const int n = 9000;
    auto keys = buffer<int>("keys", n), keys_out = buffer<int>("keys_out", n), count = buffer<int>("count", 1);
    auto values = buffer<float>("values", n), values_out = buffer<float>("values_out", n);
    return [=](void* t, size_t& bytes) {
      cub::DeviceSelect::UniqueByKey(t, bytes, keys, values, keys_out, values_out, count, n);
    };
  });
  recorder::device_wide("partition_three", [] {
    const int n = 10000;
    auto in = buffer<int>("in", n), low = buffer<int>("low", n), middle = buffer<int>("middle", n), rest = buffer<int>("rest", n);
    auto counts = buffer<int>("counts", 2);
    return [=](void* t, size_t& bytes) {
      cub::DevicePartition::If(t, bytes, in, low, middle, rest, counts, n, Below{20}, Below{70});
    };
  });
  recorder::device_wide("run_length_encode", [] {
    const int n = 16000;
    auto in = buffer<int>("in", n), values = buffer<int>("values", n), lengths = buffer<int>("lengths", n);
    auto runs = buffer<int>("runs", 1);
    return [=](void* t, size_t& bytes) { cub::DeviceRunLengthEncode::Encode(t, bytes, in, values, lengths, runs, n); };
  });
  recorder::device_wide("run_length_non_trivial", [] {
    const int n = 13000;
    auto in = buffer<int>("in", n), offsets = buffer<int>("offsets", n), lengths = buffer<int>("lengths", n);
    auto runs = buffer<int>("runs", 1);
    return [=](void* t, size_t& bytes) {
      cub::DeviceRunLengthEncode::NonTrivialRuns(t, bytes, in, offsets, lengths, runs, n);
    };
  });
  recorder::device_wide("histogram_even", [] {
    const int n = 20000, levels = 65;
    auto in = buffer<float>("in", n);
    auto bins = buffer<int>("bins", levels - 1);
    return [=](void* t, size_t& bytes) { cub::DeviceHistogram::HistogramEven(t, bytes, in, bins, levels, -8.0f, 8.0f, n); };
  });
  recorder::device_wide("histogram_u8_channels", [] {
    const int pixels = 8000, levels = 257;
    auto in = buffer<unsigned char>("in", pixels * 4);
    auto bins = buffer<int>("bins", 3 * 256);
    return [=](void* t, size_t& bytes) {
      const cuda::std::array<int*, 3> each{bins, bins + 256, bins + 512};
      const cuda::std::array<int, 3> count{levels, levels, levels}, low{0, 0, 0}, high{256, 256, 256};
      cub::DeviceHistogram::MultiHistogramEven<4, 3>(t, bytes, in, each, count, low, high, pixels);
    };
  });
  recorder::device_wide("adjacent_difference", [] {
    const int n = 7000;
    auto in = buffer<int>("in", n), out = buffer<int>("out", n);
    return [=](void* t, size_t& bytes) {
      cub::DeviceAdjacentDifference::SubtractLeftCopy(t, bytes, in, out, n, cuda::std::minus<>{});
    };
  });
  recorder::begin("transform");
  {
    const int n = 10001;
    auto x = buffer<float>("x", n), out = buffer<float>("out", n);
    auto y = buffer<int>("y", n);
    cub::DeviceTransform::Transform(cuda::std::make_tuple(x, y), out, n, Scaled{0.75f});
  }
  recorder::end();
  recorder::device_wide("for_bulk", [] {
    const int n = 5000;
    auto counters = buffer<int>("counters", 5);
    return [=](void* t, size_t& bytes) { cub::DeviceFor::Bulk(t, bytes, n, Bump{counters}); };
  });
}
