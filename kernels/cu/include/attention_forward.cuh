// Attention forward of bf16 and f16 on tensor cores (FlashAttention-2, Dao 2023, arXiv 2307.08691).
// Contract: kernels/src/attention/mod.rs.
//
// Launch: 128 threads a block, p.blocks blocks for each head of each sequence, one beside the other; dynamic shared memory for
// the tiles. A block has M queries; tiles of N keys pass by them from the last that is seen to the first, so that only
// the first copy can be of a tile that is not whole. A warp has M / 4 queries. D is the head size or more; elements beyond it are
// zero in shared memory. q, k, v and out begin at multiples of 16 bytes, and rows and head size are multiples of 8 elements.
// Products are of T with f32 sums, weights are rounded to T for the second product, the rest is f32; orders are fixed.
#pragma once
#include "attention_tiles.cuh"

// Rows of queries and of keys of a tile.
template <uint32_t D> struct Tiles;
template <> struct Tiles<64> { static constexpr uint32_t M = 128, N = 128; };
template <> struct Tiles<128> { static constexpr uint32_t M = 128, N = 64; };
template <> struct Tiles<256> { static constexpr uint32_t M = 64, N = 32; };

template <class T, uint32_t D> struct Forward {
  static constexpr uint32_t M = Tiles<D>::M, N = Tiles<D>::N, I = M / WARPS / 16, J = N / 8;
  // A tile with masks or more goes in two parts: fewer registers, and less code.
  static constexpr uint32_t PARTS = 2, PART = N / PARTS;
  static constexpr uint32_t ROW = 2 * D;

  const Problem& p;
  Sequence sequence;
  Visible visible;
  Scoring scoring;
  uint32_t head;
  // The block's first query, and the warp's.
  int32_t first, own;
  // Shared memory: tiles, and bits of what dropout keeps.
  uint32_t q_tile, k_tile, v_tile, kept;
  uint32_t q_lane, k_lane, v_lane;
  float out[I][D / 8][4];
  // Of the rows of this lane: the largest score, and the sum of weights of this lane's columns.
  float largest[I][2], sum[I][2];

  __device__ Forward(const Problem& p, const Arrays& arrays, const Sequence& of, uint32_t head, int32_t first)
      : p(p), sequence(of), visible(p, arrays, of), scoring(p, arrays, head), head(head), first(first) {
    extern __shared__ __align__(128) unsigned char shared[];
    q_tile = shared_address(shared);
    k_tile = q_tile + M * ROW, v_tile = k_tile + N * ROW, kept = v_tile + N * ROW;
    uint32_t warp = threadIdx.x / 32;
    own = first + warp * (16 * I);
    q_lane = lane_as_a<D>(q_tile) + warp * (16 * I * ROW);
    k_lane = lane_as_b<D>(k_tile), v_lane = lane_as_a<D>(v_tile);
  }

  // Bits of what dropout keeps of a tile, for all warps.
  __device__ void draw(int32_t key) {
#pragma unroll 1
    for (uint32_t at = threadIdx.x; at < M * N / 8; at += THREADS) {
      uint32_t bits = kept_of(p, sequence.index, head, first + at / (N / 8), key / 8 + at % (N / 8));
      asm volatile("st.shared.u8 [%0],%1;" ::"r"(kept + at), "r"(bits) : "memory");
    }
  }

  // Products become scores in units of log2; what is not seen is -inf.
  __device__ void score(float (&scores)[I][PART / 8][4], int32_t key) {
    if (p.softcap > 0.0f) {
      for_elements<I, PART / 8>([&](uint32_t i, uint32_t j, uint32_t c, int32_t, int32_t) {
        scores[i][j][c] = scoring.cap * tanh_fast(scores[i][j][c] * scoring.inner);
      });
    } else {
      for_elements<I, PART / 8>([&](uint32_t i, uint32_t j, uint32_t c, int32_t, int32_t) { scores[i][j][c] *= scoring.factor; });
    }
    if (scoring.slope != 0.0f) {
      int32_t beside = int32_t(visible.beside(own) - key);
      for_elements<I, PART / 8>([&](uint32_t i, uint32_t j, uint32_t c, int32_t row, int32_t column) {
        scores[i][j][c] -= scoring.slope * float(abs(beside + row - column));
      });
    }
    int32_t lows[I][2], highs[I][2];
#pragma unroll
    for (uint32_t i = 0; i < I; i++) {
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        int32_t query = own + 16 * i + 8 * half + threadIdx.x % 32 / 4;
        // Rows behind the last query see what it sees; nobody writes them.
        query = min(query, sequence.queries - 1);
        lows[i][half] = visible.low(query) - key, highs[i][half] = visible.high(query) - key;
      }
    }
    for_elements<I, PART / 8>([&](uint32_t i, uint32_t j, uint32_t c, int32_t, int32_t column) {
      if (column < lows[i][c / 2] || column >= highs[i][c / 2]) scores[i][j][c] = -INFINITY;
    });
  }

  // Scores times `factor` become weights relative to the largest so far, and what there is is rescaled.
  template <uint32_t J> __device__ void weigh(float (&scores)[I][J][4], float factor) {
#pragma unroll
    for (uint32_t i = 0; i < I; i++) {
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        float most = scores[i][0][2 * half];
#pragma unroll
        for (uint32_t j = 0; j < J; j++) most = fmaxf(fmaxf(most, scores[i][j][2 * half]), scores[i][j][2 * half + 1]);
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        most = fmaxf(most * factor, largest[i][half]);
        // -inf less -inf would be NaN; less any other number it is a weight of 0.
        float shift = fmaxf(most, LEAST);
        float shrink = exp2_fast(largest[i][half] - shift);
        largest[i][half] = most;
        sum[i][half] *= shrink;
#pragma unroll
        for (uint32_t j = 0; j < D / 8; j++) out[i][j][2 * half] *= shrink, out[i][j][2 * half + 1] *= shrink;
#pragma unroll
        for (uint32_t j = 0; j < J; j++) {
#pragma unroll
          for (uint32_t c = 2 * half; c < 2 * half + 2; c++) {
            scores[i][j][c] = exp2_fast(fmaf(scores[i][j][c], factor, -shift));
            sum[i][half] += scores[i][j][c];
          }
        }
      }
    }
  }

  __device__ void drop(float (&weights)[I][PART / 8][4], uint32_t part) {
    for_elements<I, PART / 8>([&](uint32_t i, uint32_t j, uint32_t c, int32_t row, int32_t column) {
      uint32_t bits;
      uint32_t at = (own - first + row) * (N / 8) + part * (PART / 8) + column / 8;
      asm volatile("ld.shared.u8 %0,[%1];" : "=r"(bits) : "r"(kept + at) : "memory");
      if (!(bits >> column % 8 & 1)) weights[i][j][c] = 0.0f;
    });
  }

  // A tile of keys that every query sees the whole of, where a score is a product and a factor.
  __device__ void plain_tile(bool last, Copier<D>& k, Copier<D>& v) {
    copy_wait<0>();
    // The keys are there, and everybody has used the values before them.
    __syncthreads();
    v.template copy_before<N>(v_tile);
    copy_commit();
    float scores[I][J][4];
    clear(scores);
    multiply_rows<T, D>(scores, q_lane, k_lane);
    copy_wait<0>();
    __syncthreads();
    if (!last) k.template copy_before<N>(k_tile);
    copy_commit();
    weigh(scores, p.factor);
    multiply_weights<T, D>(out, scores, v_lane);
  }

  // Any tile.
  __device__ void tile(int32_t key, bool last, Copier<D>& k, Copier<D>& v) {
    __syncthreads();
    v.template copy_before<N>(v_tile, sequence.keys - key);
    copy_commit();
    if (p.threshold) draw(key);
    copy_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (uint32_t part = 0; part < PARTS; part++) {
      float scores[I][PART / 8][4];
      clear(scores);
      multiply_rows<T, D>(scores, q_lane, k_lane + part * (PART * ROW));
      score(scores, key + part * PART);
      weigh(scores, 1.0f);
      if (p.threshold) drop(scores, part);
      multiply_weights<T, D>(out, scores, v_lane + part * (PART * ROW));
    }
    __syncthreads();
    if (!last) k.template copy_before<N>(k_tile);
    copy_commit();
  }

  // What other keys have given so far.
  __device__ void begin(const float* before, const float* lse) {
    for_elements<I, D / 8>([&](uint32_t i, uint32_t j, uint32_t c, int32_t, int32_t) { out[i][j][c] = 0.0f; });
#pragma unroll
    for (uint32_t i = 0; i < I; i++) {
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        int32_t query = own + 16 * i + 8 * half + threadIdx.x % 32 / 4;
        largest[i][half] = -INFINITY, sum[i][half] = 0.0f;
        if (!p.onto || query >= sequence.queries) continue;
        largest[i][half] = lse[query] * LOG2_E;
        if (largest[i][half] == -INFINITY) continue;
        // One lane of the four has it.
        sum[i][half] = threadIdx.x % 4 == 0 ? 1.0f : 0.0f;
        const float* from = before + query * (size_t(p.heads) * p.head_size) + threadIdx.x % 4 * 2;
#pragma unroll
        for (uint32_t j = 0; j < D / 8; j++) {
          if (8 * j + 8 > LEAST_SIZE<D> && p.head_size < 8 * j + 8) continue;
          auto pair = load<2>(from + 8 * j);
          out[i][j][2 * half] = pair.of[0], out[i][j][2 * half + 1] = pair.of[1];
        }
      }
    }
  }

  // Divides by the sums, and writes the LSE.
  __device__ void finish(float* lse) {
    // Where there was no tile, the lanes of a row may yet be reading what it was. (Where there was one, a barrier is behind the
    // last look at queries, where `out` goes next.)
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < I; i++) {
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        float all = sum[i][half];
        all += __shfl_xor_sync(0xffffffffu, all, 1);
        all += __shfl_xor_sync(0xffffffffu, all, 2);
        float factor = all == 0.0f ? 0.0f : p.kept / all;
#pragma unroll
        for (uint32_t j = 0; j < D / 8; j++) out[i][j][2 * half] *= factor, out[i][j][2 * half + 1] *= factor;
        int32_t query = own + 16 * i + 8 * half + threadIdx.x % 32 / 4;
        // Without a key it is -inf, as are both of its parts.
        if (threadIdx.x % 4 == 0 && query < sequence.queries) lse[query] = (largest[i][half] + log2_fast(all)) * LN_2;
      }
    }
  }

  __device__ void run(const T* q, const T* k, const T* v, void* to, float* lse) {
    uint32_t kv_head = head / (p.heads / p.kv_heads);
    size_t row = size_t(p.heads) * p.head_size, begin_of_head = sequence.query_begin * row + head * p.head_size;
    k += sequence.key_begin * p.k_row + kv_head * p.head_size;
    v += sequence.key_begin * p.v_row + kv_head * p.head_size;
    int32_t end = min(first + int32_t(M), sequence.queries) - 1;
    int32_t low = visible.low(first), high = visible.high(end);
    begin(static_cast<const float*>(to) + begin_of_head, lse);
    Copier<D> keys(k, p.k_row, p.head_size), values(v, p.v_row, p.head_size);
    if (low < high) {
      Copier<D> queries(q + (sequence.query_begin + first) * p.q_row + head * p.head_size, p.q_row, p.head_size);
      queries.template copy<M>(q_tile, sequence.queries - first);
      // Tiles that everybody sees the whole of are those from `plain_low` on, below `plain_high`.
      int32_t at = (high - 1) / int32_t(N), last = low / int32_t(N);
      int32_t plain_low = (visible.low(end) + int32_t(N) - 1) / int32_t(N), plain_high = visible.high(first) / int32_t(N);
      if (p.factor <= 0.0f) plain_high = 0;
      keys.start(at * N), values.start((at + 1) * N);
      keys.template copy<N>(k_tile, sequence.keys - at * N);
      copy_commit();
#pragma unroll 1
      for (;;) {
#pragma unroll 1
        for (; at >= plain_low && at < plain_high; at--) plain_tile(at == last, keys, values);
        if (at < last) break;
        tile(at * N, at == last, keys, values);
        at--;
      }
    }
    finish(lse);
    int32_t rows = sequence.queries - own;
    if (p.onto) {
      write_sums<D, false>(out, static_cast<float*>(to) + begin_of_head + own * row, row, rows, 0, p.head_size);
    } else {
      write_rows<T, D>(out, q_tile + (own - first) * ROW, static_cast<T*>(to) + begin_of_head + own * row, row, rows, 0, p.head_size);
    }
  }
};

template <class T, uint32_t D>
__device__ inline void forward(const T* q, const T* k, const T* v, void* out, float* lse, const Arrays& arrays, const Problem& p) {
  constexpr uint32_t M = Forward<T, D>::M;
  uint32_t block = p.blocks - 1 - blockIdx.x % p.blocks, rest = blockIdx.x / p.blocks, head = rest % p.heads;
  Sequence sequence = sequence_at(p, arrays, rest / p.heads);
  int32_t first = block * M;
  if (!sequence.sound || first >= sequence.queries) return;
  if (arrays.seen) check_seen(p, arrays, sequence, first, M);
  Forward<T, D>(p, arrays, sequence, head, first).run(q, k, v, out, lse + lse_begin(p, arrays, sequence, head));
}

#define FORWARD(T, D)                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                                \
      attention_forward_##D##_##T(const T* q, const T* k, const T* v, void* out, float* lse, ARRAYS) {                                 \
    forward<T, D>(q, k, v, out, lse, GIVEN);                                                                                           \
  }
