// Device-wide reductions: of everything, of segments, of runs of equal keys; and merging two sorted lists.
#include <cub/cub.cuh>
#include <cuda_bf16.h>

#include "recorder.h"

struct Product {
  __host__ __device__ unsigned operator()(unsigned a, unsigned b) const { return a * b; }
};
struct Widened {
  __host__ __device__ float operator()(float a, float b) const { return a + b; }
};
struct Square {
  __host__ __device__ float operator()(float x) const { return x * x; }
};

void record_all() {
  using recorder::buffer;
  recorder::device_wide("sum_f32", [] {
    const int n = 60000;
    auto in = buffer<float>("in", n), out = buffer<float>("out", 1);
    return [=](void* t, size_t& bytes) { cub::DeviceReduce::Sum(t, bytes, in, out, n); };
  });
  recorder::device_wide("sum_bf16_one_tile", [] {
    const int n = 900;
    auto in = buffer<__nv_bfloat16>("in", n);
    auto out = buffer<float>("out", 1);
    return [=](void* t, size_t& bytes) { cub::DeviceReduce::Reduce(t, bytes, in, out, n, Widened{}, 0.0f); };
  });
  recorder::device_wide("product_u32", [] {
    const int n = 30000;
    auto in = buffer<unsigned>("in", n), out = buffer<unsigned>("out", 1);
    return [=](void* t, size_t& bytes) { cub::DeviceReduce::Reduce(t, bytes, in, out, n, Product{}, 3u); };
  });
  recorder::device_wide("squares_f32", [] {
    const int n = 25000;
    auto in = buffer<float>("in", n), out = buffer<float>("out", 1);
    return [=](void* t, size_t& bytes) {
      cub::DeviceReduce::TransformReduce(t, bytes, in, out, n, cuda::std::plus<>{}, Square{}, 0.0f);
    };
  });
  recorder::device_wide("min_f64", [] {
    const int n = 10000;
    auto in = buffer<double>("in", n), out = buffer<double>("out", 1);
    return [=](void* t, size_t& bytes) { cub::DeviceReduce::Min(t, bytes, in, out, n); };
  });
  recorder::device_wide("arg_max_i32", [] {
    const int n = 20000;
    auto in = buffer<int>("in", n), out = buffer<int>("out", 1);
    auto place = buffer<cuda::std::int64_t>("place", 1);
    return [=](void* t, size_t& bytes) { cub::DeviceReduce::ArgMax(t, bytes, in, out, place, n); };
  });
  recorder::device_wide("sum_by_key", [] {
    const int n = 12000;
    auto keys = buffer<int>("keys", n), unique = buffer<int>("unique", n), runs = buffer<int>("runs", 1);
    auto in = buffer<int>("in", n), sums = buffer<int>("sums", n);
    return [=](void* t, size_t& bytes) {
      cub::DeviceReduce::ReduceByKey(t, bytes, keys, unique, in, sums, runs, cuda::std::plus<>{}, n);
    };
  });
  recorder::device_wide("segmented_sum_i32", [] {
    const int segments = 9;
    auto in = buffer<int>("in", 10000), out = buffer<int>("out", segments), offsets = buffer<int>("offsets", segments + 1);
    return [=](void* t, size_t& bytes) {
      cub::DeviceSegmentedReduce::Sum(t, bytes, in, out, segments, offsets, offsets + 1);
    };
  });
  recorder::device_wide("merge_keys", [] {
    const int left = 5000, right = 3333;
    auto a = buffer<int>("a", left), b = buffer<int>("b", right), out = buffer<int>("out", left + right);
    return [=](void* t, size_t& bytes) { cub::DeviceMerge::MergeKeys(t, bytes, a, left, b, right, out); };
  });
}
