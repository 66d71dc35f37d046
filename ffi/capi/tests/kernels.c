/* The kernels on the CPU against plain loops in double.
 *
 * Bounds, with u = 2^-24 and all inputs in [-1, 1): a sum of n products in any order is off by at most n u times the sum of their
 * sizes. A score (D = 8 products, scale 0.354) is off by at most 8 * 8 * 0.354 u < 23 u, so a softmax weight by a factor of
 * 1 + 46 u and an output by 46 u; the exponential, the sum of 5 and the division add a few u: 64 u. Norms: two chained means of 24
 * values, in which the errors of single terms average out, stay under the same 64 u of the largest term, and twice that after the
 * backward pass chains them again.
 */
#include "check.h"

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

static void attention(const ww_device *device) {
  static attention_case c;
  static float dout[B * TQ * H * D], dq[B * TQ * H * D], dk[B * TK * G * D], dv[B * TK * G * D];
  const ww_attention_shape shape = {B, TQ, TK, H, G, D};
  fill(c.q, B * TQ * H * D, 1);
  fill(c.k, B * TK * G * D, 2);
  fill(c.v, B * TK * G * D, 3);
  fill(dout, B * TQ * H * D, 4);
  for (int causal = 0; causal < 2; causal++) {
    const ww_attention_options options = {causal, 0.0f};
    OK(ww_attention_forward(device, &shape, causal ? &options : NULL, WW_F32, c.q, c.k, c.v, c.out, c.lse));
    for (size_t b = 0; b < B; b++)
      for (size_t h = 0; h < H; h++)
        for (size_t i = 0; i < TQ; i++) {
          double row[D];
          const double lse = reference(&c, causal, 1.0 / sqrt((double)D), b, h, i, row);
          CHECK(fabs(c.lse[(b * H + h) * TQ + i] - lse) <= 64 * U * (1.0 + fabs(lse)));
          for (size_t d = 0; d < D; d++) CHECK(fabs(c.out[q_at(b, i, h) + d] - row[d]) <= 64 * U);
        }
    OK(ww_attention_backward(device, &shape, &options, WW_F32, c.q, c.k, c.v, c.out, c.lse, dout, dq, dk, dv));
    /* dp and delta are off by 8 * 8 u each, ds by 128 u, dk by scale times its sum over the 6 queries of a key: under 512 u. */
    for (size_t i = 0; i < B * TQ * H * D; i += 5) CHECK(fabs(dq[i] - slope(&c, causal, dout, &c.q[i])) <= 512 * U + 1e-6);
    for (size_t i = 0; i < B * TK * G * D; i += 3) CHECK(fabs(dk[i] - slope(&c, causal, dout, &c.k[i])) <= 512 * U + 1e-6);
    for (size_t i = 0; i < B * TK * G * D; i += 3) CHECK(fabs(dv[i] - slope(&c, causal, dout, &c.v[i])) <= 512 * U + 1e-6);
  }
  const ww_attention_shape uneven = {B, TQ, TK, 3, 2, D}, huge = {SIZE_MAX, TQ, TK, H, G, D};
  FAILS(WW_INVALID_ARGUMENT, ww_attention_forward(device, &uneven, NULL, WW_F32, c.q, c.k, c.v, c.out, c.lse), "heads");
  FAILS(WW_INVALID_ARGUMENT, ww_attention_forward(device, &huge, NULL, WW_F32, c.q, c.k, c.v, c.out, c.lse), "q");
  FAILS(WW_INVALID_ARGUMENT, ww_attention_forward(NULL, &shape, NULL, WW_F32, c.q, c.k, c.v, c.out, c.lse), "device");
  FAILS(WW_INVALID_ARGUMENT, ww_attention_forward(device, NULL, NULL, WW_F32, c.q, c.k, c.v, c.out, c.lse), "shape");
  FAILS(WW_INVALID_ARGUMENT, ww_attention_forward(device, &shape, NULL, WW_I32, c.q, c.k, c.v, c.out, c.lse), "dtype");
  FAILS(WW_INVALID_ARGUMENT, ww_attention_forward(device, &shape, NULL, WW_F32, c.q, NULL, c.v, c.out, c.lse), "`k`");
  FAILS(WW_INVALID_ARGUMENT, ww_attention_forward(device, &shape, NULL, WW_F32, c.q, c.k, c.v, c.q, c.lse), "overlaps");
}

/* ---- matmul ---- */

enum { M = 5, N = 6, K = 7 };

static void matmul(const ww_device *device) {
  float x[M * K], w[N * K], bias[N], residual[M * N], y[M * N], pre[M * N], half[M * N / 2];
  float dy[M * N], dx[M * K], dw[N * K], db[N], dpre[M * N];
  fill(x, M * K, 5);
  fill(w, N * K, 6);
  fill(bias, N, 7);
  fill(residual, M * N, 8);
  fill(dy, M * N, 9);
  /* Multiples of 1/32 in [-1, 1): every product and sum is a multiple of 2^-10 under 2^4, so float is exact in any order. */
  const ww_matmul_epilogue epilogue = {bias, WW_NONE, NULL, residual};
  OK(ww_matmul_forward(device, M, N, K, WW_F32, x, w, &epilogue, y));
  for (size_t m = 0; m < M; m++)
    for (size_t n = 0; n < N; n++) {
      double sum = (double)bias[n] + residual[m * N + n];
      for (size_t k = 0; k < K; k++) sum += (double)x[m * K + k] * w[n * K + k];
      CHECK(y[m * N + n] == (float)sum);
    }
  OK(ww_matmul_backward_input(device, M, N, K, WW_F32, dy, w, dx));
  for (size_t m = 0; m < M; m++)
    for (size_t k = 0; k < K; k++) {
      double sum = 0.0;
      for (size_t n = 0; n < N; n++) sum += (double)dy[m * N + n] * w[n * K + k];
      CHECK(dx[m * K + k] == (float)sum);
    }
  for (size_t i = 0; i < N * K; i++) dw[i] = 1.0f; /* gradients of weights are added */
  for (size_t n = 0; n < N; n++) db[n] = 2.0f;
  OK(ww_matmul_backward_weight(device, M, N, K, WW_F32, x, dy, dw));
  OK(ww_matmul_backward_bias(device, M, N, WW_F32, dy, db));
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
  /* SwiGLU: columns 0..3 are the gate, 3..6 what it gates. */
  const ww_matmul_epilogue swiglu = {NULL, WW_SWIGLU, pre, NULL};
  OK(ww_matmul_forward(device, M, N, K, WW_F32, x, w, &swiglu, half));
  for (size_t m = 0; m < M; m++)
    for (size_t f = 0; f < N / 2; f++) {
      const double gate = pre[m * N + f], up = pre[m * N + N / 2 + f];
      CHECK(fabs(half[m * N / 2 + f] - gate / (1.0 + exp(-gate)) * up) <= 64 * U * (1.0 + fabs(gate * up)));
    }
  OK(ww_matmul_backward_activation(device, M, N, WW_SWIGLU, WW_F32, pre, dy, dpre));
  for (size_t m = 0; m < M; m++)
    for (size_t f = 0; f < N / 2; f++) {
      const double gate = pre[m * N + f], up = pre[m * N + N / 2 + f], s = 1.0 / (1.0 + exp(-gate));
      const double d = dy[m * (N / 2) + f], dgate = d * up * s * (1.0 + gate * (1.0 - s)), dup = d * gate * s;
      CHECK(fabs(dpre[m * N + f] - dgate) <= 64 * U * (1.0 + fabs(gate * up)));
      CHECK(fabs(dpre[m * N + N / 2 + f] - dup) <= 64 * U * (1.0 + fabs(gate)));
    }
  const ww_matmul_epilogue strange = {NULL, 9, NULL, NULL};
  FAILS(WW_INVALID_ARGUMENT, ww_matmul_forward(device, M, N, K, WW_F32, x, w, &strange, y), "activation");
  FAILS(WW_INVALID_ARGUMENT, ww_matmul_forward(device, M, 5, K, WW_F32, x, w, &swiglu, half), "n");
  FAILS(WW_INVALID_ARGUMENT, ww_matmul_forward(device, SIZE_MAX, N, K, WW_F32, x, w, NULL, y), "x");
  FAILS(WW_INVALID_ARGUMENT, ww_matmul_forward(device, M, N, K, WW_F32, x, w, NULL, NULL), "`y`");
  FAILS(WW_INVALID_ARGUMENT, ww_matmul_backward_input(device, M, N, K, WW_F64, dy, w, dx), "dtype");
}

/* ---- norms ---- */

enum { ROWS = 4, C = 24 };

static void norms(const ww_device *device) {
  float x[ROWS * C], w[C], b[C], y[ROWS * C], mean[ROWS], rstd[ROWS], dy[ROWS * C], dx[ROWS * C], dw[C], db[C];
  const float eps = 1e-5f;
  fill(x, ROWS * C, 10);
  fill(w, C, 11);
  fill(b, C, 12);
  fill(dy, ROWS * C, 13);
  OK(ww_layernorm_forward(device, ROWS, C, eps, WW_F32, x, w, b, y, mean, rstd));
  for (size_t c = 0; c < C; c++) dw[c] = db[c] = 0.0f;
  OK(ww_layernorm_backward(device, ROWS, C, WW_F32, dy, x, w, mean, rstd, dx, dw, db));
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
  OK(ww_rmsnorm_forward(device, ROWS, C, eps, WW_F32, x, w, y, rstd));
  for (size_t c = 0; c < C; c++) dw[c] = 0.0f;
  OK(ww_rmsnorm_backward(device, ROWS, C, WW_F32, dy, x, w, rstd, dx, dw));
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
  FAILS(WW_INVALID_ARGUMENT, ww_layernorm_forward(device, ROWS, C, eps, WW_F32, x, w, NULL, y, mean, rstd), "`b`");
  FAILS(WW_INVALID_ARGUMENT, ww_rmsnorm_forward(device, ROWS, C, eps, WW_F32, x, w, y, y), "overlaps");
}

int main(void) {
  ww_device *device = NULL;
  FAILS(WW_NO_DEVICE, ww_device_open("abacus", &device), "abacus");
  FAILS(WW_NO_DEVICE, ww_device_open("cuda", &device), "cuda");
  FAILS(WW_INVALID_ARGUMENT, ww_device_open("cpu:0", &device), "0 threads");
  FAILS(WW_INVALID_ARGUMENT, ww_device_open(NULL, &device), "name");
  FAILS(WW_INVALID_ARGUMENT, ww_device_open("cpu", NULL), "device");
  OK(ww_device_close(NULL));
  OK(ww_device_open("cpu:2", &device));
  attention(device);
  matmul(device);
  norms(device);
  OK(ww_device_close(device));
  puts("kernels: all checks passed");
  return 0;
}
