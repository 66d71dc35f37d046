// Cross-entropy of rows of logits, in parts that ranks may share. Contract: kernels/src/cross_entropy/{mod,shard}.rs. Bound by memory.
//
// Launch of the row kernels: blockDim.x threads a row (32, or up to 1024 in whole warps), blockDim.y rows a block (1 unless blockDim.x is
// 32). A row has `columns` of `vocab` classes, from `first` on. `packed`: columns are a multiple of what 16 bytes hold, and all rows begin
// at multiples of 16 bytes. Sums are f32 of each thread in turn, then f64 over threads in a fixed tree.
// A target that is neither below `vocab` nor the one to ignore is noted in the status word; what depends on it is not written.
#include "element.cuh"
#include "fault.cuh"
#include "reduce.cuh"

// Of -inf alone the sum is 0, not NaN.
__device__ inline float shift_of(float max) { return max == -INFINITY ? 0.0f : max; }

// The largest logit so far, and the sum of exponentials below it.
struct Online {
  float max = -INFINITY, sum = 0.0f;

  __device__ void add(float x) {
    if (x > max) {
      sum *= expf(max - x);
      max = x;
    }
    sum += expf(x - shift_of(max));
  }
};

struct Targets {
  const uint32_t* of;
  uint32_t ignore, ignores, vocab;

  __device__ bool ignored(uint32_t target) const { return ignores && target == ignore; }
  __device__ bool outside(uint32_t target) const { return target >= vocab && !ignored(target); }
};

// A call, as few models have a cap: its code is there once.
__device__ __noinline__ float under(float x, float cap) { return cap * tanhf(x / cap); }

// Likewise, for rows alone.
__device__ __noinline__ double logarithm(double x) { return log(x); }
__device__ __noinline__ double exponential(double x) { return exp(x); }

// A logit under a cap, where there is one.
__device__ inline float capped(float x, float cap) { return cap > 0.0f ? under(x, cap) : x; }

// What a thread finds of a row's normaliser: the row's largest logit, its own share of the sum below that, and of the sum of the logits.
struct Normaliser {
  float max;
  double sum, total;
};

template <class T> __device__ inline Normaliser normalise(const T* logits, uint32_t columns, float cap, bool smooth, bool packed, float* maxima) {
  Online own;
  float total = 0.0f;
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(logits + at);
    for (uint32_t i = 0; i < count.VALUE; i++) {
      float x = capped(to_f32(run.of[i]), cap);
      own.add(x);
      if (smooth) total += x;
    }
  });
  float max = reduce_row<Max>(own.max, maxima);
  return {max, double(own.sum * expf(own.max - shift_of(max))), double(total)};
}

// parts [rows, 3]: the largest logit, the sum of exponentials below it, and the share here of what the loss takes away: the target's
// logit, or with smoothing the mean of it and all logits.
template <class T>
__device__ inline void parts_of(const T* logits, Targets targets, double* parts, uint32_t rows, uint32_t columns, uint32_t first, float smoothing, float cap,
                                bool packed, uint64_t* word, uint64_t number) {
  __shared__ float maxima[32];
  __shared__ double sums[2][32];
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  logits += size_t(row) * columns;
  Normaliser own = normalise(logits, columns, cap, smoothing > 0.0f, packed, maxima);
  double sum = sum_to_first(own.sum, sums[0]), total = smoothing > 0.0f ? sum_to_first(own.total, sums[1]) : 0.0;
  if (threadIdx.x > 0) return;
  uint32_t target = targets.of[row];
  bool outside = targets.outside(target);
  if (outside) note_fault(word, number, row, target, targets.vocab);
  // Targets below `first` wrap around to beyond the columns.
  double logit = target - first < columns ? double(capped(to_f32(logits[target - first]), cap)) : 0.0;
  if (smoothing > 0.0f) logit = (1.0 - double(smoothing)) * logit + double(smoothing) * total / targets.vocab;
  parts += size_t(row) * 3;
  // A row that is not to be used has no logits.
  parts[0] = outside ? -INFINITY : double(own.max);
  parts[1] = outside ? 0.0 : sum;
  parts[2] = outside ? 0.0 : logit;
}

// A thread a row. parts [ranks, rows, 3]; losses [rows]; nats [rows], the losses in f64; of normaliser [rows, 2] and lse [rows] one may be
// null.
__device__ inline void merge(const double* parts, Targets targets, f32* losses, double* nats, double* normaliser, f32* lse, uint32_t rows, uint32_t ranks,
                             float z_loss) {
  uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  uint32_t target = targets.of[row];
  if (targets.outside(target)) {
    nats[row] = 0.0;
    return;
  }
  double max = -INFINITY, sum = 0.0, logit = 0.0;
  // A NaN is passed over: the sum finds it. There is one rank at least.
  uint32_t rank = 0;
#pragma unroll 1
  do max = fmax(max, parts[(size_t(rank) * rows + row) * 3]);
  while (++rank < ranks);
  rank = 0;
#pragma unroll 1
  do {
    const double* part = parts + (size_t(rank) * rows + row) * 3;
    // Of -inf alone the sum is 0, not NaN.
    if (part[1] != 0.0) sum += part[1] * exponential(part[0] - max);
    logit += part[2];
  } while (++rank < ranks);
  double log_sum = logarithm(sum), whole = max + log_sum, loss = 0.0;
  if (!targets.ignored(target)) {
    loss = (max - logit) + log_sum;
    if (z_loss > 0.0f) loss += double(z_loss) * whole * whole;
  }
  nats[row] = loss;
  losses[row] = float(loss);
  if (lse) lse[row] = float(whole);
  if (normaliser) normaliser[size_t(row) * 2] = max, normaliser[size_t(row) * 2 + 1] = sum;
}

// The sum of the losses and how many rows are in it: one block, each thread rows 1024 apart, then a fixed tree.
__device__ inline void add_up(const double* nats, Targets targets, double* sum, uint32_t rows) {
  __shared__ double scratch[2][32];
  double loss = 0.0, count = 0.0;
  for (uint32_t row = threadIdx.x; row < rows; row += blockDim.x) {
    loss += nats[row];
    count += targets.ignored(targets.of[row]) ? 0.0 : 1.0;
  }
  loss = sum_to_first<32>(loss, scratch[0]);
  count = sum_to_first<32>(count, scratch[1]);
  if (threadIdx.x == 0) sum[0] = loss, sum[1] = count;
}

// From this size on the f32 rounding of a saved lse would show in the probabilities; the row is then normalised anew.
constexpr float LARGE_LSE = 16.0f;

// Logits become their gradient. Either `lse` or `normaliser` is given.
template <class T>
__device__ inline void backward(T* logits, Targets targets, const f32* lse, const double* normaliser, uint32_t rows, uint32_t columns, uint32_t first,
                                float scale, float smoothing, float z_loss, float cap, bool packed, uint64_t* word, uint64_t number) {
  __shared__ float maxima[32];
  __shared__ double sums[32];
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  uint32_t target = targets.of[row], column = target - first;
  if (targets.outside(target)) return note_fault(word, number, row, target, targets.vocab);
  logits += size_t(row) * columns;
  bool ignored = targets.ignored(target);
  double2 own = {0.0, 1.0};
  if (normaliser) {
    own = {normaliser[size_t(row) * 2], normaliser[size_t(row) * 2 + 1]};
  } else {
    own.x = lse[row];
    // All threads of the row have read what they need before any writes: the sums have a barrier.
    if (!(fabs(own.x) < LARGE_LSE) && !ignored) {
      Normaliser anew = normalise(logits, columns, cap, false, packed, maxima);
      own = {double(anew.max), reduce_row<Sum>(anew.sum, sums)};
    }
  }
  double pull = z_loss > 0.0f ? 1.0 + 2.0 * double(z_loss) * (own.x + logarithm(own.y)) : 1.0;
  float shift = float(own.x), factor = float(double(scale) * pull / own.y);
  float each = float(double(scale) * double(smoothing) / targets.vocab);
  float hit = float(double(scale) * (1.0 - double(smoothing)));
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    Run<T, count.VALUE> run;
    if (!ignored) run = load<count.VALUE>(logits + at);
    for (uint32_t i = 0; i < count.VALUE; i++) {
      float gradient = 0.0f;
      if (!ignored) {
        float x = capped(to_f32(run.of[i]), cap);
        gradient = expf(x - shift) * factor - each;
        if (at + i == column) gradient -= hit;
        if (cap > 0.0f) gradient *= 1.0f - (x / cap) * (x / cap);
      }
      run.of[i] = from_f32<T>(gradient);
    }
    store(logits + at, run);
  });
}

#define TARGETS const uint32_t *targets, uint32_t ignore, uint32_t ignores, uint32_t vocab
#define FAULT uint64_t *word, uint64_t number

#define ENTRIES(T)                                                                                                                              \
  extern "C" __global__ void cross_entropy_parts_##T(const T* logits, TARGETS, double* parts, uint32_t rows, uint32_t columns, uint32_t first,  \
                                                     float smoothing, float cap, uint32_t packed, FAULT) {                                      \
    parts_of<T>(logits, {targets, ignore, ignores, vocab}, parts, rows, columns, first, smoothing, cap, packed, word, number);                  \
  }                                                                                                                                             \
  extern "C" __global__ void cross_entropy_backward_##T(T* logits, TARGETS, const f32* lse, const double* normaliser, uint32_t rows,            \
                                                        uint32_t columns, uint32_t first, float scale, float smoothing, float z_loss,           \
                                                        float cap, uint32_t packed, FAULT) {                                                    \
    backward<T>(logits, {targets, ignore, ignores, vocab}, lse, normaliser, rows, columns, first, scale, smoothing, z_loss, cap, packed, word,  \
                number);                                                                                                                        \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)

extern "C" __global__ void cross_entropy_merge(const double* parts, TARGETS, f32* losses, double* nats, double* normaliser, f32* lse, uint32_t rows,
                                               uint32_t ranks, float z_loss) {
  merge(parts, {targets, ignore, ignores, vocab}, losses, nats, normaliser, lse, rows, ranks, z_loss);
}

extern "C" __global__ void __launch_bounds__(1024) cross_entropy_sum(const double* nats, TARGETS, double* sum, uint32_t rows) {
  add_up(nats, {targets, ignore, ignores, vocab}, sum, rows);
}
