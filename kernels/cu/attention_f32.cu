// Attention of f32 in f32, forward and backward: products are fused multiply-adds one after another. No float atomics.
// Contract: kernels/src/attention/mod.rs.
//
// Launch: 128 threads a block; dynamic shared memory for the tiles. A block has ROWS rows of one side (queries in
// attention_forward and attention_queries, keys in attention_keys); tiles of the other side's rows pass by in ascending order, two
// products of a row and a column by threads that have two rows and every eighth column. W (128 or 256) is the head size or more; elements
// beyond it are zero in shared memory. A thread whose row is beyond the last one repeats that, and writes nothing. All arrays
// begin at multiples of 16 bytes, rows are multiples of 8 elements.
// attention_rows: a warp has a row of out; writes its LSE (+inf for -inf, so that its weights are 0), and the sum of out dout.
#include "attention.cuh"
#include "mma.cuh"

constexpr uint32_t THREADS = 128, ROWS = 32;

struct alignas(8) Row {
  float lse, delta;
};

// A query that passes by, and the keys that it sees.
struct alignas(16) Passing {
  Row row;
  int32_t low, high;
};

// The elements that every head has.
template <uint32_t W> constexpr uint32_t SURE = W == 256 ? 128 : 0;

// Shared memory and this thread's place in it. Rows are 16 bytes longer than they need be: eight neighbours lie in different banks.
// Of four neighbouring rows of weights the same eight columns do.
template <uint32_t W> struct Block {
  static constexpr uint32_t TILE = W == 256 ? 8 : 32, J = TILE / 8, STRIDE = W + 4, WEIGHTS = TILE == 8 ? 8 : TILE + 8;
  // Two arrays of each side, weights and their gradients by row, queries that pass by, bits of dropout.
  float *own[2], *tile[2], *weights[2];
  Passing* passing;
  uint8_t* kept;
  uint32_t row, column;

  __device__ Block() {
    extern __shared__ __align__(16) unsigned char shared[];
    own[0] = reinterpret_cast<float*>(shared), own[1] = own[0] + ROWS * STRIDE;
    tile[0] = own[1] + ROWS * STRIDE, tile[1] = tile[0] + TILE * STRIDE;
    weights[0] = tile[1] + TILE * STRIDE, weights[1] = weights[0] + ROWS * WEIGHTS;
    passing = reinterpret_cast<Passing*>(weights[1] + ROWS * WEIGHTS);
    kept = reinterpret_cast<uint8_t*>(passing + TILE);
    row = threadIdx.x / 8, column = threadIdx.x % 8;
  }

  // Begins to copy N rows of `size` elements, of which `rows` are there; what is not there is zero.
  template <uint32_t N> __device__ static void copy(float* to, const float* from, size_t stride, uint32_t size, int32_t rows) {
#pragma unroll 1
    for (uint32_t turn = 0; turn < N * (W / 4) / THREADS; turn++) {
      uint32_t at = turn * THREADS + threadIdx.x, row = at / (W / 4), element = at % (W / 4) * 4;
      bool there = int32_t(row) < rows && element < size;
      copy_16(shared_address(to + row * STRIDE + element), from + row * stride + element, there ? 16 : 0);
    }
  }

  // This thread's element of weights at its `i`-th row and `j`-th column.
  __device__ float& element(float* weights, uint32_t i, uint32_t j) const { return weights[(row + 16 * i) * WEIGHTS + column + 8 * j]; }

  // Products of this thread's rows and columns, to its elements of `to`.
  __device__ void dots(float* to, const float* a, const float* b, uint32_t size) const {
    float sums[2][J];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
#pragma unroll
      for (uint32_t j = 0; j < J; j++) sums[i][j] = 0.0f;
    a += row * STRIDE, b += column * STRIDE;
    uint32_t d = 0;
#pragma unroll 1
    do {
      Run<float, 4> left[2] = {load<4>(a + d), load<4>(a + 16 * STRIDE + d)};
#pragma unroll
      for (uint32_t j = 0; j < J; j++) {
        auto right = load<4>(b + 8 * j * STRIDE + d);
#pragma unroll
        for (uint32_t e = 0; e < 4; e++)
#pragma unroll
          for (uint32_t i = 0; i < 2; i++) sums[i][j] = fmaf(left[i].of[e], right.of[e], sums[i][j]);
      }
    } while ((d += 4) < size);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
#pragma unroll
      for (uint32_t j = 0; j < J; j++) element(to, i, j) = sums[i][j];
  }

  // sums += this thread's rows of weights times the tile's rows, every eighth run of four elements.
  __device__ void gather(float (&sums)[2][W / 32][4], const float* weights, const float* b, uint32_t size) const {
#pragma unroll 2
    for (uint32_t at = 0; at < TILE; at++) {
      float of[2] = {weights[row * WEIGHTS + at], weights[(row + 16) * WEIGHTS + at]};
#pragma unroll
      for (uint32_t c = 0; c < W / 32; c++) {
        if (32 * c > SURE<W> && size < 32 * c + 8) break;
        auto right = load<4>(b + at * STRIDE + (column + 8 * c) * 4);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
#pragma unroll
          for (uint32_t e = 0; e < 4; e++) sums[i][c][e] = fmaf(of[i], right.of[e], sums[i][c][e]);
      }
    }
  }

  // Bits of what dropout keeps of `queries` queries and KEYS keys.
  template <uint32_t QUERIES, uint32_t KEYS>
  __device__ void draw(const Problem& p, uint32_t sequence, uint32_t head, uint32_t query, uint32_t key) const {
    static_assert(QUERIES * KEYS / 8 <= THREADS);
    uint32_t at = threadIdx.x;
    if (at >= QUERIES * KEYS / 8) return;
    kept[at] = kept_of(p, sequence, head, query + at / (KEYS / 8), key / 8 + at % (KEYS / 8));
  }

  template <uint32_t KEYS> __device__ bool is_kept(uint32_t query, uint32_t key) const {
    return kept[query * (KEYS / 8) + key / 8] >> key % 8 & 1;
  }
};

template <uint32_t W> __device__ inline void clear(float (&sums)[2][W / 32][4]) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++)
#pragma unroll
    for (uint32_t c = 0; c < W / 32; c++)
#pragma unroll
      for (uint32_t e = 0; e < 4; e++) sums[i][c][e] = 0.0f;
}

// Writes sums times `factor`, or adds them to what is there.
template <uint32_t W>
__device__ inline void write(const float (&sums)[2][W / 32][4], const float (&factor)[2], float* to, size_t stride, int32_t rows, uint32_t size, bool add) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    int32_t row = threadIdx.x / 8 + 16 * i;
    if (row >= rows) continue;
#pragma unroll
    for (uint32_t c = 0; c < W / 32; c++) {
      uint32_t element = (threadIdx.x % 8 + 8 * c) * 4;
      if (32 * (c + 1) > SURE<W> && element >= size) continue;
      float* at = to + row * stride + element;
      Run<float, 4> run = {};
      if (add) run = load<4>(at);
#pragma unroll
      for (uint32_t e = 0; e < 4; e++) run.of[e] = fmaf(sums[i][c][e], factor[i], run.of[e]);
      store(at, run);
    }
  }
}

// A score of a product, with the derivative of what softcap makes of it.
__device__ inline float score_of(const Problem& p, float slope, float product, int64_t distance, float& derivative) {
  float score = product * p.scale;
  derivative = 1.0f;
  if (p.softcap > 0.0f) {
    float tanh = tanhf(score / p.softcap);
    score = p.softcap * tanh, derivative = 1.0f - tanh * tanh;
  }
  return score - slope * float(abs(distance));
}

template <uint32_t W>
__device__ inline void forward(const float* q, const float* k, const float* v, float* out, float* lse, const Arrays& arrays, const Problem& p) {
  constexpr uint32_t TILE = Block<W>::TILE, J = Block<W>::J;
  uint32_t block = p.blocks - 1 - blockIdx.x % p.blocks, rest = blockIdx.x / p.blocks, head = rest % p.heads, kv_head = head / (p.heads / p.kv_heads);
  Sequence sequence = sequence_at(p, arrays, rest / p.heads);
  int32_t first = block * ROWS;
  if (!sequence.sound || first >= sequence.queries) return;
  if (arrays.seen) check_seen(p, arrays, sequence, first, ROWS);
  Block<W> at;
  Visible visible(p, arrays, sequence);
  float slope = arrays.slopes ? arrays.slopes[head] : 0.0f;
  size_t row = size_t(p.heads) * p.head_size;
  out += (sequence.query_begin + first) * row + head * p.head_size;
  lse += lse_begin(p, arrays, sequence, head);
  k += sequence.key_begin * p.k_row + kv_head * p.head_size, v += sequence.key_begin * p.v_row + kv_head * p.head_size;
  float sums[2][W / 32][4], largest[2], sum[2];
  int32_t lows[2], highs[2];
  clear<W>(sums);
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    int32_t query = min(first + at.row + 16 * i, sequence.queries - 1);
    lows[i] = visible.low(query), highs[i] = visible.high(query);
  }
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    int32_t query = min(first + at.row + 16 * i, sequence.queries - 1);
    largest[i] = p.onto ? lse[query] : -INFINITY, sum[i] = 0.0f;
    if (largest[i] == -INFINITY) continue;
    // One lane of the eight has what there is.
    sum[i] = at.column == 0 ? 1.0f : 0.0f;
#pragma unroll
    for (uint32_t c = 0; c < W / 32; c++) {
      uint32_t element = (at.column + 8 * c) * 4;
      if (32 * (c + 1) > SURE<W> && element >= p.head_size) continue;
      auto run = load<4>(out + (query - first) * row + element);
#pragma unroll
      for (uint32_t e = 0; e < 4; e++) sums[i][c][e] = run.of[e];
    }
  }
  int32_t begin = uint32_t(visible.low(first)) / TILE * TILE, end = visible.high(min(first + int32_t(ROWS), sequence.queries) - 1);
  if (begin < end) {
    at.template copy<ROWS>(at.own[0], q + (sequence.query_begin + first) * p.q_row + head * p.head_size, p.q_row, p.head_size, sequence.queries - first);
  }
#pragma unroll 1
  for (int32_t key = begin; key < end; key += TILE) {
    // Everybody has used the tile before.
    __syncthreads();
    at.template copy<TILE>(at.tile[0], k + size_t(key) * p.k_row, p.k_row, p.head_size, sequence.keys - key);
    at.template copy<TILE>(at.tile[1], v + size_t(key) * p.v_row, p.v_row, p.head_size, sequence.keys - key);
    copy_commit();
    if (p.threshold) at.template draw<ROWS, TILE>(p, sequence.index, head, first, key);
    copy_wait<0>();
    __syncthreads();
    at.dots(at.weights[0], at.own[0], at.tile[0], p.head_size);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      float most = largest[i];
      int64_t beside = visible.beside(first + at.row + 16 * i);
#pragma unroll 1
      for (uint32_t j = 0; j < J; j++) {
        int32_t column = key + at.column + 8 * j;
        float derivative, &score = at.element(at.weights[0], i, j);
        score = lows[i] <= column && column < highs[i] ? score_of(p, slope, score, beside - column, derivative) : -INFINITY;
        most = fmaxf(most, score);
      }
#pragma unroll
      for (int lanes = 1; lanes < 8; lanes *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
      // -inf less -inf would be NaN.
      float shift = most == -INFINITY ? 0.0f : most, shrink = expf(largest[i] - shift);
      largest[i] = most, sum[i] *= shrink;
#pragma unroll
      for (uint32_t c = 0; c < W / 32; c++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) sums[i][c][e] *= shrink;
#pragma unroll 1
      for (uint32_t j = 0; j < J; j++) {
        float& weight = at.element(at.weights[0], i, j);
        weight = expf(weight - shift);
        sum[i] += weight;
        if (p.threshold && !at.template is_kept<TILE>(at.row + 16 * i, at.column + 8 * j)) weight = 0.0f;
      }
    }
    // Only this warp has these rows.
    __syncwarp();
    at.gather(sums, at.weights[0], at.tile[1], p.head_size);
  }
  // Where there was no tile, others may yet be reading what is written here.
  __syncthreads();
  float factor[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], lanes);
    factor[i] = sum[i] == 0.0f ? 0.0f : p.kept / sum[i];
    int32_t query = first + at.row + 16 * i;
    if (at.column == 0 && query < sequence.queries) lse[query] = largest[i] + logf(sum[i]);
  }
  write<W>(sums, factor, out, row, sequence.queries - first, p.head_size, false);
}

// Weights after dropout, and the gradients of scores, of products and dout v.
struct Gradient {
  float weight, score;
};

__device__ inline Gradient gradient(const Problem& p, float slope, float product, float dweight, Row row, int64_t distance, bool seen, bool kept) {
  if (!seen) return {0.0f, 0.0f};
  float derivative, weight = expf(score_of(p, slope, product, distance, derivative) - row.lse);
  float factor = kept ? p.kept : 0.0f;
  return {weight * factor, weight * ((kept ? dweight * factor : 0.0f) - row.delta) * derivative};
}

template <uint32_t W>
__device__ inline void queries(const float* q, const float* k, const float* v, const float* dout, const Row* saved, float* dq, const Arrays& arrays, const Problem& p) {
  constexpr uint32_t TILE = Block<W>::TILE, J = Block<W>::J;
  uint32_t block = p.blocks - 1 - blockIdx.x % p.blocks, rest = blockIdx.x / p.blocks, head = rest % p.heads, kv_head = head / (p.heads / p.kv_heads);
  Sequence sequence = sequence_at(p, arrays, rest / p.heads);
  int32_t first = block * ROWS, there = sequence.queries - first;
  if (!sequence.sound || there <= 0) return;
  Block<W> at;
  Visible visible(p, arrays, sequence);
  float slope = arrays.slopes ? arrays.slopes[head] : 0.0f;
  size_t row = size_t(p.heads) * p.head_size, token = sequence.query_begin + first;
  saved += lse_begin(p, arrays, sequence, head);
  k += sequence.key_begin * p.k_row + kv_head * p.head_size, v += sequence.key_begin * p.v_row + kv_head * p.head_size;
  float sums[2][W / 32][4];
  clear<W>(sums);
  int32_t lows[2], highs[2];
  Row rows[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    int32_t query = min(first + at.row + 16 * i, sequence.queries - 1);
    lows[i] = visible.low(query), highs[i] = visible.high(query);
    rows[i] = saved[query];
  }
  int32_t begin = uint32_t(visible.low(first)) / TILE * TILE, end = visible.high(min(first + int32_t(ROWS), sequence.queries) - 1);
  if (begin < end) {
    at.template copy<ROWS>(at.own[0], q + token * p.q_row + head * p.head_size, p.q_row, p.head_size, there);
    at.template copy<ROWS>(at.own[1], dout + token * row + head * p.head_size, row, p.head_size, there);
  }
#pragma unroll 1
  for (int32_t key = begin; key < end; key += TILE) {
    // Everybody has used the tile before.
    __syncthreads();
    at.template copy<TILE>(at.tile[0], k + size_t(key) * p.k_row, p.k_row, p.head_size, sequence.keys - key);
    at.template copy<TILE>(at.tile[1], v + size_t(key) * p.v_row, p.v_row, p.head_size, sequence.keys - key);
    copy_commit();
    if (p.threshold) at.template draw<ROWS, TILE>(p, sequence.index, head, first, key);
    copy_wait<0>();
    __syncthreads();
    at.dots(at.weights[0], at.own[0], at.tile[0], p.head_size);
    at.dots(at.weights[1], at.own[1], at.tile[1], p.head_size);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
#pragma unroll 1
      for (uint32_t j = 0; j < J; j++) {
        int32_t column = key + at.column + 8 * j;
        bool seen = lows[i] <= column && column < highs[i];
        bool kept = !p.threshold || at.template is_kept<TILE>(at.row + 16 * i, at.column + 8 * j);
        float &score = at.element(at.weights[0], i, j), dweight = at.element(at.weights[1], i, j);
        score = gradient(p, slope, score, dweight, rows[i], visible.beside(first + at.row + 16 * i) - column, seen, kept).score;
      }
    }
    // Only this warp has these rows.
    __syncwarp();
    at.gather(sums, at.weights[0], at.tile[0], p.head_size);
  }
  size_t stride = p.onto ? row : p.dq_row;
  write<W>(sums, {p.scale, p.scale}, dq + token * stride + head * p.head_size, stride, there, p.head_size, p.onto);
}

template <uint32_t W>
__device__ inline void keys(const float* q, const float* k, const float* v, const float* dout, const Row* saved, float* dk, float* dv, const Arrays& arrays, const Problem& p) {
  constexpr uint32_t TILE = Block<W>::TILE, J = Block<W>::J;
  uint32_t block = blockIdx.x % p.blocks, rest = blockIdx.x / p.blocks, kv_head = rest % p.kv_heads, group = p.heads / p.kv_heads;
  Sequence sequence = sequence_at(p, arrays, rest / p.kv_heads);
  int32_t first = block * ROWS, there = sequence.keys - first;
  if (!sequence.sound || there <= 0) return;
  Block<W> at;
  Visible visible(p, arrays, sequence);
  size_t row = size_t(p.heads) * p.head_size, token = sequence.key_begin + first;
  float dks[2][W / 32][4], dvs[2][W / 32][4];
  clear<W>(dks), clear<W>(dvs);
  int32_t from = uint32_t(visible.first_query(first)) / TILE * TILE, to = visible.last_query(min(first + int32_t(ROWS), sequence.keys));
  if (from < to) {
    at.template copy<ROWS>(at.own[0], k + token * p.k_row + kv_head * p.head_size, p.k_row, p.head_size, there);
    at.template copy<ROWS>(at.own[1], v + token * p.v_row + kv_head * p.head_size, p.v_row, p.head_size, there);
  }
  uint32_t head = kv_head * group;
#pragma unroll 1
  do {
    float slope = arrays.slopes ? arrays.slopes[head] : 0.0f;
    const float* q_head = q + sequence.query_begin * p.q_row + head * p.head_size;
    const float* dout_head = dout + sequence.query_begin * row + head * p.head_size;
    const Row* of = saved + lse_begin(p, arrays, sequence, head);
#pragma unroll 1
    for (int32_t query = from; query < to; query += TILE) {
      // Everybody has used the tile before.
      __syncthreads();
      at.template copy<TILE>(at.tile[0], q_head + size_t(query) * p.q_row, p.q_row, p.head_size, sequence.queries - query);
      at.template copy<TILE>(at.tile[1], dout_head + size_t(query) * row, row, p.head_size, sequence.queries - query);
      copy_commit();
      if (threadIdx.x < TILE) {
        int32_t passing = query + threadIdx.x;
        at.passing[threadIdx.x] = passing < sequence.queries ? Passing{of[passing], visible.low(passing), visible.high(passing)} : Passing{};
      }
      if (p.threshold) at.template draw<TILE, ROWS>(p, sequence.index, head, query, first);
      copy_wait<0>();
      __syncthreads();
      at.dots(at.weights[0], at.own[0], at.tile[0], p.head_size);
      at.dots(at.weights[1], at.own[1], at.tile[1], p.head_size);
#pragma unroll 1
      for (uint32_t j = 0; j < J; j++) {
        uint32_t column = at.column + 8 * j;
        Passing passing = at.passing[column];
        int64_t beside = visible.beside(query + column);
#pragma unroll 1
        for (uint32_t i = 0; i < 2; i++) {
          int32_t key = first + at.row + 16 * i;
          bool kept = !p.threshold || at.template is_kept<ROWS>(column, at.row + 16 * i);
          float &weight = at.element(at.weights[0], i, j), &dweight = at.element(at.weights[1], i, j);
          bool seen = passing.low <= key && key < passing.high;
          Gradient both = gradient(p, slope, weight, dweight, passing.row, beside - key, seen, kept);
          weight = both.weight, dweight = both.score;
        }
      }
      // Only this warp has these rows.
      __syncwarp();
      at.gather(dvs, at.weights[0], at.tile[1], p.head_size);
      at.gather(dks, at.weights[1], at.tile[0], p.head_size);
    }
  } while (++head < (kv_head + 1) * group);
  size_t whole = size_t(p.kv_heads) * p.head_size, dk_row = p.onto ? whole : p.dk_row, dv_row = p.onto ? whole : p.dv_row;
  write<W>(dks, {p.scale, p.scale}, dk + token * dk_row + kv_head * p.head_size, dk_row, there, p.head_size, p.onto);
  write<W>(dvs, {1.0f, 1.0f}, dv + token * dv_row + kv_head * p.head_size, dv_row, there, p.head_size, p.onto);
}

// A warp a row of out.
template <uint32_t W>
__device__ inline void rows(const float* out, const float* dout, const float* lse, Row* to, uint32_t starts, uint32_t all, const Problem& p) {
  uint32_t row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  if (row >= all * p.heads) return;
  float sum = 0.0f;
#pragma unroll
  for (uint32_t c = 0; c < W / 128; c++) {
    uint32_t at = threadIdx.x % 32 * 4 + 128 * c;
    if (128 * (c + 1) > SURE<W> && at >= p.head_size) continue;
    auto a = load<4>(out + size_t(row) * p.head_size + at), b = load<4>(dout + size_t(row) * p.head_size + at);
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) sum = fmaf(a.of[e], b.of[e], sum);
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32) return;
  uint32_t at = row_of_lse(p, starts, all, row);
  to[at] = {lse[at] == -INFINITY ? INFINITY : lse[at], sum};
}

// Shared memory lets in no more than two blocks: registers are not short.
#define ENTRIES(W)                                                                                                                     \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                                \
      attention_rows_##W##_f32(const float* out, const float* dout, const float* lse, Row* to, uint32_t starts, uint32_t all,          \
                               const __grid_constant__ Problem p) {                                                                    \
    rows<W>(out, dout, lse, to, starts, all, p);                                                                                          \
  }                                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                                             \
      attention_forward_##W##_f32(const float* q, const float* k, const float* v, float* out, float* lse, ARRAYS) {                    \
    forward<W>(q, k, v, out, lse, GIVEN);                                                                                              \
  }                                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                                             \
      attention_queries_##W##_f32(const float* q, const float* k, const float* v, const float* dout, const Row* saved, float* dq,      \
                                  ARRAYS) {                                                                                            \
    queries<W>(q, k, v, dout, saved, dq, GIVEN);                                                                                       \
  }                                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                                             \
      attention_keys_##W##_f32(const float* q, const float* k, const float* v, const float* dout, const Row* saved, float* dk,         \
                               float* dv, ARRAYS) {                                                                                    \
    keys<W>(q, k, v, dout, saved, dk, dv, GIVEN);                                                                                      \
  }

ENTRIES(128)
ENTRIES(256)
