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

/* ---- matmul ---- */

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
  const int biased = WORKS("matmul_bias", ww_matmul_backward_bias(stream, M, N, WW_F32, ady, adb));
  down(adw, dw, N * K);
  down(adb, db, N);
  for (size_t n = 0; n < N; n++) {
    double column = 2.0;
    for (size_t m = 0; m < M; m++) column += dy[m * N + n];
    CHECK(!biased || db[n] == (float)column);
    for (size_t k = 0; k < K; k++) {
      double sum = 1.0;
      for (size_t m = 0; m < M; m++) sum += (double)dy[m * N + n] * x[m * K + k];
      CHECK(dw[n * K + k] == (float)sum);
    }
  }
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

/* Rows of 9 columns, three to a sequence, causal and not, with a scale: the sum of 9 exponentials that are each off by a few u. */
static void softmax(void) {
  enum { R = 6, W = 9, QUERIES = 3 };
  float x[R * W], y[R * W], dy[R * W], dx[R * W];
  fill(x, R * W, 14);
  fill(dy, R * W, 15);
  void *ax = up(x, R * W, WW_F32), *ady = up(dy, R * W, WW_F32), *ay = room(R * W, WW_F32), *adx = room(R * W, WW_F32);
  for (int causal = 0; causal < 2; causal++) {
    const ww_softmax_options options = {.size = sizeof options, .queries = QUERIES, .causal = causal, .scale = 2.0f};
    if (!WORKS("softmax", ww_softmax_forward(stream, R, W, &options, WW_F32, ax, ay))) return;
    OK(ww_softmax_backward(stream, R, W, &options, WW_F32, ady, ay, WW_SET, adx));
    down(ay, y, R * W);
    down(adx, dx, R * W);
    for (size_t r = 0; r < R; r++) {
      const size_t seen = causal ? r % QUERIES + 1 + W - QUERIES : W;
      double sum = 0.0, mean = 0.0;
      for (size_t c = 0; c < seen; c++) sum += exp(2.0 * x[r * W + c]);
      for (size_t c = 0; c < seen; c++) mean += exp(2.0 * x[r * W + c]) / sum * dy[r * W + c];
      for (size_t c = 0; c < W; c++) {
        const double p = c < seen ? exp(2.0 * x[r * W + c]) / sum : 0.0;
        CHECK(fabs(y[r * W + c] - p) <= 64 * U * p);
        CHECK(fabs(dx[r * W + c] - 2.0 * p * (dy[r * W + c] - mean)) <= 256 * U * p);
      }
    }
  }
}

int main(int count, char **arguments) {
  CHECK(count > 1);
  begin(arguments);
  attention();
  packed();
  release();
  matmul();
  release();
  layernorm();
  rmsnorm();
  softmax();
  end("kernels");
  return 0;
}
