/* The ops beside attention, products and norms, on any device against plain loops in double. Bounds as in kernels.c: U is half a
 * unit in the last place of 1, and sums here have at most 64 terms of size 1 or so. */
#include "arrays.h"

#include <math.h>

static const double U = 1.0 / (1 << 24);

static float value(size_t i) { return (float)((i * 37 + 11) % 64) / 32.0f - 1.0f; } /* in [-1, 1), exact */

static void fill(float *x, size_t count, size_t seed) {
  for (size_t i = 0; i < count; i++) x[i] = value(i * 3 + seed);
}

/* ---- cross-entropy: whole, and of two ranks that have 5 and 8 of 13 classes ---- */

enum { R = 6, V = 13, LEFT = 5 };

static const uint32_t targets[R] = {0, 12, 4, 5, 77, 9}; /* 77 is ignored */

static void cross_entropy(void) {
  float logits[R * V], losses[R], gradient[R * V], apart[2][R * V], again[R];
  double sum = 0.0, shared = 0.0;
  size_t counted = 0, same = 0;
  const ww_cross_entropy_options options = {.size = sizeof options, .ignoring = 1, .ignore = 77};
  fill(logits, R * V, 1);
  float *a = up(logits, R * V, WW_F32), *l = room(R, WW_F32), *lse = room(R, WW_F32);
  uint32_t *t = up(targets, R, WW_U32);
  if (!WORKS("cross_entropy", ww_cross_entropy_forward(stream, R, V, &options, WW_F32, a, t, l, lse, &sum, &counted))) return;
  OK(ww_cross_entropy_forward(stream, R, V, &options, WW_F32, a, t, l, lse, NULL, NULL));
  OK(ww_cross_entropy_backward(stream, R, V, &options, WW_F32, a, t, lse, 0.25f));
  down(l, losses, R);
  down(a, gradient, R * V);
  double total = 0.0;
  for (size_t r = 0; r < R; r++) {
    double z = 0.0;
    for (size_t c = 0; c < V; c++) z += exp(logits[r * V + c]);
    const double loss = targets[r] == 77 ? 0.0 : log(z) - logits[r * V + targets[r]];
    CHECK(fabs(losses[r] - loss) <= 16 * U * (1.0 + loss));
    total += loss;
    for (size_t c = 0; c < V; c++) {
      const double g = targets[r] == 77 ? 0.0 : 0.25 * (exp(logits[r * V + c]) / z - (c == targets[r]));
      CHECK(fabs(gradient[r * V + c] - g) <= 64 * U);
    }
  }
  CHECK(counted == R - 1 && fabs(sum - total) <= R * 16 * U * 5.0);
  const size_t first[2] = {0, LEFT}, width[2] = {LEFT, V - LEFT};
  float *mine[2];
  double parts[2 * R * 3], *p = room(2 * R * 3, WW_F64), *n = room(R * 2, WW_F64);
  for (int rank = 0; rank < 2; rank++) {
    for (size_t r = 0; r < R; r++) memcpy(apart[rank] + r * width[rank], logits + r * V + first[rank], width[rank] * sizeof(float));
    mine[rank] = up(apart[rank], R * width[rank], WW_F32);
    double *own = room(R * 3, WW_F64);
    OK(ww_cross_entropy_forward_shard(stream, R, width[rank], first[rank], V, &options, WW_F32, mine[rank], t, own));
    down(own, parts + rank * R * 3, R * 3);
  }
  OK(ww_buffer_copy_from_host(stream, of(p), 0, parts, 2 * R * 3));
  OK(ww_cross_entropy_merge(stream, 2, R, &options, p, t, l, n, &shared, &same));
  down(l, again, R);
  for (size_t r = 0; r < R; r++) CHECK(fabs(again[r] - losses[r]) <= 32 * U * (1.0 + losses[r]));
  CHECK(same == counted && fabs(shared - sum) <= 1e-5);
  for (int rank = 0; rank < 2; rank++) {
    OK(ww_cross_entropy_backward_shard(stream, R, width[rank], first[rank], V, &options, WW_F32, mine[rank], t, n, 0.25f));
    down(mine[rank], apart[rank], R * width[rank]);
    for (size_t r = 0; r < R; r++)
      for (size_t c = 0; c < width[rank]; c++)
        CHECK(fabs(apart[rank][r * width[rank] + c] - gradient[r * V + first[rank] + c]) <= 64 * U);
  }
  FAILS(WW_INVALID_ARGUMENT, ww_cross_entropy_forward_shard(stream, R, 9, LEFT, V, &options, WW_F32, a, t, p), "vocab");
  FAILS(WW_INVALID_ARGUMENT, ww_cross_entropy_backward(stream, R, V, &options, WW_F32, a, t, lse, INFINITY), "`scale`");
}

/* Label smoothing, z-loss and softcap, against the formulas. */
static void cross_entropy_options(void) {
  enum { TARGET = 4 };
  float logits[V], losses[1], gradient[V];
  const double s = 0.25, z = 0.125, cap = 2.0;
  const ww_cross_entropy_options options = {.size = sizeof options, .smoothing = 0.25f, .z_loss = 0.125f, .softcap = 2.0f};
  const ww_cross_entropy_options wrong = {.size = sizeof wrong, .smoothing = 1.5f};
  const uint32_t target = TARGET;
  fill(logits, V, 4);
  float *a = up(logits, V, WW_F32), *l = room(1, WW_F32), *lse = room(1, WW_F32);
  uint32_t *t = up(&target, 1, WW_U32);
  if (!WORKS("cross_entropy", ww_cross_entropy_forward(stream, 1, V, &options, WW_F32, a, t, l, lse, NULL, NULL))) return;
  OK(ww_cross_entropy_backward(stream, 1, V, &options, WW_F32, a, t, lse, 1.0f));
  down(l, losses, 1);
  down(a, gradient, V);
  double sum = 0.0, mean = 0.0, capped[V];
  for (size_t c = 0; c < V; c++) capped[c] = cap * tanh(logits[c] / cap), sum += exp(capped[c]), mean += capped[c] / V;
  const double log_sum = log(sum), loss = log_sum - (1 - s) * capped[TARGET] - s * mean + z * log_sum * log_sum;
  CHECK(fabs(losses[0] - loss) <= 64 * U * (1.0 + loss));
  for (size_t c = 0; c < V; c++) {
    const double p = exp(capped[c]) / sum, slope = 1 - capped[c] * capped[c] / (cap * cap);
    CHECK(fabs(gradient[c] - (p * (1 + 2 * z * log_sum) - (1 - s) * (c == TARGET) - s / V) * slope) <= 128 * U);
  }
  FAILS(WW_INVALID_ARGUMENT, ww_cross_entropy_forward(stream, 1, V, &wrong, WW_F32, a, t, l, lse, NULL, NULL), "`smoothing`");
}

/* A target outside the vocabulary: told at once where the host sees it, else by the next synchronisation. */
static void outside_the_vocabulary(void) {
  float logits[R * V] = {0}, before[R];
  float *a = up(logits, R * V, WW_F32), *l = room(R, WW_F32), *lse = room(R, WW_F32);
  uint32_t *t = up(targets, R, WW_U32);
  fill(before, R, 3);
  OK(ww_buffer_copy_from_host(stream, of(l), 0, before, R));
  const ww_status status = ww_cross_entropy_forward(stream, R, V, NULL, WW_F32, a, t, l, lse, NULL, NULL);
  if (status != WW_OK && !has("cross_entropy") && strstr(ww_last_error(), "not host memory") != NULL) return;
  CHECK((status == WW_OK ? ww_stream_synchronize(stream) : status) != WW_OK);
  CHECK(strstr(ww_last_error(), "row 4") != NULL && strstr(ww_last_error(), "77") != NULL);
}

/* ---- embedding ---- */

enum { B = 2, T = 3, C = 4, E = 7 };

static void embedding(void) {
  const uint32_t ids[B * T] = {6, 0, 3, 3, 5, 6};
  float table[E * C], positions[T * C], y[B * T * C], sum[B * T * C], dtable[E * C], dpositions[T * C];
  const ww_embedding_shape shape = {B, T, C, E, T}, low = {B, T, C, 4, 0}, high = {B, T, C, 3, 0};
  fill(table, E * C, 5);
  fill(positions, T * C, 6);
  float zeros[E * C] = {0};
  uint32_t *i = up(ids, B * T, WW_U32);
  float *t = up(table, E * C, WW_F32), *p = up(positions, T * C, WW_F32), *a = room(B * T * C, WW_F32);
  float *dt = up(zeros, E * C, WW_F32), *dp = up(zeros, T * C, WW_F32), *whole = room(B * T * C, WW_F32);
  if (!WORKS("embedding", ww_embedding_forward(stream, &shape, WW_F32, i, t, p, a))) return;
  OK(ww_embedding_backward(stream, &shape, WW_F32, i, a, dt, dp));
  down(a, y, B * T * C);
  down(dt, dtable, E * C);
  down(dp, dpositions, T * C);
  for (size_t k = 0; k < B * T; k++)
    for (size_t c = 0; c < C; c++) CHECK(y[k * C + c] == table[ids[k] * C + c] + positions[k % T * C + c]);
  for (size_t c = 0; c < C; c++) {
    CHECK(dtable[6 * C + c] == y[c] + y[5 * C + c] && dtable[1 * C + c] == 0.0f);
    CHECK(dpositions[1 * C + c] == y[1 * C + c] + y[4 * C + c]);
  }
  /* Two ranks with rows 0 to 3 and 4 to 6: their sum is the embedding. */
  float *rest = up(table + 4 * C, 3 * C, WW_F32);
  OK(ww_embedding_forward(stream, &shape, WW_F32, i, t, NULL, whole));
  OK(ww_embedding_forward_shard(stream, &low, 0, E, WW_F32, i, t, WW_SET, a));
  OK(ww_embedding_forward_shard(stream, &high, 4, E, WW_F32, i, rest, WW_ADD, a));
  down(a, sum, B * T * C);
  down(whole, y, B * T * C);
  CHECK(memcmp(sum, y, sizeof y) == 0);
  float *part = up(zeros, 3 * C, WW_F32);
  OK(ww_embedding_backward_shard(stream, &high, 4, E, WW_F32, i, a, part));
  down(part, dtable, 3 * C);
  for (size_t c = 0; c < C; c++) CHECK(dtable[2 * C + c] == y[c] + y[5 * C + c] && dtable[C + c] == y[4 * C + c]);
  FAILS(WW_INVALID_ARGUMENT, ww_embedding_forward(stream, &low, WW_F32, i, t, p, NULL), "`y`");
  FAILS(WW_INVALID_ARGUMENT, ww_embedding_forward_shard(stream, &high, 5, E, WW_F32, i, rest, WW_SET, a), "vocab");
}

/* ---- Optimizers and the norm ---- */

/* Ten elements in two tensors, the first of which decays, all of whose state is 0. */
enum { N_ALL = 10, N_LAST = 3 };

static void optimizer_tensors(ww_optimizer_tensor tensors[2], const float *w, const float *g, int with_v) {
  const float zeros[N_ALL] = {0};
  const size_t counts[2] = {N_ALL - N_LAST, N_LAST};
  for (size_t i = 0, at = 0; i < 2; at += counts[i++]) {
    const ww_optimizer_tensor tensor = {.size = sizeof tensor, .count = counts[i], .decay = i == 0, .tensor = (uint32_t)i};
    tensors[i] = tensor;
    tensors[i].param = up(w + at, counts[i], WW_F32);
    tensors[i].grad = up(g + at, counts[i], WW_F32);
    tensors[i].m = up(zeros, counts[i], WW_F32);
    if (with_v) tensors[i].v = up(zeros, counts[i], WW_F32);
  }
}

static void optimizer_back(const ww_optimizer_tensor tensors[2], float *w) {
  down(tensors[0].param, w, N_ALL - N_LAST);
  down(tensors[1].param, w + N_ALL - N_LAST, N_LAST);
}

static void adamw(void) {
  float w[N_ALL], g[N_ALL], start[N_ALL], m[N_ALL];
  ww_optimizer_options options;
  OK(ww_optimizer_options_default(WW_ADAMW, &options));
  CHECK(options.lr == 1e-3 && options.step == 1 && options.size == sizeof options && options.grad_scale == 1.0);
  CHECK(options.weight_decay == 1e-2 && options.beta2 == 0.999 && options.control == NULL);
  options.lr = 0.125;
  options.grad_scale = 0.5;
  fill(w, N_ALL, 7);
  fill(g, N_ALL, 8);
  memcpy(start, w, sizeof w);
  ww_optimizer_tensor tensors[2];
  optimizer_tensors(tensors, w, g, 1);
  if (!WORKS("optimizer", ww_optimizer_step(stream, &options, WW_F32, WW_F32, tensors, 2))) return;
  optimizer_back(tensors, w);
  down(tensors[0].m, m, N_ALL - N_LAST);
  for (size_t i = 0; i < N_ALL; i++) {
    /* The first step is that of the sign, less what eps takes. */
    const double scaled = 0.5 * g[i], decay = i < N_ALL - N_LAST ? 0.01 * start[i] : 0.0;
    CHECK(fabs(w[i] - (start[i] - 0.125 * (scaled / (fabs(scaled) + 1e-8) + decay))) <= 64 * U);
    if (i < N_ALL - N_LAST) CHECK(fabs(m[i] - 0.1 * scaled) <= 4 * U);
  }
  const ww_status no = WW_INVALID_ARGUMENT;
  options.step = 0;
  FAILS(no, ww_optimizer_step(stream, &options, WW_F32, WW_F32, tensors, 2), "`step` is 0");
  options.step = 2;
  options.beta2 = 1.0;
  FAILS(no, ww_optimizer_step(stream, &options, WW_F32, WW_F32, tensors, 2), "`beta2` is 1");
  options.beta2 = 0.999;
  options.rule = 3;
  FAILS(no, ww_optimizer_step(stream, &options, WW_F32, WW_F32, tensors, 2), "options.rule");
  FAILS(no, ww_optimizer_options_default(3, &options), "`rule`");
  options.rule = WW_SGD;
  FAILS(no, ww_optimizer_step(stream, &options, WW_F32, WW_F32, tensors, 2), "`m`");
  options.rule = WW_ADAMW;
  options.stochastic = 1;
  FAILS(no, ww_optimizer_step(stream, &options, WW_F32, WW_F32, tensors, 2), "`rounding`");
  options.stochastic = 0;
  FAILS(no, ww_optimizer_step(stream, NULL, WW_F32, WW_F32, tensors, 2), "`options`");
  FAILS(no, ww_optimizer_step(stream, &options, WW_F32, WW_F32, NULL, 2), "`tensors`");
  FAILS(no, ww_optimizer_step(stream, &options, WW_F32, WW_F64, tensors, 2), "`m_dtype`");
  tensors[1].m = (float *)tensors[0].m + 1;
  FAILS(no, ww_optimizer_step(stream, &options, WW_F32, WW_F32, tensors, 2), "overlaps");
  tensors[1].m = NULL;
  FAILS(no, ww_optimizer_step(stream, &options, WW_F32, WW_F32, tensors, 2), "`m`");
  tensors[0].size = 4;
  FAILS(no, ww_optimizer_step(stream, &options, WW_F32, WW_F32, tensors, 2), "tensors.size");
}

/* Two steps of SGD with momentum, the second by numbers on the device: gradients of norm 2 are halved. */
static void sgd_controlled(void) {
  float w[N_ALL], g[N_ALL], start[N_ALL];
  double numbers[5], sum = 0.0;
  ww_optimizer_options options;
  OK(ww_optimizer_options_default(WW_SGD, &options));
  CHECK(options.weight_decay == 0.0 && options.momentum == 0.0);
  options.momentum = 0.5;
  options.lr = 0.25;
  fill(start, N_ALL, 7);
  for (size_t i = 0; i < N_ALL; i++) g[i] = i < 4 ? 1.0f : 0.0f;
  ww_optimizer_tensor tensors[2];
  optimizer_tensors(tensors, start, g, 0);
  double *control = room(5, WW_F64), *squares = room(1, WW_F64);
  if (!WORKS("optimizer", ww_optimizer_step(stream, &options, WW_F32, WW_F32, tensors, 2))) return;
  const float *const list[2] = {tensors[0].grad, tensors[1].grad};
  const size_t counts[2] = {N_ALL - N_LAST, N_LAST};
  OK(ww_optimizer_begin(stream, 0.5, 2, 1.0, control));
  OK(ww_norm_sum_of_squares_into(stream, list, counts, 2, squares));
  OK(ww_norm_clip(stream, squares, 1.0, control));
  options.control = control;
  OK(ww_optimizer_step(stream, &options, WW_F32, WW_F32, tensors, 2));
  optimizer_back(tensors, w);
  down(control, numbers, 5);
  down(squares, &sum, 1);
  CHECK(sum == 4.0 && numbers[4] == 2.0 && numbers[2] == 1.0 / (2.0 + 1e-6) && numbers[3] == 0.0);
  for (size_t i = 0; i < N_ALL; i++) CHECK(fabs(w[i] - (start[i] - 0.25 * g[i] - 0.5 * (0.5 * g[i] + numbers[2] * g[i]))) <= 16 * U);
  FAILS(WW_INVALID_ARGUMENT, ww_norm_clip(stream, squares, -1.0, control), "`max_norm`");
  FAILS(WW_INVALID_ARGUMENT, ww_norm_clip(stream, NULL, 1.0, control), "`squares`");
  FAILS(WW_INVALID_ARGUMENT, ww_optimizer_begin(stream, 0.5, 0, 1.0, control), "`step` is 0");
  FAILS(WW_INVALID_ARGUMENT, ww_norm_sum_of_squares_into(stream, list, counts, 2, NULL), "`squares`");
}

static void norm(void) {
  enum { N = 9, M = 5 };
  float a[N], b[M], back[M];
  double sum = 0.0, exact = 0.0;
  fill(a, N, 9);
  fill(b, M, 10);
  for (size_t i = 0; i < N; i++) exact += (double)a[i] * a[i];
  for (size_t i = 0; i < M; i++) exact += (double)b[i] * b[i];
  float *both[2] = {up(a, N, WW_F32), up(b, M, WW_F32)};
  const size_t counts[2] = {N, M};
  CHECK(ww_norm_clip_coefficient(4.0, 2.0) == 2.0 / (4.0 + 1e-6) && ww_norm_clip_coefficient(1.0, 2.0) == 1.0);
  CHECK(isnan(ww_norm_clip_coefficient(NAN, 1.0)) && ww_norm_clip_coefficient(INFINITY, 1.0) == 0.0);
  const float *const list[2] = {both[0], both[1]};
  if (!WORKS("norm", ww_norm_sum_of_squares(stream, list, counts, 2, &sum))) return;
  CHECK(sum == exact); /* squares of multiples of 1/32 */
  OK(ww_norm_scale(stream, both, counts, 2, 0.5));
  down(both[1], back, M);
  for (size_t i = 0; i < M; i++) CHECK(back[i] == 0.5f * b[i]);
  OK(ww_norm_sum_of_squares(stream, NULL, NULL, 0, &sum));
  CHECK(sum == 0.0);
  FAILS(WW_INVALID_ARGUMENT, ww_norm_sum_of_squares(stream, list, NULL, 2, &sum), "`counts`");
  FAILS(WW_INVALID_ARGUMENT, ww_norm_sum_of_squares(stream, list, counts, 2, NULL), "`sum`");
  both[1] = both[0] + 1;
  FAILS(WW_INVALID_ARGUMENT, ww_norm_scale(stream, both, counts, 2, 0.5), "overlaps");
}

/* ---- rope, cast, residual, random numbers ---- */

static void rope(void) {
  enum { HEADS = 2, D = 4, STRIDE = HEADS * D + 1 };
  float x[T * STRIDE], y[T * STRIDE], back[T * STRIDE];
  const uint32_t positions[T] = {3, 0, 131071};
  const ww_rope_shape shape = {1, T, HEADS, D, STRIDE}, odd = {1, T, HEADS, 3, STRIDE}, narrow = {1, T, 3, D, STRIDE};
  const ww_rope_options options = {.size = sizeof options, .interleaved = 1};
  fill(x, T * STRIDE, 11);
  float *a = up(x, T * STRIDE, WW_F32);
  uint32_t *p = up(positions, T, WW_U32);
  if (!WORKS("rope", ww_rope_forward(stream, &shape, &options, WW_F32, p, a))) return;
  down(a, y, T * STRIDE);
  OK(ww_rope_backward(stream, &shape, &options, WW_F32, p, a));
  down(a, back, T * STRIDE);
  for (size_t t = 0; t < T; t++) {
    CHECK(y[t * STRIDE + HEADS * D] == x[t * STRIDE + HEADS * D]);
    for (size_t at = 0; at < HEADS * D; at += 2) {
      const double angle = positions[t] * pow(10000.0, -(double)(at % D) / D), u = x[t * STRIDE + at], v = x[t * STRIDE + at + 1];
      CHECK(fabs(y[t * STRIDE + at] - (u * cos(angle) - v * sin(angle))) <= 8 * U);
      CHECK(fabs(y[t * STRIDE + at + 1] - (v * cos(angle) + u * sin(angle))) <= 8 * U);
      CHECK(fabs(back[t * STRIDE + at] - u) <= 16 * U);
    }
  }
  FAILS(WW_INVALID_ARGUMENT, ww_rope_forward(stream, &odd, NULL, WW_F32, p, a), "head_size");
  FAILS(WW_INVALID_ARGUMENT, ww_rope_forward(stream, &narrow, NULL, WW_F32, p, a), "row_stride");
}

static void elementwise(void) {
  enum { N = 12, ROWS = 3 };
  float x[N], branch[N], bias[N / ROWS], out[N];
  uint16_t half[N], other[N];
  fill(x, N, 12);
  fill(branch, N, 13);
  fill(bias, N / ROWS, 14);
  float *a = up(x, N, WW_F32), *b = up(branch, N, WW_F32), *c = up(bias, N / ROWS, WW_F32), *y = room(N, WW_F32);
  void *h = room(N, WW_BF16), *f = room(N, WW_F16);
  if (WORKS("cast", ww_cast(stream, N, WW_F32, a, WW_BF16, h))) {
    OK(ww_cast(stream, N, WW_F32, a, WW_F16, f));
    OK(ww_cast(stream, N, WW_F16, f, WW_F32, y));
    down(h, half, N);
    down(f, other, N);
    down(y, out, N);
    for (size_t i = 0; i < N; i++) {
      uint32_t bits;
      memcpy(&bits, &x[i], sizeof bits);
      CHECK(half[i] == bits >> 16 && out[i] == x[i]); /* multiples of 1/32 under 1 are exact in both */
      CHECK((other[i] >> 15) == (bits >> 31));
    }
  }
  FAILS(WW_INVALID_ARGUMENT, ww_cast(stream, N, WW_F64, a, WW_BF16, h), "`from_dtype`");
  FAILS(WW_INVALID_ARGUMENT, ww_cast(stream, N, WW_F32, a, WW_U8, h), "`to_dtype`");
  if (WORKS("residual", ww_residual_forward(stream, ROWS, N / ROWS, WW_F32, a, b, c, y))) {
    down(y, out, N);
    for (size_t i = 0; i < N; i++) CHECK(out[i] == x[i] + branch[i] + bias[i % (N / ROWS)]);
    OK(ww_residual_forward(stream, ROWS, N / ROWS, WW_F32, a, b, NULL, y));
  }
}

static void dropout(void) {
  enum { ROWS = 8, C_ALL = 512, N = ROWS * C_ALL };
  static float x[N], branch[N], bias[C_ALL], out[N], kept[N], part[N / 2];
  ww_dropout drop = {.size = sizeof drop, .seed = 5, .sequence = 9, .probability = 0.25f};
  fill(x, N, 15);
  fill(branch, N, 16);
  fill(bias, C_ALL, 17);
  for (size_t i = 0; i < N; i++) branch[i] += 2.0f; /* no kept element is 0 */
  float *a = up(x, N, WW_F32), *b = up(branch, N, WW_F32), *c = up(bias, C_ALL, WW_F32), *y = room(N, WW_F32), *d = room(N, WW_F32);
  if (!WORKS("residual", ww_residual_forward_dropout(stream, ROWS, C_ALL, &drop, WW_F32, a, b, c, y))) return;
  OK(ww_residual_backward_dropout(stream, ROWS, C_ALL, &drop, WW_F32, b, d));
  down(y, out, N);
  down(d, kept, N);
  size_t dropped = 0;
  for (size_t i = 0; i < N; i++) {
    dropped += kept[i] == 0.0f;
    CHECK(kept[i] == 0.0f || fabs(kept[i] - branch[i] * 4.0 / 3.0) <= 8 * U);
    CHECK(fabs(out[i] - (x[i] + (kept[i] == 0.0f ? 0.0 : (branch[i] + bias[i % C_ALL]) * 4.0 / 3.0))) <= 16 * U);
  }
  CHECK(fabs(dropped - 0.25 * N) < 6 * sqrt(N * 0.1875)); /* six standard deviations */
  /* The second half by itself has its own mask. */
  drop.first = N / 2;
  OK(ww_residual_backward_dropout(stream, ROWS / 2, C_ALL, &drop, WW_F32, b + N / 2, d));
  OK(ww_buffer_copy_to_host(stream, of(d), 0, part, N / 2));
  CHECK(memcmp(part, kept + N / 2, sizeof part) == 0);
  drop.probability = 1.5f;
  FAILS(WW_INVALID_ARGUMENT, ww_residual_forward_dropout(stream, ROWS, C_ALL, &drop, WW_F32, a, b, c, y), "`dropout`");
  FAILS(WW_INVALID_ARGUMENT, ww_residual_backward_dropout(stream, ROWS, C_ALL, NULL, WW_F32, b, d), "`dropout`");
  drop.probability = 0.5f;
  FAILS(WW_INVALID_ARGUMENT, ww_residual_forward_dropout(stream, ROWS, C_ALL, &drop, WW_F32, a, b, c, a), "overlaps");
}

static void transposes_and_fills(void) {
  enum { BATCH = 2, ROWS = 5, COLUMNS = 9, N = BATCH * ROWS * COLUMNS };
  float x[N], y[N];
  uint16_t half[N];
  fill(x, N, 18);
  float *a = up(x, N, WW_F32), *b = room(N, WW_F32);
  void *h = room(N, WW_BF16);
  if (WORKS("transpose", ww_transpose(stream, BATCH, ROWS, COLUMNS, WW_F32, a, b))) {
    down(b, y, N);
    for (size_t m = 0; m < BATCH; m++)
      for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < COLUMNS; c++) CHECK(y[(m * COLUMNS + c) * ROWS + r] == x[(m * ROWS + r) * COLUMNS + c]);
  }
  FAILS(WW_INVALID_ARGUMENT, ww_transpose(stream, BATCH, ROWS, COLUMNS, WW_F32, a, a), "overlaps");
  FAILS(WW_INVALID_ARGUMENT, ww_transpose(stream, BATCH, ROWS, COLUMNS, WW_F64, a, b), "`dtype`");
  OK(ww_fill(stream, N, -1.5, WW_F32, b));
  OK(ww_fill(stream, N, -1.5, WW_BF16, h));
  down(b, y, N);
  down(h, half, N);
  for (size_t i = 0; i < N; i++) CHECK(y[i] == -1.5f && half[i] == 0xbfc0);
  FAILS(WW_INVALID_ARGUMENT, ww_fill(stream, N, 0.0, WW_F32, NULL), "`out`");
}

static void randoms(void) {
  enum { N = 4096 };
  static float x[N], part[8], z[N];
  float *a = room(N, WW_F32), *b = room(8, WW_F32), *c = room(N, WW_F32);
  if (!WORKS("philox", ww_random_uniform(stream, 5, 6, 0, -1.0f, 3.0f, N, WW_F32, a))) return;
  OK(ww_random_uniform(stream, 5, 6, 1001, -1.0f, 3.0f, 8, WW_F32, b));
  OK(ww_random_normal(stream, 5, 7, 0, 2.0f, 0.5f, N, WW_F32, c));
  down(a, x, N);
  down(b, part, 8);
  down(c, z, N);
  CHECK(memcmp(part, x + 1001, sizeof part) == 0);
  double mean = 0.0, square = 0.0;
  for (size_t i = 0; i < N; i++) {
    CHECK(x[i] >= -1.0f && x[i] <= 3.0f);
    mean += z[i] / N;
    square += (z[i] - 2.0) * (z[i] - 2.0) / N;
  }
  /* Six standard deviations of a mean of 4096, and of a variance. */
  CHECK(fabs(mean - 2.0) < 6 * 0.5 / 64 && fabs(square - 0.25) < 6 * 0.25 * 1.42 / 64);
  FAILS(WW_INVALID_ARGUMENT, ww_random_normal(stream, 5, 7, 0, NAN, 0.5f, N, WW_F32, c), "`mean`");
}

int main(int count, char **arguments) {
  CHECK(count > 1);
  begin(arguments);
  cross_entropy();
  cross_entropy_options();
  outside_the_vocabulary();
  release();
  embedding();
  adamw();
  sgd_controlled();
  norm();
  rope();
  elementwise();
  dropout();
  transposes_and_fills();
  randoms();
  end("ops");
  return 0;
}
