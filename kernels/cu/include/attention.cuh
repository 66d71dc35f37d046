// What all kernels of attention share: the problem, what a query sees, scores after the product, dropout.
// Contract: kernels/src/attention/mod.rs.
#pragma once
#include "element.cuh"
#include "fault.cuh"
#include "philox.cuh"

// Sizes and options, as 32-bit words: kernels/src/attention/gpu/problem.rs writes the same.
struct Problem {
  // Of a sequence; of the longest one where sequences have starts.
  uint32_t queries, keys;
  uint32_t heads, kv_heads, head_size;
  // Elements from a token to the next one in q, k and v, and in their gradients (those that are not f32).
  uint32_t q_row, k_row, v_row, dq_row, dk_row, dv_row;
  // Tokens in all, where sequences have starts.
  uint32_t all_queries, all_keys;
  // The window at each side of the query; the largest number is unbounded.
  int32_t left, right;
  float scale;
  // The scores' factor where scores need nothing else, scale times log2(e); 0 where they do.
  float factor;
  // 0 is none.
  float softcap;
  // 16-bit numbers below it are dropped; 0 is no dropout. What is kept is multiplied by `kept`.
  uint32_t threshold;
  float kept;
  uint32_t seed[2];
  // The sequence and head of the whole that the first ones here are.
  uint32_t first_sequence, first_head;
  // Results are f32 and join those that are there.
  uint32_t onto;
  // Blocks of threads to a head.
  uint32_t blocks;
};

// Arrays beside q, k and v; null where there is none.
struct Arrays {
  const uint32_t* query_starts;
  const uint32_t* key_starts;
  const uint32_t* seen;
  const float* slopes;
  // The status word, and the numbers of the arrays above there.
  uint64_t* fault;
  uint64_t query_starts_fault, key_starts_fault, seen_fault;
};

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;
// The least finite number.
constexpr float LEAST = -3.4028234663852886e38f;

// 2^x; 0 of -inf. At most 2 units in the last place off (PTX ISA), subnormal results are 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x), 2^-22 off (relatively outside (0.5, 2)), exact for powers of two.
__device__ inline float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

// Where a sequence lies.
struct Sequence {
  uint32_t index;
  int32_t queries, keys;
  // Tokens before it.
  size_t query_begin, key_begin;
  // Whether its starts are right; else nothing may be read or written.
  bool sound;
};

__device__ inline bool sound_starts(const Arrays& arrays, uint64_t number, const uint32_t* starts, uint32_t at, uint32_t all, uint32_t longest) {
  uint32_t begin = starts[at], end = starts[at + 1];
  uint64_t limit = min(uint64_t(all), uint64_t(begin) + longest) + 1;
  if (begin <= end && end < limit) return true;
  if (threadIdx.x == 0) note_fault(arrays.fault, number, at + 1, end, limit);
  return false;
}

__device__ inline Sequence sequence_at(const Problem& p, const Arrays& arrays, uint32_t index) {
  if (!arrays.query_starts) {
    return {index, int32_t(p.queries), int32_t(p.keys), size_t(index) * p.queries, size_t(index) * p.keys, true};
  }
  bool sound = sound_starts(arrays, arrays.query_starts_fault, arrays.query_starts, index, p.all_queries, p.queries);
  sound = sound_starts(arrays, arrays.key_starts_fault, arrays.key_starts, index, p.all_keys, p.keys) && sound;
  uint32_t q = arrays.query_starts[index], k = arrays.key_starts[index];
  return {index, int32_t(arrays.query_starts[index + 1] - q), int32_t(arrays.key_starts[index + 1] - k), q, k, sound};
}

// The first element of a head's LSE: [B, H, Tq], or [H, all queries] where sequences have starts.
__device__ inline size_t lse_begin(const Problem& p, const Arrays& arrays, const Sequence& sequence, uint32_t head) {
  if (arrays.query_starts) return size_t(head) * p.all_queries + sequence.query_begin;
  return (size_t(sequence.index) * p.heads + head) * p.queries;
}

// Which keys a query of a sequence sees: those from `low` on, below `high`. Neither falls from a query to the next.
struct Visible {
  int32_t queries, keys, left, right;
  const uint32_t* seen;

  __device__ Visible(const Problem& p, const Arrays& arrays, const Sequence& of)
      : queries(of.queries), keys(of.keys), left(p.left), right(p.right), seen(arrays.seen) {}

  // The key beside which the query stands.
  __device__ int64_t beside(int32_t query) const { return int64_t(query) + keys - queries; }

  __device__ int32_t inside(int64_t key) const { return int32_t(max(int64_t(0), min(key, int64_t(keys)))); }

  // The query beside that key, or where there would be one.
  __device__ int32_t query_beside(int64_t key) const { return int32_t(max(int64_t(0), min(key - keys + queries, int64_t(queries)))); }

  __device__ int32_t low(int32_t query) const { return inside(beside(query) - left); }

  __device__ int32_t high(int32_t query) const { return inside(seen ? int64_t(seen[query]) : beside(query) + right + 1); }

  // The first query that sees a key at or after `key`, and the first one after those that see a key before `end`.
  __device__ int32_t first_query(int32_t key) const {
    if (!seen) return query_beside(int64_t(key) - right);
    int32_t from = 0, to = queries;
    while (from < to) {
      int32_t middle = from + (to - from) / 2;
      if (high(middle) > key) to = middle;
      else from = middle + 1;
    }
    return from;
  }

  __device__ int32_t last_query(int32_t end) const { return query_beside(int64_t(end) + left); }
};

// What makes a score of a product: in units of log2, so that a weight is 2^score.
struct Scoring {
  // Without softcap score = product * factor; with it cap * tanh(product * inner).
  float factor, inner, cap, slope;

  __device__ Scoring(const Problem& p, const Arrays& arrays, uint32_t head)
      : factor(p.scale * LOG2_E),
        inner(p.softcap > 0.0f ? p.scale / p.softcap : 0.0f),
        cap(p.softcap * LOG2_E),
        slope(arrays.slopes ? arrays.slopes[head] * LOG2_E : 0.0f) {}
};

// tanh within 2^-22 of the exact value.
__device__ inline float tanh_fast(float x) {
  float twice = exp2_fast(fabsf(x) * (2.0f * LOG2_E));
  float y;
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(twice + 1.0f));
  return copysignf(fmaf(-2.0f, y, 1.0f), x);
}

// Of eight neighbouring keys from `8 * eighth` on, a bit each: whether the query keeps it.
__device__ inline uint32_t kept_of(const Problem& p, uint32_t sequence, uint32_t head, uint32_t query, uint32_t eighth) {
  uint4 words = philox({eighth, query, p.first_head + head, p.first_sequence + sequence}, {p.seed[0], p.seed[1]});
  // A number of 16 bits that is not below the threshold, and this one, carry.
  uint32_t of[4] = {words.x, words.y, words.z, words.w}, rest = 0x10000 - p.threshold, bits = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    bits |= ((of[i] & 0xffff) + rest) >> 16 << (2 * i);
    bits |= ((of[i] >> 16) + rest) >> 16 << (2 * i + 1);
  }
  return bits;
}

// Notes where `seen` falls or exceeds the keys, among the queries of a block.
__device__ inline void check_seen(const Problem& p, const Arrays& arrays, const Sequence& sequence, int32_t first, uint32_t count) {
  int32_t query = first + threadIdx.x;
  if (threadIdx.x >= count || query >= sequence.queries) return;
  uint32_t seen = arrays.seen[query], before = query > 0 ? arrays.seen[query - 1] : 0;
  if (seen > p.keys || seen < before) note_fault(arrays.fault, arrays.seen_fault, query, seen, uint64_t(p.keys) + 1);
}

// Where the LSE of row `row` of `all` tokens' heads lies.
__device__ inline uint32_t row_of_lse(const Problem& p, bool starts, uint32_t all, uint32_t row) {
  uint32_t token = row / p.heads, head = row % p.heads;
  return starts ? head * all + token : (token / p.queries * p.heads + head) * p.queries + token % p.queries;
}

// The last arguments of kernels, and what they make.
#define ARRAYS                                                                                                                         \
  const uint32_t *query_starts, const uint32_t *key_starts, const uint32_t *seen, const float *slopes, uint64_t *fault,                \
      uint64_t query_starts_fault, uint64_t key_starts_fault, uint64_t seen_fault, const __grid_constant__ Problem p
#define GIVEN {query_starts, key_starts, seen, slopes, fault, query_starts_fault, key_starts_fault, seen_fault}, p
