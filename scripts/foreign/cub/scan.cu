// Device-wide scans: look-back over the tiles, which spin on each other's words.
#include <cub/cub.cuh>

#include "recorder.h"

// x -> scale * x + shift; composing two is associative and not commutative. Integers wrap, so the result is exact.
struct Affine {
  unsigned scale, shift;
};
struct Compose {
  __host__ __device__ Affine operator()(const Affine& first, const Affine& then) const {
    return {first.scale * then.scale, first.shift * then.scale + then.shift};
  }
};

// The state of a tile does not fit the one word that is published at once: CUB goes through flags and fences.
struct Wide {
  long long sum;
  int count, largest;
};
struct Merge {
  __host__ __device__ Wide operator()(const Wide& a, const Wide& b) const {
    return {a.sum + b.sum, a.count + b.count, a.largest < b.largest ? b.largest : a.largest};
  }
};

struct Larger {
  __host__ __device__ int operator()(int a, int b) const { return a < b ? b : a; }
};

void record_all() {
  using recorder::buffer;
  recorder::device_wide("inclusive_sum_i32", [] {
    const int n = 20000;
    auto in = buffer<int>("in", n), out = buffer<int>("out", n);
    return [=](void* t, size_t& bytes) { cub::DeviceScan::InclusiveSum(t, bytes, in, out, n); };
  });
  recorder::device_wide("exclusive_sum_f32", [] {
    const int n = 12345;
    auto in = buffer<float>("in", n), out = buffer<float>("out", n);
    return [=](void* t, size_t& bytes) { cub::DeviceScan::ExclusiveSum(t, bytes, in, out, n); };
  });
  recorder::device_wide("exclusive_max_i32", [] {
    const int n = 9999;
    auto in = buffer<int>("in", n), out = buffer<int>("out", n);
    return [=](void* t, size_t& bytes) { cub::DeviceScan::ExclusiveScan(t, bytes, in, out, Larger{}, -7, n); };
  });
  recorder::device_wide("inclusive_affine", [] {
    const int n = 7000;
    auto in = buffer<Affine>("in", n), out = buffer<Affine>("out", n);
    return [=](void* t, size_t& bytes) { cub::DeviceScan::InclusiveScan(t, bytes, in, out, Compose{}, n); };
  });
  recorder::device_wide("inclusive_wide", [] {
    const int n = 5000;
    auto in = buffer<Wide>("in", n), out = buffer<Wide>("out", n);
    return [=](void* t, size_t& bytes) { cub::DeviceScan::InclusiveScan(t, bytes, in, out, Merge{}, n); };
  });
  recorder::device_wide("exclusive_sum_by_key", [] {
    const int n = 8000;
    auto keys = buffer<int>("keys", n), in = buffer<int>("in", n), out = buffer<int>("out", n);
    return [=](void* t, size_t& bytes) { cub::DeviceScan::ExclusiveSumByKey(t, bytes, keys, in, out, n); };
  });
}
