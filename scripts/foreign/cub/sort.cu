// Device-wide sorts: radix (one tile, and onesweep with its look-back), segmented, and merge sort with a comparison.
#include <cub/cub.cuh>

#include "recorder.h"

struct ByLastDigit {
  __host__ __device__ bool operator()(unsigned a, unsigned b) const { return a % 10 < b % 10; }
};

void record_all() {
  using recorder::buffer;
  recorder::device_wide("radix_keys_u32_one_tile", [] {
    const int n = 1500;
    auto in = buffer<unsigned>("in", n), out = buffer<unsigned>("out", n);
    return [=](void* t, size_t& bytes) { cub::DeviceRadixSort::SortKeys(t, bytes, in, out, n); };
  });
  recorder::device_wide("radix_pairs_u32", [] {
    const int n = 20000;
    auto keys = buffer<unsigned>("keys", n), keys_out = buffer<unsigned>("keys_out", n);
    auto values = buffer<unsigned>("values", n), values_out = buffer<unsigned>("values_out", n);
    return [=](void* t, size_t& bytes) {
      cub::DeviceRadixSort::SortPairs(t, bytes, keys, keys_out, values, values_out, n, 0, 24);
    };
  });
  recorder::device_wide("radix_descending_f32", [] {
    const int n = 15000;
    auto in = buffer<float>("in", n), out = buffer<float>("out", n);
    return [=](void* t, size_t& bytes) { cub::DeviceRadixSort::SortKeysDescending(t, bytes, in, out, n); };
  });
  recorder::device_wide("radix_keys_i64", [] {
    const int n = 9000;
    auto in = buffer<long long>("in", n), out = buffer<long long>("out", n);
    return [=](void* t, size_t& bytes) { cub::DeviceRadixSort::SortKeys(t, bytes, in, out, n, 0, 40); };
  });
  recorder::device_wide("segmented_keys_u16", [] {
    const int n = 6000, segments = 7;
    auto in = buffer<unsigned short>("in", n), out = buffer<unsigned short>("out", n);
    auto offsets = buffer<int>("offsets", segments + 1);
    return [=](void* t, size_t& bytes) {
      cub::DeviceSegmentedRadixSort::SortKeys(t, bytes, in, out, n, segments, offsets, offsets + 1);
    };
  });
  recorder::device_wide("merge_pairs", [] {
    const int n = 9000;
    auto keys = buffer<unsigned>("keys", n), values = buffer<unsigned>("values", n);
    return [=](void* t, size_t& bytes) { cub::DeviceMergeSort::StableSortPairs(t, bytes, keys, values, n, ByLastDigit{}); };
  });
}
