/* Attention, products and normalisations on any device against plain loops in double.
 *
 * Bounds, with u = 2^-24 and all inputs in [-1, 1): a sum of n products in any order is off by at most n u times the sum of their
 * sizes. A score (D = 8 products, scale 0.354) is off by at most 8 * 8 * 0.354 u < 23 u, so a softmax weight by a factor of
 * 1 + 46 u and an output by 46 u; the exponential, the sum of 5 and the division add a few u: 64 u. Norms: two chained means of 24
 * values, in which the errors of single terms average out, stay under the same 64 u of the largest term, and twice that after the
 * backward pass chains them again.
 */
#include "arrays.h"

#include <math.h>

static const double U = 1.0 / (1 << 24);

static float value(size_t i) { return (float)((i * 37 + 11) % 64) / 32.0f - 1.0f; } /* in [-1, 1), exact */

static void fill(float *x, size_t count, size_t seed) {
  for (size_t i = 0; i < count; i++) x[i] = value(i * 3 + seed);
}

/* ---- attention ---- */

enum { B = 2, TQ = 3, TK = 5, H = 4, G = 2, D = 8 };

typedef struct attention_case {
  float q[B * TQ * H * D], k[B * TK * G * D], v[B * TK * G * D];
  float out[B * TQ * H * D], lse[B * H * TQ];
} attention_case;

static size_t q_at(size_t b, size_t i, size_t h) { return ((b * TQ + i) * H + h) * D; }
static size_t k_at(size_t b, size_t j, size_t h) { return ((b * TK + j) * G + h * G / H) * D; }

/* The definition: bottom-right causal, each head by itself. */
static double reference(const attention_case *c, int causal, double scale, size_t b, size_t h, size_t i, double *out) {
  double weights[TK], top = -INFINITY, sum = 0.0;
  for (size_t j = 0; j < TK; j++) {
    weights[j] = -INFINITY;
    if (causal && j > i + TK - TQ) continue;
    weights[j] = 0.0;
    for (size_t d = 0; d < D; d++) weights[j] += (double)c->q[q_at(b, i, h) + d] * c->k[k_at(b, j, h) + d];
    weights[j] *= scale;
    if (weights[j] > top) top = weights[j];
  }
  for (size_t j = 0; j < TK; j++) sum += exp(weights[j] - top);
  for (size_t d = 0; d < D; d++) {
    out[d] = 0.0;
    for (size_t j = 0; j < TK; j++) out[d] += exp(weights[j] - top) / sum * c->v[k_at(b, j, h) + d];
  }
  return top + log(sum);
}

static double loss(const attention_case *c, int causal, const float *dout) {
  double total = 0.0, row[D];
  for (size_t b = 0; b < B; b++)
    for (size_t h = 0; h < H; h++)
      for (size_t i = 0; i < TQ; i++) {
        reference(c, causal, 1.0 / sqrt((double)D), b, h, i, row);
        for (size_t d = 0; d < D; d++) total += row[d] * dout[q_at(b, i, h) + d];
      }
  return total;
}

/* The derivative of the loss by one entry, from the definition in double: a central difference whose error is h^2 / 6 times a
 * third derivative of order 1, plus the rounding of the loss over h. With h = 2^-10 both stay under 1e-6; moves by h are exact in
 * float. */
static double slope(attention_case *c, int causal, const float *dout, float *entry) {
  const float h = 1.0f / 1024.0f, kept = *entry;
  *entry = kept + h;
  const double up = loss(c, causal, dout);
  *entry = kept - h;
  const double down = loss(c, causal, dout);
  *entry = kept;
  return (up - down) / (2.0 * (double)h);
}

static void attention(void) {
  enum { NQ = B * TQ * H * D, NK = B * TK * G * D, NL = B * H * TQ };
  static attention_case c;
  static float dout[NQ], dq[NQ], dk[NK], dv[NK];
  const ww_attention_shape shape = {B, TQ, TK, H, G, D};
  fill(c.q, NQ, 1);
  fill(c.k, NK, 2);
  fill(c.v, NK, 3);
  fill(dout, NQ, 4);
  void *q = up(c.q, NQ, WW_F32), *k = up(c.k, NK, WW_F32), *v = up(c.v, NK, WW_F32), *at = up(dout, NQ, WW_F32);
  void *out = room(NQ, WW_F32), *to_q = room(NQ, WW_F32), *to_k = room(NK, WW_F32), *to_v = room(NK, WW_F32);
  float *lse = room(NL, WW_F32);
  for (int causal = 0; causal < 2; causal++) {
    const ww_attention_options options = {.size = sizeof options, .causal = causal};
    if (!WORKS("attention", ww_attention_forward(stream, &shape, causal ? &options : NULL, WW_F32, q, k, v, out, lse))) return;
    down(out, c.out, NQ);
    down(lse, c.lse, NL);
    for (size_t b = 0; b < B; b++)
      for (size_t h = 0; h < H; h++)
        for (size_t i = 0; i < TQ; i++) {
          double row[D];
          const double sum = reference(&c, causal, 1.0 / sqrt((double)D), b, h, i, row);
          CHECK(fabs(c.lse[(b * H + h) * TQ + i] - sum) <= 64 * U * (1.0 + fabs(sum)));
          for (size_t d = 0; d < D; d++) CHECK(fabs(c.out[q_at(b, i, h) + d] - row[d]) <= 64 * U);
        }
    if (!WORKS("attention", ww_attention_backward(stream, &shape, &options, WW_F32, q, k, v, out, lse, at, to_q, to_k, to_v))) return;
    down(to_q, dq, NQ);
    down(to_k, dk, NK);
    down(to_v, dv, NK);
    /* dp and delta are off by 8 * 8 u each, ds by 128 u, dk by scale times its sum over the 6 queries of a key: under 512 u. */
    for (size_t i = 0; i < NQ; i += 5) CHECK(fabs(dq[i] - slope(&c, causal, dout, &c.q[i])) <= 512 * U + 1e-6);
    for (size_t i = 0; i < NK; i += 3) CHECK(fabs(dk[i] - slope(&c, causal, dout, &c.k[i])) <= 512 * U + 1e-6);
    for (size_t i = 0; i < NK; i += 3) CHECK(fabs(dv[i] - slope(&c, causal, dout, &c.v[i])) <= 512 * U + 1e-6);
  }
}

/* Packed rows give the bits of separate ones. */
static void packed(void) {
  enum { T = TK, ROW = (H + 2 * G) * D, NQ = B * T * H * D, NK = B * T * G * D, NL = B * H * T };
  static float qkv[B * T * ROW], q[NQ], k[NK], v[NK], dout[NQ], a[NQ], b[NQ], d[B * T * ROW], dq[NQ], dk[NK], dv[NK];
  const ww_attention_shape shape = {B, T, T, H, G, D};
  fill(qkv, B * T * ROW, 5);
  fill(dout, NQ, 6);
  for (size_t row = 0; row < B * T; row++) {
    memcpy(q + row * H * D, qkv + row * ROW, H * D * sizeof *q);
    memcpy(k + row * G * D, qkv + row * ROW + H * D, G * D * sizeof *k);
    memcpy(v + row * G * D, qkv + row * ROW + (H + G) * D, G * D * sizeof *v);
  }
  void *rows = up(qkv, B * T * ROW, WW_F32), *at = up(dout, NQ, WW_F32);
  void *x = up(q, NQ, WW_F32), *y = up(k, NK, WW_F32), *z = up(v, NK, WW_F32);
  void *one = room(NQ, WW_F32), *two = room(NQ, WW_F32), *to = room(B * T * ROW, WW_F32);
  void *to_q = room(NQ, WW_F32), *to_k = room(NK, WW_F32), *to_v = room(NK, WW_F32);
  float *lse = room(NL, WW_F32), *again = room(NL, WW_F32);
  if (!WORKS("attention", ww_attention_forward_packed(stream, &shape, NULL, WW_F32, rows, one, lse))) return;
  OK(ww_attention_forward(stream, &shape, NULL, WW_F32, x, y, z, two, again));
  if (!WORKS("attention", ww_attention_backward_packed(stream, &shape, NULL, WW_F32, rows, one, lse, at, to))) return;
  OK(ww_attention_backward(stream, &shape, NULL, WW_F32, x, y, z, two, again, at, to_q, to_k, to_v));
  down(one, a, NQ);
  down(two, b, NQ);
  down(to, d, B * T * ROW);
  down(to_q, dq, NQ);
  down(to_k, dk, NK);
  down(to_v, dv, NK);
  CHECK(memcmp(a, b, sizeof a) == 0);
  for (size_t row = 0; row < B * T; row++) {
    CHECK(memcmp(dq + row * H * D, d + row * ROW, H * D * sizeof *d) == 0);
    CHECK(memcmp(dk + row * G * D, d + row * ROW + H * D, G * D * sizeof *d) == 0);
    CHECK(memcmp(dv + row * G * D, d + row * ROW + (H + G) * D, G * D * sizeof *d) == 0);
  }
}

/* Keys that come in two parts, the first causal part as numbers of keys that are seen: what one call over all gives. */
static void in_parts(void) {
  enum { FIRST = 2, NQ = TQ * H * D, NK = TK * G * D, NL = H * TQ };
  static attention_case c;
  static float whole[NQ], joined[NQ], dout[NQ], zeros[NQ], dq[2][NQ], dk[2][NK], lses[2][NL];
  const ww_attention_shape all = {1, TQ, TK, H, G, D}, first = {1, TQ, FIRST, H, G, D}, second = {1, TQ, TK - FIRST, H, G, D};
  const ww_attention_options causal = {.size = sizeof causal, .causal = 1}, windowed = {.size = sizeof windowed, .window = 1, .window_left = -1};
  const uint32_t seen_of_first[TQ] = {FIRST, FIRST, FIRST};
  for (int i = 0; i < NL; i++) lses[1][i] = -INFINITY;
  fill(c.q, NQ, 1);
  fill(c.k, NK, 2);
  fill(c.v, NK, 3);
  fill(dout, NQ, 4);
  float *q = up(c.q, NQ, WW_F32), *k = up(c.k, NK, WW_F32), *v = up(c.v, NK, WW_F32), *at = up(dout, NQ, WW_F32);
  float *one = room(NQ, WW_F32), *two = room(NQ, WW_F32), *lse = room(NL, WW_F32), *sum = up(lses[1], NL, WW_F32);
  float *gq = room(NQ, WW_F32), *gk = room(NK, WW_F32), *gv = room(NK, WW_F32);
  float *pq = up(zeros, NQ, WW_F32), *pk = up(zeros, NK, WW_F32), *pv = up(zeros, NK, WW_F32);
  uint32_t *seen = up(seen_of_first, TQ, WW_U32);
  /* A window without a left end whose right end is 0 is the causal mask. */
  if (!WORKS("attention", ww_attention_forward(stream, &all, &windowed, WW_F32, q, k, v, one, lse))) return;
  if (!WORKS("attention", ww_attention_forward_onto(stream, &first, NULL, WW_F32, seen, q, k, v, two, sum))) return;
  OK(ww_attention_forward_onto(stream, &second, &causal, WW_F32, NULL, q, k + FIRST * G * D, v + FIRST * G * D, two, sum));
  if (!WORKS("attention", ww_attention_backward(stream, &all, &causal, WW_F32, q, k, v, one, lse, at, gq, gk, gv))) return;
  OK(ww_attention_backward_onto(stream, &first, NULL, WW_F32, seen, q, k, v, one, lse, at, pq, pk, pv));
  OK(ww_attention_backward_onto(stream, &second, &causal, WW_F32, NULL, q, k + FIRST * G * D, v + FIRST * G * D, one, lse, at, pq,
                                pk + FIRST * G * D, pv + FIRST * G * D));
  down(one, whole, NQ);
  down(two, joined, NQ);
  down(lse, lses[0], NL);
  down(sum, lses[1], NL);
  down(gq, dq[0], NQ);
  down(pq, dq[1], NQ);
  down(gk, dk[0], NK);
  down(pk, dk[1], NK);
  for (int i = 0; i < NQ; i++) CHECK(fabs(whole[i] - joined[i]) <= 128 * U && fabs(dq[0][i] - dq[1][i]) <= 1024 * U);
  for (int i = 0; i < NL; i++) CHECK(fabs(lses[0][i] - lses[1][i]) <= 128 * U * (1.0 + fabs(lses[0][i])));
  for (int i = 0; i < NK; i++) CHECK(fabs(dk[0][i] - dk[1][i]) <= 1024 * U);
}

/* Sequences one behind the other are each as alone; slopes of zero change nothing, others do. */
static void with_starts(void) {
  enum { ONE = 1, TWO = 3, NQ = (ONE + TWO) * H * D, NK = (ONE + TWO) * G * D, NL = H * (ONE + TWO) };
  static float q[NQ], k[NK], v[NK], packed_out[NQ], out[NQ], lse[NL];
  const uint32_t starts[3] = {0, ONE, ONE + TWO};
  const float flat[H] = {0}, steep[H] = {1.0f, 1.0f, 1.0f, 1.0f};
  const ww_attention_shape both = {2, TWO, TWO, H, G, D}, second = {1, TWO, TWO, H, G, D};
  fill(q, NQ, 1);
  fill(k, NK, 2);
  fill(v, NK, 3);
  float *aq = up(q, NQ, WW_F32), *ak = up(k, NK, WW_F32), *av = up(v, NK, WW_F32), *ao = room(NQ, WW_F32), *al = room(NL, WW_F32);
  uint32_t *at = up(starts, 3, WW_U32);
  ww_attention_options options = {.size = sizeof options, .causal = 1, .query_starts = at, .key_starts = at};
  options.all_queries = options.all_keys = ONE + TWO;
  options.alibi_slopes = up(flat, H, WW_F32);
  if (!WORKS("attention", ww_attention_forward(stream, &both, &options, WW_F32, aq, ak, av, ao, al))) return;
  down(ao, packed_out, NQ);
  const ww_attention_options causal = {.size = sizeof causal, .causal = 1};
  OK(ww_attention_forward(stream, &second, &causal, WW_F32, aq + ONE * H * D, ak + ONE * G * D, av + ONE * G * D, ao, al));
  down(ao, out, TWO * H * D);
  CHECK(memcmp(out, packed_out + ONE * H * D, TWO * H * D * sizeof *out) == 0);
  options.alibi_slopes = up(steep, H, WW_F32);
  OK(ww_attention_forward(stream, &both, &options, WW_F32, aq, ak, av, ao, al));
  down(ao, out, NQ);
  CHECK(memcmp(out, packed_out, sizeof out) != 0);
  down(al, lse, NL);
  /* The first sequence has one token, which sees itself: slope times 0. */
  for (size_t h = 0; h < H; h++) {
    double score = 0.0;
    for (size_t d = 0; d < D; d++) score += (double)q[h * D + d] * k[h * G / H * D + d] / sqrt((double)D);
    CHECK(fabs(lse[h * (ONE + TWO)] - score) <= 64 * U * (1.0 + fabs(score)));
  }
  const ww_status no = WW_INVALID_ARGUMENT;
  FAILS(no, ww_attention_forward_packed(stream, &second, &options, WW_F32, aq, ao, al), "`alibi_slopes` goes with no packed rows");
  options.key_starts = NULL;
  FAILS(no, ww_attention_forward(stream, &both, &options, WW_F32, aq, ak, av, ao, al), "`key_starts` is null");
  const ww_attention_options wrong[4] = {
      {.size = sizeof *wrong, .window = 1, .window_left = -2},
      {.size = sizeof *wrong, .dropout = 1.5f},
      {.size = sizeof *wrong, .softcap = -1.0f},
      {.size = sizeof *wrong, .scale = INFINITY},
  };
  FAILS(no, ww_attention_forward(stream, &second, &wrong[0], WW_F32, aq, ak, av, ao, al), "`window_left` is -2");
  FAILS(no, ww_attention_forward(stream, &second, &wrong[1], WW_F32, aq, ak, av, ao, al), "dropout");
  FAILS(no, ww_attention_forward(stream, &second, &wrong[2], WW_F32, aq, ak, av, ao, al), "softcap");
  FAILS(no, ww_attention_forward(stream, &second, &wrong[3], WW_F32, aq, ak, av, ao, al), "scale");
}

/* ---- matmul ---- */

/* The bits of a small whole number. */
static uint16_t bits_of(int value, ww_dtype dtype) {
  uint32_t word;
  const float exact = (float)value;
  memcpy(&word, &exact, sizeof word);
  if (dtype == WW_BF16) return (uint16_t)(word >> 16);
  if (value == 0) return 0;
  return (uint16_t)((word >> 16 & 0x8000) | ((word >> 23 & 0xff) - 112) << 10 | (word >> 13 & 0x3ff));
}

/* Whole numbers, which every type holds: exact in bf16 and f16 whatever the order. */
static void narrow(ww_dtype dtype) {
  enum { A = 16, Z = 24, S = 40 };
  static uint16_t x[A * S], w[Z * S], y[A * Z];
  static int xs[A * S], ws[Z * S];
  for (int i = 0; i < A * S; i++) x[i] = bits_of(xs[i] = i * 7 % 3 - 1, dtype);
  for (int i = 0; i < Z * S; i++) w[i] = bits_of(ws[i] = i * 5 % 4 - 2, dtype);
  void *ax = up(x, A * S, dtype), *aw = up(w, Z * S, dtype), *ay = room(A * Z, dtype);
  if (!WORKS("matmul", ww_matmul_forward(stream, A, Z, S, dtype, ax, aw, NULL, ay))) return;
  down(ay, y, A * Z);
  for (int a = 0; a < A; a++)
    for (int z = 0; z < Z; z++) {
      int sum = 0;
      for (int s = 0; s < S; s++) sum += xs[a * S + s] * ws[z * S + s];
      CHECK(y[a * Z + z] == bits_of(sum, dtype));
    }
}

enum { M = 5, N = 6, K = 7 };

static void matmul(void) {
  float x[M * K], w[N * K], bias[N], residual[M * N], y[M * N], pre[M * N], half[M * N / 2], again[M * N / 2];
  float dy[M * N], dx[M * K], dw[N * K], db[N], dpre[M * N];
  fill(x, M * K, 5);
  fill(w, N * K, 6);
  fill(bias, N, 7);
  fill(residual, M * N, 8);
  fill(dy, M * N, 9);
  fill(dx, M * K, 10);
  for (size_t i = 0; i < N * K; i++) dw[i] = 1.0f; /* gradients of weights are added */
  for (size_t n = 0; n < N; n++) db[n] = 2.0f;
  void *ax = up(x, M * K, WW_F32), *aw = up(w, N * K, WW_F32), *ady = up(dy, M * N, WW_F32), *adx = up(dx, M * K, WW_F32);
  float *adw = up(dw, N * K, WW_F32), *adb = up(db, N, WW_F32);
  void *ay = room(M * N, WW_F32), *apre = room(M * N, WW_F32), *ahalf = room(M * N / 2, WW_F32), *adpre = room(M * N, WW_F32);
  void *aagain = room(M * N / 2, WW_F32), *ahalfdy = up(dy, M * N / 2, WW_F32);
  /* Multiples of 1/32 in [-1, 1): every product and sum is a multiple of 2^-10 under 2^4, so float is exact in any order. */
  const ww_matmul_epilogue epilogue = {.size = sizeof epilogue, .bias = up(bias, N, WW_F32), .residual = up(residual, M * N, WW_F32)};
  if (!WORKS("matmul", ww_matmul_forward(stream, M, N, K, WW_F32, ax, aw, &epilogue, ay))) return;
  down(ay, y, M * N);
  for (size_t m = 0; m < M; m++)
    for (size_t n = 0; n < N; n++) {
      double sum = (double)bias[n] + residual[m * N + n];
      for (size_t k = 0; k < K; k++) sum += (double)x[m * K + k] * w[n * K + k];
      CHECK(y[m * N + n] == (float)sum);
    }
  OK(ww_matmul_backward_input(stream, M, N, K, WW_F32, ady, aw, WW_ADD, adx));
  float added[M * K], set[M * K];
  down(adx, added, M * K);
  OK(ww_matmul_backward_input(stream, M, N, K, WW_F32, ady, aw, WW_SET, adx));
  down(adx, set, M * K);
  for (size_t m = 0; m < M; m++)
    for (size_t k = 0; k < K; k++) {
      double sum = 0.0;
      for (size_t n = 0; n < N; n++) sum += (double)dy[m * N + n] * w[n * K + k];
      CHECK(set[m * K + k] == (float)sum && added[m * K + k] == (float)(sum + dx[m * K + k]));
    }
  OK(ww_matmul_backward_weight(stream, M, N, K, WW_F32, ax, ady, adw));
  OK(ww_matmul_backward_bias(stream, M, N, WW_F32, ady, adb));
  down(adw, dw, N * K);
  down(adb, db, N);
  for (size_t n = 0; n < N; n++) {
    double column = 2.0;
    for (size_t m = 0; m < M; m++) column += dy[m * N + n];
    CHECK(db[n] == (float)column);
    for (size_t k = 0; k < K; k++) {
      double sum = 1.0;
      for (size_t m = 0; m < M; m++) sum += (double)dy[m * N + n] * x[m * K + k];
      CHECK(dw[n * K + k] == (float)sum);
    }
  }
  /* ReLU's gradient is all or nothing: of x as the argument of one, scaled by a half. */
  const ww_matmul_through through = {.size = sizeof through, .pre = ax, .activation = WW_RELU, .scale = 0.5f};
  OK(ww_matmul_backward_input_through(stream, M, N, K, WW_F32, ady, aw, &through, WW_SET, adx));
  down(adx, added, M * K);
  for (size_t i = 0; i < M * K; i++) CHECK(added[i] == (x[i] > 0.0f ? 0.5f * set[i] : 0.0f));
  /* The same with the sums of its columns, onto a row of dw, which is as long. */
  float before[K], sums[K];
  down(adw, before, K);
  const ww_matmul_through summed = {.size = sizeof summed, .pre = ax, .activation = WW_RELU, .scale = 0.5f, .db = adw};
  OK(ww_matmul_backward_input_through(stream, M, N, K, WW_F32, ady, aw, &summed, WW_SET, adx));
  down(adw, sums, K);
  for (size_t k = 0; k < K; k++) {
    double column = before[k];
    for (size_t m = 0; m < M; m++) column += added[m * K + k];
    CHECK(sums[k] == (float)column);
  }
  FAILS(WW_INVALID_ARGUMENT, ww_matmul_backward_input_through(stream, M, N, K, WW_F32, ady, aw, &summed, WW_ADD, adx), "`db`");
  const ww_matmul_through half_said = {.size = sizeof half_said, .activation = WW_RELU};
  FAILS(WW_INVALID_ARGUMENT, ww_matmul_backward_input_through(stream, M, N, K, WW_F32, ady, aw, &half_said, WW_SET, adx), "`pre`");
  /* SwiGLU: columns 0..3 are the gate, 3..6 what it gates. */
  const ww_matmul_epilogue swiglu = {.size = sizeof swiglu, .pre = apre, .activation = WW_SWIGLU};
  OK(ww_matmul_forward(stream, M, N, K, WW_F32, ax, aw, &swiglu, ahalf));
  OK(ww_matmul_activate(stream, M, N, WW_SWIGLU, WW_F32, apre, aagain));
  OK(ww_matmul_backward_activation(stream, M, N, WW_SWIGLU, WW_F32, apre, ahalfdy, adpre));
  down(apre, pre, M * N);
  down(ahalf, half, M * N / 2);
  down(aagain, again, M * N / 2);
  down(adpre, dpre, M * N);
  CHECK(memcmp(half, again, sizeof half) == 0);
  for (size_t m = 0; m < M; m++)
    for (size_t f = 0; f < N / 2; f++) {
      const double gate = pre[m * N + f], up = pre[m * N + N / 2 + f], s = 1.0 / (1.0 + exp(-gate));
      CHECK(fabs(half[m * N / 2 + f] - gate * s * up) <= 64 * U * (1.0 + fabs(gate * up)));
      const double d = dy[m * (N / 2) + f], dgate = d * up * s * (1.0 + gate * (1.0 - s)), dup = d * gate * s;
      CHECK(fabs(dpre[m * N + f] - dgate) <= 64 * U * (1.0 + fabs(gate * up)));
      CHECK(fabs(dpre[m * N + N / 2 + f] - dup) <= 64 * U * (1.0 + fabs(gate)));
    }
}

/* ---- norms ---- */

enum { ROWS = 4, C = 24 };

static void layernorm(void) {
  float x[ROWS * C], w[C], b[C], y[ROWS * C], dy[ROWS * C], dx[ROWS * C], db[C];
  const float eps = 1e-5f, zeros[C] = {0};
  fill(x, ROWS * C, 10);
  fill(w, C, 11);
  fill(b, C, 12);
  fill(dy, ROWS * C, 13);
  void *ax = up(x, ROWS * C, WW_F32), *aw = up(w, C, WW_F32), *ab = up(b, C, WW_F32), *ady = up(dy, ROWS * C, WW_F32);
  void *ay = room(ROWS * C, WW_F32), *adx = room(ROWS * C, WW_F32);
  float *mean = room(ROWS, WW_F32), *rstd = room(ROWS, WW_F32), *adw = up(zeros, C, WW_F32), *adb = up(zeros, C, WW_F32);
  if (!WORKS("layernorm", ww_layernorm_forward(stream, ROWS, C, eps, WW_F32, ax, aw, ab, ay, mean, rstd))) return;
  OK(ww_layernorm_backward_input(stream, ROWS, C, WW_F32, ady, ax, aw, mean, rstd, WW_SET, adx));
  OK(ww_layernorm_backward_weight(stream, ROWS, C, WW_F32, ady, ax, mean, rstd, adw, adb));
  down(ay, y, ROWS * C);
  down(adx, dx, ROWS * C);
  down(adb, db, C);
  for (size_t r = 0; r < ROWS; r++) {
    double m = 0.0, variance = 0.0, a = 0.0, s = 0.0;
    for (size_t c = 0; c < C; c++) m += x[r * C + c] / (double)C;
    for (size_t c = 0; c < C; c++) variance += (x[r * C + c] - m) * (x[r * C + c] - m) / (double)C;
    const double k = 1.0 / sqrt(variance + (double)eps);
    for (size_t c = 0; c < C; c++) {
      const double n = (x[r * C + c] - m) * k;
      CHECK(fabs(y[r * C + c] - (n * w[c] + b[c])) <= 64 * U * (1.0 + fabs(n)));
      a += (double)dy[r * C + c] * w[c] / C;
      s += (double)dy[r * C + c] * w[c] * n / C;
    }
    for (size_t c = 0; c < C; c++) {
      const double n = (x[r * C + c] - m) * k;
      CHECK(fabs(dx[r * C + c] - k * ((double)dy[r * C + c] * w[c] - a - n * s)) <= 128 * U * k * (1.0 + fabs(n)));
    }
  }
  for (size_t c = 0; c < C; c++) {
    double sum = 0.0;
    for (size_t r = 0; r < ROWS; r++) sum += dy[r * C + c];
    CHECK(fabs(db[c] - sum) <= 64 * U);
  }
}

static void rmsnorm(void) {
  float x[ROWS * C], w[C], y[ROWS * C], rstd[ROWS], dy[ROWS * C], dx[ROWS * C], dw[C];
  const float eps = 1e-5f, zeros[C] = {0};
  fill(x, ROWS * C, 10);
  fill(w, C, 11);
  fill(dy, ROWS * C, 13);
  void *ax = up(x, ROWS * C, WW_F32), *aw = up(w, C, WW_F32), *ady = up(dy, ROWS * C, WW_F32);
  void *ay = room(ROWS * C, WW_F32), *adx = room(ROWS * C, WW_F32);
  float *arstd = room(ROWS, WW_F32), *adw = up(zeros, C, WW_F32);
  if (!WORKS("rmsnorm", ww_rmsnorm_forward(stream, ROWS, C, eps, WW_F32, ax, aw, ay, arstd))) return;
  OK(ww_rmsnorm_backward_input(stream, ROWS, C, WW_F32, ady, ax, aw, arstd, WW_SET, adx));
  OK(ww_rmsnorm_backward_weight(stream, ROWS, C, WW_F32, ady, ax, arstd, adw));
  down(ay, y, ROWS * C);
  down(arstd, rstd, ROWS);
  down(adx, dx, ROWS * C);
  down(adw, dw, C);
  for (size_t r = 0; r < ROWS; r++) {
    double square = 0.0, s = 0.0;
    for (size_t c = 0; c < C; c++) square += (double)x[r * C + c] * x[r * C + c] / C;
    const double k = 1.0 / sqrt(square + (double)eps);
    for (size_t c = 0; c < C; c++) s += (double)dy[r * C + c] * w[c] * x[r * C + c] * k / C;
    for (size_t c = 0; c < C; c++) {
      const double n = x[r * C + c] * k;
      CHECK(fabs(y[r * C + c] - n * w[c]) <= 64 * U * (1.0 + fabs(n)));
      CHECK(fabs(dx[r * C + c] - k * ((double)dy[r * C + c] * w[c] - n * s)) <= 128 * U * k * (1.0 + fabs(n)));
    }
  }
  for (size_t c = 0; c < C; c++) {
    double sum = 0.0, size = 0.0;
    for (size_t r = 0; r < ROWS; r++) {
      sum += (double)dy[r * C + c] * x[r * C + c] * rstd[r];
      size += fabs((double)x[r * C + c] * rstd[r]);
    }
    CHECK(fabs(dw[c] - sum) <= 64 * U * (1.0 + size));
  }
}

int main(int count, char **arguments) {
  CHECK(count > 1);
  begin(arguments);
  attention();
  packed();
  release();
  in_parts();
  with_starts();
  release();
  narrow(WW_BF16);
  narrow(WW_F16);
  matmul();
  release();
  layernorm();
  rmsnorm();
  end("kernels");
  return 0;
}
