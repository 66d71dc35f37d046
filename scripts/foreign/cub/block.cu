// Block-level and warp-level algorithms, a kernel each. Every block works on its own tile.
#include <cub/block/block_shuffle.cuh>
#include <cub/cub.cuh>

#include "recorder.h"

constexpr int threads = 128, items = 7, tile = threads * items, blocks = 3;

template <cub::BlockScanAlgorithm Algorithm>
__global__ void block_scan(const int* in, int* out, int* totals) {
  using Load = cub::BlockLoad<int, threads, items, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Store = cub::BlockStore<int, threads, items, cub::BLOCK_STORE_WARP_TRANSPOSE>;
  using Scan = cub::BlockScan<int, threads, Algorithm>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Store::TempStorage store;
    typename Scan::TempStorage scan;
  } shared;
  int mine[items], total;
  Load(shared.load).Load(in + blockIdx.x * tile, mine);
  __syncthreads();
  Scan(shared.scan).InclusiveSum(mine, mine, total);
  __syncthreads();
  Store(shared.store).Store(out + blockIdx.x * tile, mine);
  if (threadIdx.x == 0) totals[blockIdx.x] = total;
}

template <cub::BlockReduceAlgorithm Algorithm>
__global__ void block_reduce(const float* in, float* out, int count) {
  using Load = cub::BlockLoad<float, threads, items, cub::BLOCK_LOAD_STRIPED>;
  using Reduce = cub::BlockReduce<float, threads, Algorithm>;
  __shared__ typename Reduce::TempStorage shared;
  float mine[items];
  const int left = count - static_cast<int>(blockIdx.x) * tile;
  Load().Load(in + blockIdx.x * tile, mine, left < tile ? left : tile, 0.0f);
  const float total = Reduce(shared).Sum(mine);
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}

__global__ void block_radix_sort(const unsigned* keys, const short* values, unsigned* keys_out, short* values_out) {
  using Sort = cub::BlockRadixSort<unsigned, threads, items, short>;
  __shared__ typename Sort::TempStorage shared;
  unsigned k[items];
  short v[items];
  cub::LoadDirectBlocked(threadIdx.x, keys + blockIdx.x * tile, k);
  cub::LoadDirectBlocked(threadIdx.x, values + blockIdx.x * tile, v);
  Sort(shared).SortBlockedToStriped(k, v);
  cub::StoreDirectStriped<threads>(threadIdx.x, keys_out + blockIdx.x * tile, k);
  cub::StoreDirectStriped<threads>(threadIdx.x, values_out + blockIdx.x * tile, v);
}

struct Above {
  __device__ bool operator()(double a, double b) const { return a > b; }
};
__global__ void block_merge_sort(const double* in, double* out) {
  using Sort = cub::BlockMergeSort<double, threads, items>;
  __shared__ typename Sort::TempStorage shared;
  double mine[items];
  cub::LoadDirectBlocked(threadIdx.x, in + blockIdx.x * tile, mine);
  Sort(shared).Sort(mine, Above{});
  cub::StoreDirectBlocked(threadIdx.x, out + blockIdx.x * tile, mine);
}

// Blocked to striped and back through one storage, then a reversal by ranks.
__global__ void block_exchange(const int* in, int* striped, int* reversed) {
  using Exchange = cub::BlockExchange<int, threads, items>;
  __shared__ typename Exchange::TempStorage shared;
  int mine[items], ranks[items];
  cub::LoadDirectBlocked(threadIdx.x, in + blockIdx.x * tile, mine);
  Exchange(shared).BlockedToStriped(mine);
  for (int i = 0; i < items; ++i) striped[blockIdx.x * tile + threadIdx.x * items + i] = mine[i];
  __syncthreads();
  Exchange(shared).StripedToBlocked(mine);
  __syncthreads();
  for (int i = 0; i < items; ++i) ranks[i] = tile - 1 - (static_cast<int>(threadIdx.x) * items + i);
  Exchange(shared).ScatterToBlocked(mine, ranks);
  cub::StoreDirectBlocked(threadIdx.x, reversed + blockIdx.x * tile, mine);
}

template <cub::BlockHistogramAlgorithm Algorithm>
__global__ void block_histogram(const unsigned char* in, unsigned* bins) {
  using Histogram = cub::BlockHistogram<unsigned char, threads, items, 256, Algorithm>;
  __shared__ typename Histogram::TempStorage shared;
  __shared__ unsigned counts[256];
  unsigned char mine[items];
  cub::LoadDirectStriped<threads>(threadIdx.x, in + blockIdx.x * tile, mine);
  Histogram(shared).Histogram(mine, counts);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += threads) bins[blockIdx.x * 256 + i] = counts[i];
}

__global__ void block_neighbours(const int* in, int* heads, int* differences, int* shifted) {
  using Discontinuity = cub::BlockDiscontinuity<int, threads>;
  using Difference = cub::BlockAdjacentDifference<int, threads>;
  using Shuffle = cub::BlockShuffle<int, threads>;
  __shared__ typename Discontinuity::TempStorage heads_shared;
  __shared__ typename Difference::TempStorage difference_shared;
  __shared__ typename Shuffle::TempStorage shuffle_shared;
  int mine[items], flags[items], apart[items], moved[items];
  cub::LoadDirectBlocked(threadIdx.x, in + blockIdx.x * tile, mine);
  Discontinuity(heads_shared).FlagHeads(flags, mine, cuda::std::not_equal_to<>{});
  Difference(difference_shared).SubtractLeft(mine, apart, cuda::std::minus<>{});
  for (int i = 0; i < items; ++i) moved[i] = mine[i];
  Shuffle(shuffle_shared).Up(mine, moved);
  if (threadIdx.x == 0) moved[0] = -1;
  cub::StoreDirectBlocked(threadIdx.x, heads + blockIdx.x * tile, flags);
  cub::StoreDirectBlocked(threadIdx.x, differences + blockIdx.x * tile, apart);
  cub::StoreDirectBlocked(threadIdx.x, shifted + blockIdx.x * tile, moved);
}

__global__ void block_run_length_decode(const int* values, const int* lengths, int* out, int room) {
  // One run a thread; the decoded items come in windows of threads * 4.
  using Decode = cub::BlockRunLengthDecode<int, threads, 1, 4>;
  __shared__ typename Decode::TempStorage shared;
  int value[1] = {values[blockIdx.x * threads + threadIdx.x]};
  int length[1] = {lengths[blockIdx.x * threads + threadIdx.x]};
  int total;
  Decode decode(shared, value, length, total);
  for (int window = 0; window < total; window += threads * 4) {
    int decoded[4];
    decode.RunLengthDecode(decoded, window);
    for (int i = 0; i < 4; ++i) {
      const int at = window + threadIdx.x * 4 + i;
      if (at < total && at < room) out[blockIdx.x * room + at] = decoded[i];
    }
  }
}

// Logical warps of 8 and 16 lanes, several a block; and a whole warp with a number of valid lanes.
__global__ void warps(const int* in, int* sums, int* scans, int* partial) {
  using Reduce = cub::WarpReduce<int, 8>;
  using Scan = cub::WarpScan<int, 16>;
  using Whole = cub::WarpReduce<int>;
  __shared__ typename Reduce::TempStorage reduce_shared[threads / 8];
  __shared__ typename Scan::TempStorage scan_shared[threads / 16];
  __shared__ typename Whole::TempStorage whole_shared[threads / 32];
  const int at = blockIdx.x * threads + threadIdx.x;
  const int mine = in[at];
  const int sum = Reduce(reduce_shared[threadIdx.x / 8]).Sum(mine);
  if (threadIdx.x % 8 == 0) sums[at / 8] = sum;
  int before;
  Scan(scan_shared[threadIdx.x / 16]).ExclusiveSum(mine, before);
  scans[at] = before;
  const int largest = Whole(whole_shared[threadIdx.x / 32]).Reduce(mine, cuda::maximum<>{}, 5 + threadIdx.x / 32);
  if (threadIdx.x % 32 == 0) partial[at / 32] = largest;
}

__global__ void warp_merge_sort(const int* in, int* out) {
  using Sort = cub::WarpMergeSort<int, 4, 16>;
  __shared__ typename Sort::TempStorage shared[threads / 16];
  int mine[4];
  const int at = (blockIdx.x * threads + threadIdx.x) * 4;
  for (int i = 0; i < 4; ++i) mine[i] = in[at + i];
  Sort(shared[threadIdx.x / 16]).Sort(mine, cuda::std::less<>{});
  for (int i = 0; i < 4; ++i) out[at + i] = mine[i];
}

template <typename Launch>
void one(const char* name, Launch launch) {
  recorder::begin(name);
  launch();
  recorder::end();
}

template <cub::BlockScanAlgorithm Algorithm>
void scan(const char* name) {
  one(name, [] {
    auto in = recorder::buffer<int>("in", blocks * tile), out = recorder::buffer<int>("out", blocks * tile);
    block_scan<Algorithm><<<blocks, threads>>>(in, out, recorder::buffer<int>("totals", blocks));
  });
}

template <cub::BlockReduceAlgorithm Algorithm>
void reduce(const char* name) {
  one(name, [] {
    const int count = blocks * tile - 100;
    auto in = recorder::buffer<float>("in", count), out = recorder::buffer<float>("out", blocks);
    block_reduce<Algorithm><<<blocks, threads>>>(in, out, count);
  });
}

template <cub::BlockHistogramAlgorithm Algorithm>
void histogram(const char* name) {
  one(name, [] {
    auto in = recorder::buffer<unsigned char>("in", blocks * tile);
    block_histogram<Algorithm><<<blocks, threads>>>(in, recorder::buffer<unsigned>("bins", blocks * 256));
  });
}

void record_all() {
  using recorder::buffer;
  const int all = blocks * tile;
  scan<cub::BLOCK_SCAN_RAKING>("scan_raking");
  scan<cub::BLOCK_SCAN_RAKING_MEMOIZE>("scan_raking_memoize");
  scan<cub::BLOCK_SCAN_WARP_SCANS>("scan_warps");
  reduce<cub::BLOCK_REDUCE_RAKING>("reduce_raking");
  reduce<cub::BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY>("reduce_commutative");
  reduce<cub::BLOCK_REDUCE_WARP_REDUCTIONS>("reduce_warps");
  histogram<cub::BLOCK_HISTO_ATOMIC>("histogram_atomic");
  histogram<cub::BLOCK_HISTO_SORT>("histogram_sort");
  one("radix_sort", [=] {
    auto keys = buffer<unsigned>("keys", all);
    auto values = buffer<short>("values", all);
    auto keys_out = buffer<unsigned>("keys_out", all);
    block_radix_sort<<<blocks, threads>>>(keys, values, keys_out, buffer<short>("values_out", all));
  });
  one("merge_sort", [=] {
    auto in = buffer<double>("in", all);
    block_merge_sort<<<blocks, threads>>>(in, buffer<double>("out", all));
  });
  one("exchange", [=] {
    auto in = buffer<int>("in", all), striped = buffer<int>("striped", all);
    block_exchange<<<blocks, threads>>>(in, striped, buffer<int>("reversed", all));
  });
  one("neighbours", [=] {
    auto in = buffer<int>("in", all), heads = buffer<int>("heads", all), apart = buffer<int>("differences", all);
    block_neighbours<<<blocks, threads>>>(in, heads, apart, buffer<int>("shifted", all));
  });
  one("run_length_decode", [=] {
    const int room = threads * 16;
    auto values = buffer<int>("values", blocks * threads), lengths = buffer<int>("lengths", blocks * threads);
    block_run_length_decode<<<blocks, threads>>>(values, lengths, buffer<int>("out", blocks * room), room);
  });
  one("warps", [=] {
    const int count = blocks * threads;
    auto in = buffer<int>("in", count), sums = buffer<int>("sums", count / 8), scans = buffer<int>("scans", count);
    warps<<<blocks, threads>>>(in, sums, scans, buffer<int>("partial", count / 32));
  });
  one("warp_merge_sort", [=] {
    auto in = buffer<int>("in", blocks * threads * 4);
    warp_merge_sort<<<blocks, threads>>>(in, buffer<int>("out", blocks * threads * 4));
  });
}
