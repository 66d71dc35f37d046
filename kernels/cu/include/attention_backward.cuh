// Attention backward of bf16 and f16 on tensor cores (FlashAttention-2, Dao 2023, arXiv 2307.08691), without float atomics: dQ by
// blocks of queries, dK and dV by blocks of keys, each of which forms the weights anew.
// Contract: kernels/src/attention/mod.rs.
//
// attention_rows: 128 threads, D / 8 a row of out; writes of each log2(e) times its LSE (+inf for -inf, so that its weights are 0), and the
// sum of out dout. attention_queries: p.blocks blocks of M queries for each query head of each sequence. attention_keys: p.blocks
// blocks of N keys and COLUMNS elements for each key/value head; it goes through the query heads of the group one by one. 128
// threads; dynamic shared memory for the tiles. The other side's tiles pass by from the last to the first, two at a time in
// shared memory. Alignment, roundings and zero padding are those of attention_forward.cuh; dS is rounded to T before it meets q and k.
#pragma once
#include "attention_tiles.cuh"

// Of a row of queries, as the kernels below need it.
struct alignas(8) Row {
  float lse, delta;
};

// Rows of a block and of a tile that passes by.
template <uint32_t D> struct QueryTiles;
template <> struct QueryTiles<64> { static constexpr uint32_t M = 128, N = 64; };
template <> struct QueryTiles<128> { static constexpr uint32_t M = 64, N = 32; };
template <> struct QueryTiles<256> { static constexpr uint32_t M = 64, N = 16; };
template <uint32_t D> struct KeyTiles;
template <> struct KeyTiles<64> { static constexpr uint32_t N = 128, M = 32, COLUMNS = 64; };
template <> struct KeyTiles<128> { static constexpr uint32_t N = 64, M = 32, COLUMNS = 128; };
template <> struct KeyTiles<256> { static constexpr uint32_t N = 64, M = 16, COLUMNS = 128; };

// A score of a product, and the derivative of what softcap makes of it.
__device__ inline float capped(const Scoring& scoring, float product, float& derivative) {
  float tanh = tanh_fast(product * scoring.inner);
  derivative = 1.0f - tanh * tanh;
  return scoring.cap * tanh;
}

// Scores of products in units of log2, and their derivatives by them but for the factor.
template <uint32_t I, uint32_t J> __device__ inline void score(const Scoring& scoring, float (&scores)[I][J][4], float (&derivatives)[I][J][4]) {
  if (scoring.inner != 0.0f || scoring.cap > 0.0f) {
    for_elements<I, J>([&](uint32_t i, uint32_t j, uint32_t c, int32_t, int32_t) {
      scores[i][j][c] = capped(scoring, scores[i][j][c], derivatives[i][j][c]);
    });
  } else {
    for_elements<I, J>([&](uint32_t i, uint32_t j, uint32_t c, int32_t, int32_t) {
      scores[i][j][c] *= scoring.factor, derivatives[i][j][c] = 1.0f;
    });
  }
}

// Keeps `bits` of what dropout keeps of `queries` rows of `keys` keys in shared memory, for all warps.
template <uint32_t QUERIES, uint32_t KEYS>
__device__ inline void draw(const Problem& p, uint32_t kept, uint32_t sequence, uint32_t head, uint32_t query, uint32_t key) {
#pragma unroll 1
  for (uint32_t at = threadIdx.x; at < QUERIES * KEYS / 8; at += THREADS) {
    uint32_t bits = kept_of(p, sequence, head, query + at / (KEYS / 8), key / 8 + at % (KEYS / 8));
    asm volatile("st.shared.u8 [%0],%1;" ::"r"(kept + at), "r"(bits) : "memory");
  }
}

// Whether dropout keeps a weight.
template <uint32_t KEYS> __device__ inline bool is_kept(uint32_t kept, uint32_t query, uint32_t key) {
  uint32_t bits;
  asm volatile("ld.shared.u8 %0,[%1];" : "=r"(bits) : "r"(kept + query * (KEYS / 8) + key / 8) : "memory");
  return bits >> key % 8 & 1;
}

template <class T, uint32_t D> struct QueryGradient {
  static constexpr uint32_t M = QueryTiles<D>::M, N = QueryTiles<D>::N, I = M / WARPS / 16, J = N / 8;
  // A tile with masks or more goes in parts.
  static constexpr uint32_t PART = N > 16 ? N / 2 : N, PARTS = N / PART;
  static constexpr uint32_t ROW = 2 * D, TILE = N * ROW;

  const Problem& p;
  Sequence sequence;
  Visible visible;
  Scoring scoring;
  uint32_t head;
  int32_t first, own;
  // Shared memory; keys and values twice, `stage` bytes apart.
  uint32_t q_tile, dout_tile, k_tile, v_tile, kept, stage;
  uint32_t q_lane, dout_lane;
  float dq[I][D / 8][4];
  Row rows[I][2];

  __device__ QueryGradient(const Problem& p, const Arrays& arrays, const Sequence& of, uint32_t head, int32_t first)
      : p(p), sequence(of), visible(p, arrays, of), scoring(p, arrays, head), head(head), first(first), stage(0) {
    extern __shared__ __align__(128) unsigned char shared[];
    q_tile = shared_address(shared);
    dout_tile = q_tile + M * ROW, k_tile = dout_tile + M * ROW, v_tile = k_tile + 2 * TILE, kept = v_tile + 2 * TILE;
    uint32_t warp = threadIdx.x / 32;
    own = first + warp * (16 * I);
    q_lane = lane_as_a<D>(q_tile) + warp * (16 * I * ROW);
    dout_lane = lane_as_a<D>(dout_tile) + warp * (16 * I * ROW);
  }

  // Waits for a tile, and begins to copy the one before it.
  __device__ void pass(bool last, Copier<D>& k, Copier<D>& v) {
    copy_wait<0>();
    // It is there, and everybody has used the one that the next copy overwrites.
    __syncthreads();
    uint32_t other = TILE - stage;
    if (!last) k.template copy_before<N>(k_tile + other), v.template copy_before<N>(v_tile + other);
    copy_commit();
  }

  // A tile of keys that every query sees the whole of, where a score is a product and a factor.
  __device__ void plain_tile(bool last, Copier<D>& k, Copier<D>& v) {
    pass(last, k, v);
    float scores[I][J][4], dweights[I][J][4];
    clear(scores), clear(dweights);
    multiply_rows<T, D>(scores, q_lane, lane_as_b<D>(k_tile) + stage);
    multiply_rows<T, D>(dweights, dout_lane, lane_as_b<D>(v_tile) + stage);
    for_elements<I, J>([&](uint32_t i, uint32_t j, uint32_t c, int32_t, int32_t) {
      float weight = exp2_fast(fmaf(scores[i][j][c], p.factor, -rows[i][c / 2].lse));
      dweights[i][j][c] = weight * (dweights[i][j][c] - rows[i][c / 2].delta);
    });
    multiply_weights<T, D>(dq, dweights, lane_as_a<D>(k_tile) + stage);
    stage = TILE - stage;
  }

  // Any tile.
  __device__ void tile(int32_t key, bool last, Copier<D>& k, Copier<D>& v) {
    pass(last, k, v);
    if (p.threshold) {
      draw<M, N>(p, kept, sequence.index, head, first, key);
      __syncthreads();
    }
#pragma unroll 1
    for (uint32_t part = 0; part < PARTS; part++) {
      uint32_t begin = stage + part * (PART * ROW);
      float scores[I][PART / 8][4], dweights[I][PART / 8][4];
      clear(scores), clear(dweights);
      multiply_rows<T, D>(scores, q_lane, lane_as_b<D>(k_tile) + begin);
      multiply_rows<T, D>(dweights, dout_lane, lane_as_b<D>(v_tile) + begin);
      gradient(scores, dweights, key + part * PART, part * PART);
      multiply_weights<T, D>(dq, dweights, lane_as_a<D>(k_tile) + begin);
    }
    stage = TILE - stage;
  }

  // The scores' gradients of weights' gradients, for keys from `key` on, which are `before` keys into the tile.
  __device__ void gradient(float (&scores)[I][PART / 8][4], float (&dweights)[I][PART / 8][4], int32_t key, uint32_t before) {
    float derivatives[I][PART / 8][4];
    score(scoring, scores, derivatives);
    if (p.threshold) {
      for_elements<I, PART / 8>([&](uint32_t i, uint32_t j, uint32_t c, int32_t row, int32_t column) {
        bool keep = is_kept<N>(kept, own - first + row, before + column);
        dweights[i][j][c] = keep ? dweights[i][j][c] * p.kept : 0.0f;
      });
    }
    int32_t beside = int32_t(visible.beside(own) - key), lows[I][2], highs[I][2];
#pragma unroll
    for (uint32_t i = 0; i < I; i++) {
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        int32_t query = own + 16 * i + 8 * half + threadIdx.x % 32 / 4;
        query = min(query, sequence.queries - 1);
        lows[i][half] = visible.low(query) - key, highs[i][half] = visible.high(query) - key;
      }
    }
    for_elements<I, PART / 8>([&](uint32_t i, uint32_t j, uint32_t c, int32_t row, int32_t column) {
      float score = scores[i][j][c] - scoring.slope * float(abs(beside + row - column));
      float weight = exp2_fast(score - rows[i][c / 2].lse);
      float of = weight * (dweights[i][j][c] - rows[i][c / 2].delta) * derivatives[i][j][c];
      dweights[i][j][c] = column < lows[i][c / 2] || column >= highs[i][c / 2] ? 0.0f : of;
    });
  }

  __device__ void run(const T* q, const T* k, const T* v, const T* dout, const Row* saved, void* to) {
    uint32_t kv_head = head / (p.heads / p.kv_heads);
    size_t row = size_t(p.heads) * p.head_size, token = sequence.query_begin + first;
    k += sequence.key_begin * p.k_row + kv_head * p.head_size;
    v += sequence.key_begin * p.v_row + kv_head * p.head_size;
    int32_t end = min(first + int32_t(M), sequence.queries) - 1;
    int32_t low = visible.low(first), high = visible.high(end);
    clear(dq);
    if (low < high) {
#pragma unroll
      for (uint32_t i = 0; i < I; i++) {
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
          int32_t query = own + 16 * i + 8 * half + threadIdx.x % 32 / 4;
          // Rows behind the last query are like it; nobody writes them.
          rows[i][half] = saved[min(query, end)];
        }
      }
      Copier<D> keys(k, p.k_row, p.head_size), values(v, p.v_row, p.head_size);
      Copier<D>(q + token * p.q_row + head * p.head_size, p.q_row, p.head_size).template copy<M>(q_tile, sequence.queries - first);
      Copier<D>(dout + token * row + head * p.head_size, row, p.head_size).template copy<M>(dout_tile, sequence.queries - first);
      int32_t at = (high - 1) / int32_t(N), last = low / int32_t(N);
      int32_t plain_low = (visible.low(end) + int32_t(N) - 1) / int32_t(N), plain_high = visible.high(first) / int32_t(N);
      if (p.factor <= 0.0f) plain_high = 0;
      keys.start(at * N), values.start(at * N);
      keys.template copy<N>(k_tile, sequence.keys - at * N);
      values.template copy<N>(v_tile, sequence.keys - at * N);
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
    for_elements<I, D / 8>([&](uint32_t i, uint32_t j, uint32_t c, int32_t, int32_t) { dq[i][j][c] *= p.scale; });
    // The warp has read what it overwrites.
    __syncwarp();
    int32_t there = sequence.queries - own;
    size_t stride = p.onto ? row : p.dq_row, begin = (sequence.query_begin + own) * stride + head * p.head_size;
    if (p.onto) write_sums<D, true>(dq, static_cast<float*>(to) + begin, stride, there, 0, p.head_size);
    else write_rows<T, D>(dq, q_tile + (own - first) * ROW, static_cast<T*>(to) + begin, stride, there, 0, p.head_size);
  }
};

template <class T, uint32_t D> struct KeyGradient {
  static constexpr uint32_t N = KeyTiles<D>::N, M = KeyTiles<D>::M, COLUMNS = KeyTiles<D>::COLUMNS, I = N / WARPS / 16, J = M / 8;
  // A tile with masks or more goes in parts.
  static constexpr uint32_t PART = 16, PARTS = M / PART;
  static constexpr uint32_t ROW = 2 * D, TILE = M * ROW;

  const Problem& p;
  Sequence sequence;
  Visible visible;
  uint32_t kv_head;
  // The block's first key and element, and the warp's first key.
  int32_t first, own;
  uint32_t column;
  // Shared memory; queries, gradients and rows twice.
  uint32_t k_tile, v_tile, q_tile, dout_tile, row_tile, kept, stage;
  uint32_t k_lane, v_lane;
  float dk[I][COLUMNS / 8][4], dv[I][COLUMNS / 8][4];

  __device__ KeyGradient(const Problem& p, const Arrays& arrays, const Sequence& of, uint32_t kv_head, int32_t first, uint32_t column)
      : p(p), sequence(of), visible(p, arrays, of), kv_head(kv_head), first(first), column(column), stage(0) {
    extern __shared__ __align__(128) unsigned char shared[];
    k_tile = shared_address(shared);
    v_tile = k_tile + N * ROW, q_tile = v_tile + N * ROW, dout_tile = q_tile + 2 * TILE, row_tile = dout_tile + 2 * TILE;
    kept = row_tile + 2 * M * sizeof(Row);
    uint32_t warp = threadIdx.x / 32;
    own = first + warp * (16 * I);
    k_lane = lane_as_a<D>(k_tile) + warp * (16 * I * ROW);
    v_lane = lane_as_a<D>(v_tile) + warp * (16 * I * ROW);
  }

  // Begins to copy the rows of queries from `query` on.
  __device__ void copy_rows(uint32_t stage, const Row* saved, int32_t query) {
    if (threadIdx.x >= M) return;
    bool there = query + int32_t(threadIdx.x) < sequence.queries;
    copy_8(row_tile + (stage ? M * sizeof(Row) : 0) + threadIdx.x * sizeof(Row), saved + (there ? query + threadIdx.x : 0), there ? 8 : 0);
  }

  // Waits for the tile at `query`, and begins to copy the one before it.
  __device__ void pass(int32_t query, bool last, Copier<D>& q, Copier<D>& dout, const Row* saved) {
    copy_wait<0>();
    // It is there, and everybody has used the one that the next copy overwrites.
    __syncthreads();
    uint32_t other = TILE - stage;
    if (!last) {
      q.template copy_before<M>(q_tile + other), dout.template copy_before<M>(dout_tile + other);
      copy_rows(other, saved, query - M);
    }
    copy_commit();
  }

  // The rows of this lane's two queries of a column of fragments.
  __device__ void rows_of(Row (&rows)[2], uint32_t query) const {
    uint32_t at = row_tile + (stage ? M * sizeof(Row) : 0) + (query + threadIdx.x % 4 * 2) * sizeof(Row);
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3},[%4];"
                 : "=f"(rows[0].lse), "=f"(rows[0].delta), "=f"(rows[1].lse), "=f"(rows[1].delta)
                 : "r"(at)
                 : "memory");
  }

  // A tile of queries each of which sees all keys of the block, where a score is a product and a factor.
  __device__ void plain_tile(int32_t query, bool last, Copier<D>& q, Copier<D>& dout, const Row* saved) {
    pass(query, last, q, dout, saved);
    float weights[I][J][4], dweights[I][J][4];
    clear(weights), clear(dweights);
    multiply_rows<T, D>(weights, k_lane, lane_as_b<D>(q_tile) + stage);
    multiply_rows<T, D>(dweights, v_lane, lane_as_b<D>(dout_tile) + stage);
#pragma unroll
    for (uint32_t j = 0; j < J; j++) {
      Row rows[2];
      rows_of(rows, 8 * j);
#pragma unroll
      for (uint32_t i = 0; i < I; i++) {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
          weights[i][j][c] = exp2_fast(fmaf(weights[i][j][c], p.factor, -rows[c % 2].lse));
          dweights[i][j][c] = weights[i][j][c] * (dweights[i][j][c] - rows[c % 2].delta);
        }
      }
    }
    multiply_weights<T, D>(dv, weights, lane_as_a<D>(dout_tile) + stage, column / 8);
    multiply_weights<T, D>(dk, dweights, lane_as_a<D>(q_tile) + stage, column / 8);
    stage = TILE - stage;
  }

  // Any tile.
  __device__ void tile(int32_t query, bool last, Copier<D>& q, Copier<D>& dout, const Row* saved, const Scoring& scoring, uint32_t head) {
    pass(query, last, q, dout, saved);
    if (p.threshold) {
      draw<M, N>(p, kept, sequence.index, head, query, first);
      __syncthreads();
    }
#pragma unroll 1
    for (uint32_t part = 0; part < PARTS; part++) {
      uint32_t begin = stage + part * (PART * ROW);
      float weights[I][PART / 8][4], dweights[I][PART / 8][4];
      clear(weights), clear(dweights);
      multiply_rows<T, D>(weights, k_lane, lane_as_b<D>(q_tile) + begin);
      multiply_rows<T, D>(dweights, v_lane, lane_as_b<D>(dout_tile) + begin);
      gradient(weights, dweights, scoring, query, part * PART);
      multiply_weights<T, D>(dv, weights, lane_as_a<D>(dout_tile) + begin, column / 8);
      multiply_weights<T, D>(dk, dweights, lane_as_a<D>(q_tile) + begin, column / 8);
    }
    stage = TILE - stage;
  }

  // Weights of scores and the scores' gradients, for queries from `before` on of the tile at `tile`.
  __device__ void gradient(float (&weights)[I][PART / 8][4], float (&dweights)[I][PART / 8][4], const Scoring& scoring, int32_t tile, int32_t before) {
    float derivatives[I][PART / 8][4];
    score(scoring, weights, derivatives);
#pragma unroll
    for (uint32_t j = 0; j < PART / 8; j++) {
      Row rows[2];
      rows_of(rows, before + 8 * j);
#pragma unroll
      for (uint32_t side = 0; side < 2; side++) {
        int32_t at = before + 8 * j + threadIdx.x % 4 * 2 + side, query = tile + at;
        int32_t low = visible.low(query), high = query < sequence.queries ? visible.high(query) : 0;
        int32_t beside = int32_t(visible.beside(query));
#pragma unroll
        for (uint32_t i = 0; i < I; i++) {
#pragma unroll
          for (uint32_t half = 0; half < 2; half++) {
            uint32_t c = 2 * half + side;
            int32_t key = own + 16 * i + 8 * half + threadIdx.x % 32 / 4;
            float factor = 1.0f;
            if (p.threshold) factor = is_kept<N>(kept, at, key - first) ? p.kept : 0.0f;
            bool seen = low <= key && key < high;
            float score = weights[i][j][c] - scoring.slope * float(abs(beside - key));
            float weight = seen ? exp2_fast(score - rows[side].lse) : 0.0f;
            float dweight = factor == 0.0f ? 0.0f : dweights[i][j][c] * factor;
            weights[i][j][c] = weight * factor;
            dweights[i][j][c] = seen ? weight * (dweight - rows[side].delta) * derivatives[i][j][c] : 0.0f;
          }
        }
      }
    }
  }

  // All queries of one head.
  __device__ void pass_queries(uint32_t head, const Arrays& arrays, const T* q, const T* dout, const Row* saved, int32_t from, int32_t to) {
    int32_t end = min(first + int32_t(N), sequence.keys);
    size_t row = size_t(p.heads) * p.head_size;
    Scoring scoring(p, arrays, head);
    Copier<D> queries(q + sequence.query_begin * p.q_row + head * p.head_size, p.q_row, p.head_size);
    Copier<D> gradients(dout + sequence.query_begin * row + head * p.head_size, row, p.head_size);
    saved += lse_begin(p, arrays, sequence, head);
    int32_t at = (to - 1) / int32_t(M), last = from / int32_t(M);
    int32_t plain_low = (visible.first_query(end - 1) + int32_t(M) - 1) / int32_t(M), plain_high = visible.last_query(first + 1) / int32_t(M);
    if (p.factor <= 0.0f) plain_high = 0;
    // Whatever head was before has been used by everybody.
    __syncthreads();
    stage = 0;
    queries.start(at * M), gradients.start(at * M);
    queries.template copy<M>(q_tile, sequence.queries - at * M);
    gradients.template copy<M>(dout_tile, sequence.queries - at * M);
    copy_rows(0, saved, at * M);
    copy_commit();
#pragma unroll 1
    for (;;) {
#pragma unroll 1
      for (; at >= plain_low && at < plain_high; at--) plain_tile(at * M, at == last, queries, gradients, saved);
      if (at < last) break;
      tile(at * M, at == last, queries, gradients, saved, scoring, head);
      at--;
    }
  }

  __device__ void run(const T* q, const T* k, const T* v, const T* dout, const Row* saved, const Arrays& arrays, void* dk_to, void* dv_to) {
    clear(dk), clear(dv);
    int32_t from = visible.first_query(first), to = visible.last_query(min(first + int32_t(N), sequence.keys));
    uint32_t group = p.heads / p.kv_heads, rows = sequence.keys - first;
    size_t token = sequence.key_begin + first;
    if (from < to) {
      Copier<D>(k + token * p.k_row + kv_head * p.head_size, p.k_row, p.head_size).template copy<N>(k_tile, rows);
      Copier<D>(v + token * p.v_row + kv_head * p.head_size, p.v_row, p.head_size).template copy<N>(v_tile, rows);
#pragma unroll 1
      for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++) pass_queries(head, arrays, q, dout, saved, from, to);
    }
    for_elements<I, COLUMNS / 8>([&](uint32_t i, uint32_t j, uint32_t c, int32_t, int32_t) { dk[i][j][c] *= p.scale; });
    size_t row = size_t(p.kv_heads) * p.head_size;
    // The warp has read what it overwrites.
    __syncwarp();
    int32_t there = sequence.keys - own;
    token = sequence.key_begin + own;
    uint32_t own_rows = (own - first) * ROW, begin = kv_head * p.head_size;
    if (p.onto) {
      write_sums<D, true>(dk, static_cast<float*>(dk_to) + token * row + begin, row, there, column, p.head_size);
      write_sums<D, true>(dv, static_cast<float*>(dv_to) + token * row + begin, row, there, column, p.head_size);
    } else {
      write_rows<T, D>(dk, k_tile + own_rows, static_cast<T*>(dk_to) + token * p.dk_row + begin, p.dk_row, there, column, p.head_size);
      write_rows<T, D>(dv, v_tile + own_rows, static_cast<T*>(dv_to) + token * p.dv_row + begin, p.dv_row, there, column, p.head_size);
    }
  }
};

// Of each row of out its LSE and the sum of out dout: D / 8 threads a row, 8 elements each.
template <class T, uint32_t D>
__device__ inline void rows(const T* out, const T* dout, const float* lse, Row* to, const Problem& p, bool starts, uint32_t all) {
  constexpr uint32_t LANES = D / 8;
  uint32_t chunk = threadIdx.x % LANES;
  uint32_t row = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
  bool there = row < all * p.heads;
  float sum = 0.0f;
  if (there && chunk * 8 < p.head_size) {
    size_t at = size_t(row) * p.head_size + chunk * 8;
    auto a = load<8>(out + at), b = load<8>(dout + at);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) sum = fmaf(to_f32(a.of[i]), to_f32(b.of[i]), sum);
  }
#pragma unroll
  for (uint32_t other = LANES / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
  if (!there || chunk) return;
  uint32_t at = row_of_lse(p, starts, all, row);
  float of = lse[at];
  to[at] = {of == -INFINITY ? INFINITY : of * LOG2_E, sum};
}

template <class T, uint32_t D>
__device__ inline void queries(const T* q, const T* k, const T* v, const T* dout, const Row* saved, void* dq, const Arrays& arrays, const Problem& p) {
  uint32_t block = p.blocks - 1 - blockIdx.x % p.blocks, rest = blockIdx.x / p.blocks, head = rest % p.heads;
  Sequence sequence = sequence_at(p, arrays, rest / p.heads);
  int32_t first = block * QueryTiles<D>::M;
  if (!sequence.sound || first >= sequence.queries) return;
  QueryGradient<T, D>(p, arrays, sequence, head, first).run(q, k, v, dout, saved + lse_begin(p, arrays, sequence, head), dq);
}

template <class T, uint32_t D>
__device__ inline void keys(const T* q, const T* k, const T* v, const T* dout, const Row* saved, void* dk, void* dv, const Arrays& arrays, const Problem& p) {
  constexpr uint32_t PARTS = D / KeyTiles<D>::COLUMNS;
  uint32_t block = blockIdx.x % p.blocks, rest = blockIdx.x / p.blocks, kv_head = rest % p.kv_heads;
  Sequence sequence = sequence_at(p, arrays, rest / p.kv_heads);
  int32_t first = block / PARTS * KeyTiles<D>::N;
  uint32_t column = block % PARTS * KeyTiles<D>::COLUMNS;
  if (!sequence.sound || first >= sequence.keys) return;
  KeyGradient<T, D>(p, arrays, sequence, kv_head, first, column).run(q, k, v, dout, saved, arrays, dk, dv);
}

#define BACKWARD(T, D)                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                                \
      attention_rows_##D##_##T(const T* out, const T* dout, const float* lse, Row* to, uint32_t starts, uint32_t all,                  \
                               const __grid_constant__ Problem p) {                                                                    \
    rows<T, D>(out, dout, lse, to, p, starts, all);                                                                                    \
  }                                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                                \
      attention_queries_##D##_##T(const T* q, const T* k, const T* v, const T* dout, const Row* saved, void* dq, ARRAYS) {             \
    queries<T, D>(q, k, v, dout, saved, dq, GIVEN);                                                                                    \
  }                                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                                \
      attention_keys_##D##_##T(const T* q, const T* k, const T* v, const T* dout, const Row* saved, void* dk, void* dv, ARRAYS) {      \
    keys<T, D>(q, k, v, dout, saved, dk, dv, GIVEN);                                                                                   \
  }
