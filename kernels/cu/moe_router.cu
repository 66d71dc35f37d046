// Routing to experts: scores, choice and weights of each row, their gradients, and what keeps experts evenly used.
// Contracts: kernels/src/moe/router/mod.rs, kernels/src/moe/balance/mod.rs.
//
// Launch, where nothing else is said: a warp a row, blockDim.y rows a block; a lane has every 32nd expert. `staged`: bytes of dynamic shared
// memory for a row, which keeps all that is read and written until it is done, so that global memory is asked once; 0 where a row is too
// long for that: then its numbers are read again from where they lie. `packed`: experts are a multiple of what 16 bytes hold, and all arrays
// of rows of them begin at multiples of 16 bytes. Scores, sums and gradients are f64, each lane's in turn, then over lanes in a fixed tree,
// and rounded once; sums over the chosen run in the order of the choice. So the numbers are the CPU's but where the last places of an f64
// decide a rounding. Bound by memory (64-bit arithmetic on cards that have little of it).
#include <type_traits>
#include "element.cuh"
#include "fault.cuh"
#include "reduce.cuh"

template <class T> __device__ T from_f64(double x);
template <> __device__ inline f32 from_f64<f32>(double x) { return float(x); }
template <> __device__ inline bf16 from_f64<bf16>(double x) { return __double2bfloat16(x); }
template <> __device__ inline f16 from_f64<f16>(double x) { return __double2half(x); }

// Sums are divided by at least this.
constexpr double LEAST = 1.1754943508222875e-38;

__device__ inline uint32_t row_of_warp() { return blockIdx.x * blockDim.y + threadIdx.y; }

// A warp's dynamic shared memory, handed out from its begin; every array in it begins at a multiple of 16 bytes.
struct Staging {
  unsigned char* next;

  __device__ static Staging of_warp(uint32_t bytes) {
    extern __shared__ __align__(16) unsigned char memory[];
    return {memory + size_t(threadIdx.y) * bytes};
  }
  template <class T> __device__ T* array(uint32_t len) {
    T* begin = reinterpret_cast<T*>(next);
    next += (size_t(len) * sizeof(T) + 15) / 16 * 16;
    return begin;
  }
};

template <class T> __device__ inline void copy_row(T* to, const T* from, uint32_t len, bool packed) {
  for_row<T>(len, packed, [&](uint32_t at, auto count) { store(to + at, load<count.VALUE>(from + at)); });
}

// e^x within 2 units in the last place for x from -708 to 0, and e^-708 below, which no f32 tells from 0; NaN for NaN. x = n ln 2 + r,
// |r| <= ln 2 / 2, and e^r by its series.
__device__ inline double exp_below_0(double x) {
  constexpr double OF[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                           1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
  // ln 2 in two parts; the first has so few bits that its product with n is exact.
  constexpr double LN_2_HIGH = 0.6931471803691238, LN_2_LOW = 1.9082149292705877e-10;
  x = x < -708.0 ? -708.0 : x;
  int n = __double2int_rn(x * 1.4426950408889634);
  double r = fma(double(n), -LN_2_LOW, fma(double(n), -LN_2_HIGH, x)), sum = OF[0];
#pragma unroll
  for (int i = 1; i < 14; i++) sum = fma(sum, r, OF[i]);
  return sum * __hiloint2double((n + 1023) << 20, 0);
}

// A number and an index, so that a larger number makes a larger one, and of equal numbers the lower index: NaN as -inf, no -0. It is never 0.
__device__ inline uint64_t choice_of(float value, uint32_t index) {
  uint32_t bits = __float_as_uint(value != value ? -INFINITY : value);
  return uint64_t(bits >> 31 ? ~bits : bits | 1u << 31) << 32 | uint32_t(~index);
}

__device__ inline uint32_t index_of(uint64_t choice) { return ~uint32_t(choice); }

struct Largest {
  __device__ static uint64_t of(uint64_t a, uint64_t b) { return ullmax(a, b); }
};

struct Smallest {
  __device__ static uint64_t of(uint64_t a, uint64_t b) { return ullmin(a, b); }
};

template <class T> __device__ inline void write_scores(const T* logits, f32* scores, uint32_t experts, bool sigmoid) {
  float largest = -INFINITY;
  double sum = 0.0;
#pragma unroll 1
  for (uint32_t expert = threadIdx.x; expert < experts; expert += 32) largest = fmaxf(largest, to_f32(logits[expert]));
  largest = reduce_warp<Max>(largest);
  // A sigmoid needs no sum.
#pragma unroll 1
  for (uint32_t expert = threadIdx.x; expert < (sigmoid ? 0 : experts); expert += 32) sum += exp_below_0(double(to_f32(logits[expert])) - double(largest));
  sum = reduce_warp<Sum>(sum);
#pragma unroll 1
  for (uint32_t expert = threadIdx.x; expert < experts; expert += 32) {
    float logit = to_f32(logits[expert]);
    double power = exp_below_0(sigmoid ? -fabs(double(logit)) : double(logit) - double(largest));
    scores[expert] = float((sigmoid && logit >= 0.0f ? 1.0 : power) / (sigmoid ? 1.0 + power : sum));
  }
}

// What an expert is chosen by.
__device__ inline float value_of(const f32* values, const f32* bias, uint32_t expert) { return values[expert] + (bias ? bias[expert] : 0.0f); }

// The first expert of the row behind `last`.
__device__ inline uint64_t choose(const f32* values, const f32* bias, uint32_t experts, uint64_t last) {
  uint64_t own = 0;
#pragma unroll 1
  for (uint32_t expert = threadIdx.x; expert < experts; expert += 32) {
    uint64_t choice = choice_of(value_of(values, bias, expert), expert);
    if (choice < last) own = Largest::of(own, choice);
  }
  return reduce_warp<Largest>(own);
}

// `margins`: of each row how far the first expert that is not chosen is from the last one that is; null where all are chosen, or none.
template <class T>
__device__ inline void forward(const T* logits, const f32* bias, f32* scores, uint32_t* chosen, f32* weights, f32* margins, uint32_t rows, uint32_t experts,
                               uint32_t top_k, float scale, bool sigmoid, bool normalize, uint32_t staged, bool packed) {
  uint32_t row = row_of_warp();
  if (row >= rows) return;
  logits += size_t(row) * experts, scores += size_t(row) * experts, chosen += size_t(row) * top_k, weights += size_t(row) * top_k;
  f32 *own = scores, *sums = nullptr, *unscaled = weights;
  uint32_t* choices = chosen;
  if (staged) {
    Staging staging = Staging::of_warp(staged);
    T* kept = staging.array<T>(experts);
    copy_row(kept, logits, experts, packed);
    __syncwarp();
    logits = kept, own = staging.array<f32>(experts), choices = staging.array<uint32_t>(top_k), unscaled = staging.array<f32>(top_k);
    if (bias) sums = staging.array<f32>(experts);
  }
  write_scores(logits, own, experts, sigmoid);
  const f32* values = own;
  if (sums) {
#pragma unroll 1
    for (uint32_t expert = threadIdx.x; expert < experts; expert += 32) sums[expert] = own[expert] + bias[expert];
    values = sums, bias = nullptr;
  }
  __syncwarp();
  if (staged) copy_row(scores, own, experts, packed);
  uint64_t last = ~0ull;
  double sum = 0.0;
  uint32_t rounds = top_k + (margins ? 1 : 0);
  // All lanes have the same choice, and write it.
#pragma unroll 1
  for (uint32_t k = 0; k < rounds; k++) {
    uint64_t next = choose(values, bias, experts, last);
    if (k == top_k) {
      // NaN where one of the two is.
      margins[row] = value_of(values, bias, index_of(last)) - value_of(values, bias, index_of(next));
      break;
    }
    last = next;
    float score = own[index_of(last)];
    choices[k] = index_of(last), unscaled[k] = score;
    sum += double(score);
  }
  double divisor = normalize ? fmax(sum, LEAST) : 1.0;
  __syncwarp();
#pragma unroll 1
  for (uint32_t k = threadIdx.x; k < top_k; k += 32) {
    chosen[k] = choices[k];
    weights[k] = float(double(unscaled[k]) / divisor * double(scale));
  }
}

// The smallest margin, as its bits, and the first row that has it; NaNs are larger than all. One block of 1024.
extern "C" __global__ void __launch_bounds__(1024) moe_router_margin(const f32* margins, uint32_t rows, uint64_t* smallest) {
  __shared__ uint64_t scratch[32];
  uint64_t own = uint64_t(__float_as_uint(INFINITY)) << 32;
#pragma unroll 1
  for (uint32_t row = threadIdx.x; row < rows; row += blockDim.x) own = Smallest::of(own, uint64_t(__float_as_uint(margins[row])) << 32 | row);
  own = reduce_warp<Smallest>(own);
  scratch[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x < 32) *smallest = reduce_warp<Smallest>(scratch[threadIdx.x]);
}

// `dscores` may be null. A row with an expert that there is not is noted, and nothing is written for it.
template <class T>
__device__ inline void backward(const f32* scores, const uint32_t* chosen, const f32* dweights, const f32* dscores, T* dlogits, uint32_t rows, uint32_t experts,
                                uint32_t top_k, float scale, bool sigmoid, bool normalize, uint64_t* word, uint64_t number, uint32_t staged, bool packed) {
  uint32_t row = row_of_warp();
  if (row >= rows) return;
  scores += size_t(row) * experts, dlogits += size_t(row) * experts, chosen += size_t(row) * top_k, dweights += size_t(row) * top_k;
  if (dscores) dscores += size_t(row) * experts;
  T* gradients = dlogits;
  f32* of_chosen = nullptr;
  if (staged) {
    Staging staging = Staging::of_warp(staged);
    auto keep = [&](auto& from, uint32_t len, bool packed) {
      auto* to = staging.array<std::remove_const_t<std::remove_pointer_t<std::remove_reference_t<decltype(from)>>>>(len);
      copy_row(to, from, len, packed);
      from = to;
    };
    keep(scores, experts, packed), keep(chosen, top_k, false), keep(dweights, top_k, false);
    if (dscores) keep(dscores, experts, packed);
    gradients = staging.array<T>(experts), of_chosen = staging.array<f32>(top_k);
    __syncwarp();
  }
  double divisor = 1.0, mean = 0.0;
  // All lanes do the same here, and on what they read: the chosen are few.
  if (normalize) divisor = 0.0;
#pragma unroll 1
  for (uint32_t k = 0; k < top_k; k++) {
    uint32_t expert = chosen[k];
    if (expert >= experts) return note_fault(word, number, row, expert, experts);
    double score = scores[expert];
    if (of_chosen && k % 32 == threadIdx.x) of_chosen[k] = float(score);
    if (normalize) divisor += score, mean += double(dweights[k]) * score;
  }
  divisor = fmax(divisor, LEAST), mean /= divisor;
  auto of_weight = [&](uint32_t k) { return double(scale) * (double(dweights[k]) - mean) / divisor; };
  // Softmax: what all gradients have in common.
  double common = 0.0;
  if (!sigmoid) {
    if (dscores) {
#pragma unroll 1
      for (uint32_t expert = threadIdx.x; expert < experts; expert += 32) common += double(scores[expert]) * double(dscores[expert]);
    }
#pragma unroll 1
    for (uint32_t k = threadIdx.x; k < top_k; k += 32) common += double(of_chosen ? of_chosen[k] : scores[chosen[k]]) * of_weight(k);
    common = reduce_warp<Sum>(common);
  }
#pragma unroll 1
  for (uint32_t expert = threadIdx.x; expert < experts; expert += 32) {
    double score = scores[expert], d = dscores ? double(dscores[expert]) : 0.0;
#pragma unroll 1
    for (uint32_t k = 0; k < top_k; k++) {
      if (chosen[k] == expert) d += of_weight(k);
    }
    gradients[expert] = from_f64<T>(sigmoid ? score * (1.0 - score) * d : score * (d - common));
  }
  if (!staged) return;
  __syncwarp();
  copy_row(dlogits, gradients, experts, packed);
}

#define ENTRIES(T)                                                                                                                            \
  extern "C" __global__ void moe_router_forward_##T(const T* logits, const f32* bias, f32* scores, uint32_t* chosen, f32* weights,            \
                                                    f32* margins, uint32_t rows, uint32_t experts, uint32_t top_k, float scale,               \
                                                    uint32_t sigmoid, uint32_t normalize, uint32_t staged, uint32_t packed) {                 \
    forward<T>(logits, bias, scores, chosen, weights, margins, rows, experts, top_k, scale, sigmoid, normalize, staged, packed);              \
  }                                                                                                                                           \
  extern "C" __global__ void moe_router_backward_##T(const f32* scores, const uint32_t* chosen, const f32* dweights, const f32* dscores,      \
                                                     T* dlogits, uint32_t rows, uint32_t experts, uint32_t top_k, float scale,                \
                                                     uint32_t sigmoid, uint32_t normalize, uint64_t* word, uint64_t number,                   \
                                                     uint32_t staged, uint32_t packed) {                                                      \
    backward<T>(scores, chosen, dweights, dscores, dlogits, rows, experts, top_k, scale, sigmoid, normalize, word, number, staged, packed);   \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)

// What a row's scores are divided by to be shares. All lanes have the same.
__device__ inline double whole_of(const f32* scores, uint32_t experts, bool sigmoid) {
  if (!sigmoid) return 1.0;
  double sum = 0.0;
#pragma unroll 1
  for (uint32_t expert = threadIdx.x; expert < experts; expert += 32) sum += double(scores[expert]);
  return fmax(reduce_warp<Sum>(sum), LEAST);
}

// Tokens of a block of balance_sums, and its warps, which share them.
constexpr uint32_t TOKENS = 128, WARPS = 8;

// Of TOKENS tokens of a sequence and 32 experts how often each is chosen, and the sums of shares: partials [sequences, parts, 2, experts].
// Grid: sequences by parts, experts by 32; block 32 x WARPS. An expert that there is not is noted, and counts for none.
extern "C" __global__ void moe_router_balance_sums(const f32* scores, const uint32_t* chosen, double* partials, uint32_t tokens, uint32_t parts,
                                                   uint32_t experts, uint32_t top_k, uint32_t sigmoid, uint64_t* word, uint64_t number) {
  __shared__ double sums[2][WARPS][32];
  uint32_t lane = threadIdx.x, warp = threadIdx.y, expert = blockIdx.y * 32 + lane;
  uint32_t sequence = blockIdx.x / parts, begin = blockIdx.x % parts * TOKENS, end = min(tokens, begin + TOKENS);
  double count = 0.0, share = 0.0;
#pragma unroll 1
  for (uint32_t token = begin + warp; token < end; token += WARPS) {
    size_t row = size_t(sequence) * tokens + token;
    double whole = whole_of(scores + row * experts, experts, sigmoid);
    if (expert < experts) share += double(scores[row * experts + expert]) / whole;
#pragma unroll 1
    for (uint32_t k = 0; k < top_k; k++) {
      uint32_t of = chosen[row * top_k + k];
      if (of >= experts) note_fault(word, number, row, of, experts);
      if (of == expert) count += 1.0;
    }
  }
  sums[0][warp][lane] = count, sums[1][warp][lane] = share;
  __syncthreads();
  if (warp > 1 || expert >= experts) return;
  double sum = 0.0;
#pragma unroll
  for (uint32_t other = 0; other < WARPS; other++) sum += sums[warp][other][lane];
  partials[(size_t(blockIdx.x) * 2 + warp) * experts + expert] = sum;
}

// Adds up the parts of each sequence's sums, a thread a column. Grid: sequences, columns by blockDim.x.
extern "C" __global__ void moe_router_balance_add(const double* partials, double* sums, uint32_t parts, uint32_t columns) {
  uint32_t column = blockIdx.y * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  double sum = 0.0;
#pragma unroll 1
  for (uint32_t part = 0; part < parts; part++) sum += partials[(size_t(blockIdx.x) * parts + part) * columns + column];
  sums[size_t(blockIdx.x) * columns + column] = sum;
}

// sums: [sequences, 2, experts], of which the counts are read.
extern "C" __global__ void moe_router_balance_backward(const f32* scores, const double* sums, f32* dscores, uint32_t rows, uint32_t tokens, uint32_t experts,
                                                       uint32_t sigmoid, double factor) {
  uint32_t row = row_of_warp();
  if (row >= rows) return;
  scores += size_t(row) * experts, dscores += size_t(row) * experts, sums += size_t(row / tokens) * 2 * experts;
  double whole = whole_of(scores, experts, sigmoid), mean = 0.0;
  if (sigmoid) {
#pragma unroll 1
    for (uint32_t expert = threadIdx.x; expert < experts; expert += 32) mean += sums[expert] * double(scores[expert]);
    mean = reduce_warp<Sum>(mean) / whole;
  }
#pragma unroll 1
  for (uint32_t expert = threadIdx.x; expert < experts; expert += 32) dscores[expert] = float(factor * (sums[expert] - mean) / whole);
}

// One block. Counts are whole numbers, so their sum is exact in any order.
extern "C" __global__ void moe_router_move_bias(const double* counts, f32* bias, uint32_t experts, float rate) {
  __shared__ double scratch[32];
  double own = 0.0;
#pragma unroll 1
  for (uint32_t expert = threadIdx.x; expert < experts; expert += blockDim.x) own += counts[expert];
  double total = reduce_block<Sum>(own, scratch);
#pragma unroll 1
  for (uint32_t expert = threadIdx.x; expert < experts; expert += blockDim.x) {
    double excess = counts[expert] * double(experts) - total;
    // NaN where the counts are none.
    if (excess != 0.0) bias[expert] -= rate * float(excess / fabs(excess));
  }
}
