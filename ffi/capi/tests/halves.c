/* Every op in bfloat16 and half against itself in float, on the same numbers: multiples of 1/128 in [-1, 1), which all three types
 * hold. U is the type's unit roundoff; what an op rounds once is within U of it, relative, and attention's backward pass, which
 * takes rounded outputs and rounds weights and their gradients, within a few. */
#include "arrays.h"

#include <math.h>

enum { MOST = 1 << 14 };

/* What one run of an op gave: in float, and then in the type at hand. */
static float results[2][MOST];
static size_t given = 0;
static ww_dtype type = WW_F32;
static float *into = results[0];

static void fill(float *x, size_t count, size_t seed) {
  for (size_t i = 0; i < count; i++) x[i] = (float)((i * 37 + seed * 91 + 11) % 256) / 128.0f - 1.0f;
}

/* An array of the type at hand. */
static void *in(size_t count, size_t seed) {
  static float values[MOST];
  CHECK(count <= MOST);
  fill(values, count, seed);
  void *exact = up(values, count, WW_F32);
  if (type == WW_F32) return exact;
  void *narrow = room(count, type);
  OK(ww_cast(stream, count, WW_F32, exact, type, narrow));
  return narrow;
}

static float *zeros(size_t count) {
  static const float none[MOST] = {0};
  return up(none, count, WW_F32);
}

/* Takes down floats, or elements of the type at hand. */
static void took_floats(const float *from, size_t count) {
  CHECK(given + count <= MOST);
  down(from, into + given, count);
  given += count;
}

static void took(const void *from, size_t count) {
  if (type == WW_F32) {
    took_floats(from, count);
    return;
  }
  float *wide = room(count, WW_F32);
  OK(ww_cast(stream, count, type, from, WW_F32, wide));
  took_floats(wide, count);
}

/* Runs an op in float, bfloat16 and half; `loose` is how many U its results may be off. */
static void compare(const char *name, int (*op)(void), double loose) {
  const ww_dtype types[3] = {WW_F32, WW_BF16, WW_F16};
  const double units[3] = {0.0, 1.0 / (1 << 8), 1.0 / (1 << 11)};
  size_t count = 0;
  for (int t = 0; t < 3; t++) {
    type = types[t];
    into = results[t == 0 ? 0 : 1];
    given = 0;
    if (!op()) return;
    release();
    if (t == 0) {
      count = given;
      double sum = 0.0;
      for (size_t i = 0; i < count; i++) sum += fabs(results[0][i]);
      CHECK(count > 0 && sum > 0.0);
      continue;
    }
    CHECK(given == count);
    size_t other = 0;
    for (size_t i = 0; i < count; i++) {
      const double a = results[0][i], b = results[1][i], apart = fabs(a - b);
      other += apart > 0.0;
      if (a == b || apart <= loose * units[t] * (1.0 + fabs(a))) continue;
      fprintf(stderr, "%s, type %d, %zu: %g, in float %g\n", name, type, i, b, a);
      exit(1);
    }
    /* Sums that half may still hold are rounded in bfloat16: the comparison is one. */
    if (type == WW_BF16 && other == 0) fprintf(stderr, "%s: nothing was rounded\n", name);
    CHECK(type != WW_BF16 || other > 0);
  }
}

/* ---- products ---- */

enum { M = 24, N = 16, K = 40 };

static int products(void) {
  void *x = in(M * K, 1), *w = in(N * K, 2), *dy = in(M * N, 3), *y = room(M * N, type), *dx = room(M * K, type);
  const ww_matmul_epilogue epilogue = {.size = sizeof epilogue, .bias = in(N, 4), .residual = in(M * N, 5), .scale = 0.25f};
  if (!WORKS("matmul", ww_matmul_forward(stream, M, N, K, type, x, w, &epilogue, y))) return 0;
  took(y, M * N);
  OK(ww_matmul_backward_input(stream, M, N, K, type, dy, w, WW_SET, dx));
  took(dx, M * K);
  const ww_matmul_through through = {.size = sizeof through, .pre = x, .activation = WW_RELU, .scale = 0.5f};
  OK(ww_matmul_backward_input_through(stream, M, N, K, type, dy, w, &through, WW_SET, dx));
  took(dx, M * K);
  float *dw = zeros(N * K), *db = zeros(N);
  OK(ww_matmul_backward_weight(stream, M, N, K, type, x, dy, dw));
  OK(ww_matmul_backward_bias(stream, M, N, type, dy, db));
  took_floats(dw, N * K);
  took_floats(db, N);
  return 1;
}

static int activations(void) {
  const ww_activation all[4] = {WW_GELU_TANH, WW_GELU_ERF, WW_SWIGLU, WW_RELU};
  void *pre = in(M * N, 1), *dy = in(M * N, 2), *y = room(M * N, type), *dpre = room(M * N, type);
  for (int i = 0; i < 4; i++) {
    const size_t columns = all[i] == WW_SWIGLU ? N / 2 : N;
    if (!WORKS("matmul", ww_matmul_activate(stream, M, N, all[i], type, pre, y))) return 0;
    took(y, M * columns);
    OK(ww_matmul_backward_activation(stream, M, N, all[i], type, pre, dy, dpre));
    took(dpre, M * N);
  }
  return 1;
}

/* ---- attention ---- */

enum { T = 20, H = 4, G = 2, D = 16, Q = T * H * D, KV = T * G * D, L = H * T };

static const ww_attention_shape shape = {1, T, T, H, G, D};
static const ww_attention_options causal = {.size = sizeof causal, .causal = 1, .softcap = 4.0f};

static int attention(void) {
  void *q = in(Q, 1), *k = in(KV, 2), *v = in(KV, 3), *dout = in(Q, 4), *out = room(Q, type);
  void *dq = room(Q, type), *dk = room(KV, type), *dv = room(KV, type);
  float *lse = room(L, WW_F32);
  if (!WORKS("attention", ww_attention_forward(stream, &shape, &causal, type, q, k, v, out, lse))) return 0;
  OK(ww_attention_backward(stream, &shape, &causal, type, q, k, v, out, lse, dout, dq, dk, dv));
  took(out, Q);
  took_floats(lse, L);
  took(dq, Q);
  took(dk, KV);
  took(dv, KV);
  return 1;
}

static int packed(void) {
  enum { ROWS = T * (H + 2 * G) * D };
  void *qkv = in(ROWS, 5), *dout = in(Q, 6), *out = room(Q, type), *dqkv = room(ROWS, type);
  float *lse = room(L, WW_F32);
  if (!WORKS("attention", ww_attention_forward_packed(stream, &shape, NULL, type, qkv, out, lse))) return 0;
  OK(ww_attention_backward_packed(stream, &shape, NULL, type, qkv, out, lse, dout, dqkv));
  took(out, Q);
  took(dqkv, ROWS);
  return 1;
}

static int in_parts(void) {
  float none[L];
  for (size_t i = 0; i < L; i++) none[i] = -INFINITY;
  void *q = in(Q, 1), *k = in(KV, 2), *v = in(KV, 3), *dout = in(Q, 4);
  float *out = zeros(Q), *lse = up(none, L, WW_F32), *dq = zeros(Q), *dk = zeros(KV), *dv = zeros(KV);
  if (!WORKS("attention", ww_attention_forward_onto(stream, &shape, NULL, type, NULL, q, k, v, out, lse))) return 0;
  void *whole = type == WW_F32 ? (void *)out : room(Q, type);
  if (type != WW_F32) OK(ww_cast(stream, Q, WW_F32, out, type, whole));
  OK(ww_attention_backward_onto(stream, &shape, NULL, type, NULL, q, k, v, whole, lse, dout, dq, dk, dv));
  took_floats(out, Q);
  took_floats(dq, Q);
  took_floats(dk, KV);
  took_floats(dv, KV);
  return 1;
}

/* ---- rows ---- */

enum { ROWS = 12, C = 40, ALL = ROWS * C };

static int layernorm(void) {
  void *x = in(ALL, 1), *branch = in(ALL, 2), *w = in(C, 3), *b = in(C, 4), *dy = in(ALL, 5);
  void *y = room(ALL, type), *sum = room(ALL, type), *dx = room(ALL, type);
  float *mean = room(ROWS, WW_F32), *rstd = room(ROWS, WW_F32), *dw = zeros(C), *db = zeros(C);
  if (!WORKS("layernorm", ww_layernorm_forward_residual(stream, ROWS, C, 1e-5f, type, x, branch, w, b, sum, y, mean, rstd))) return 0;
  took(sum, ALL);
  took(y, ALL);
  OK(ww_layernorm_forward(stream, ROWS, C, 1e-5f, type, x, w, b, y, mean, rstd));
  took(y, ALL);
  OK(ww_layernorm_backward_input(stream, ROWS, C, type, dy, x, w, mean, rstd, WW_SET, dx));
  OK(ww_layernorm_backward_weight(stream, ROWS, C, type, dy, x, mean, rstd, dw, db));
  took(dx, ALL);
  took_floats(dw, C);
  took_floats(db, C);
  return 1;
}

static int rmsnorm(void) {
  void *x = in(ALL, 1), *branch = in(ALL, 2), *w = in(C, 3), *dy = in(ALL, 5);
  void *y = room(ALL, type), *sum = room(ALL, type), *dx = room(ALL, type);
  float *rstd = room(ROWS, WW_F32), *dw = zeros(C);
  if (!WORKS("rmsnorm", ww_rmsnorm_forward_residual(stream, ROWS, C, 1e-5f, type, x, branch, w, sum, y, rstd))) return 0;
  took(sum, ALL);
  took(y, ALL);
  OK(ww_rmsnorm_forward(stream, ROWS, C, 1e-5f, type, x, w, y, rstd));
  took(y, ALL);
  OK(ww_rmsnorm_backward_input(stream, ROWS, C, type, dy, x, w, rstd, WW_SET, dx));
  OK(ww_rmsnorm_backward_weight(stream, ROWS, C, type, dy, x, rstd, dw));
  took(dx, ALL);
  took_floats(dw, C);
  return 1;
}

static int softmax(void) {
  const ww_softmax_options options = {.size = sizeof options, .queries = ROWS, .causal = 1, .scale = 2.0f};
  void *x = in(ALL, 1), *dy = in(ALL, 2), *y = room(ALL, type), *dx = room(ALL, type);
  if (!WORKS("softmax", ww_softmax_forward(stream, ROWS, C, &options, type, x, y))) return 0;
  OK(ww_softmax_backward(stream, ROWS, C, &options, type, dy, y, WW_SET, dx));
  took(y, ALL);
  took(dx, ALL);
  return 1;
}

static int residual(void) {
  void *x = in(ALL, 1), *branch = in(ALL, 2), *bias = in(C, 3), *out = room(ALL, type);
  if (!WORKS("residual", ww_residual_forward(stream, ROWS, C, type, x, branch, bias, out))) return 0;
  took(out, ALL);
  return 1;
}

static int rope(void) {
  enum { WIDTH = H * D };
  const ww_rope_shape turned = {1, T, H, D, 0};
  const ww_rope_options options = {.size = sizeof options, .position = 7};
  void *x = in(T * WIDTH, 1), *dx = in(T * WIDTH, 2);
  if (!WORKS("rope", ww_rope_forward(stream, &turned, &options, type, NULL, x))) return 0;
  OK(ww_rope_backward(stream, &turned, &options, type, NULL, dx));
  took(x, T * WIDTH);
  took(dx, T * WIDTH);
  return 1;
}

/* ---- tokens ---- */

static int embedding(void) {
  enum { V = 9, P = 5 };
  uint32_t ids[2 * P];
  for (uint32_t i = 0; i < 2 * P; i++) ids[i] = i * 7 % V;
  const ww_embedding_shape of_tokens = {2, P, C, V, P}, part = {2, P, C, 4, 0};
  uint32_t *tokens = up(ids, 2 * P, WW_U32);
  void *table = in(V * C, 1), *positions = in(P * C, 2), *dy = in(2 * P * C, 3), *y = room(2 * P * C, type);
  float *dtable = zeros(V * C), *dpositions = zeros(P * C), *dpart = zeros(4 * C);
  if (!WORKS("embedding", ww_embedding_forward(stream, &of_tokens, type, tokens, table, positions, y))) return 0;
  took(y, 2 * P * C);
  OK(ww_embedding_forward_shard(stream, &part, 0, V, type, tokens, table, WW_ADD, y));
  took(y, 2 * P * C);
  OK(ww_embedding_backward(stream, &of_tokens, type, tokens, dy, dtable, dpositions));
  OK(ww_embedding_backward_shard(stream, &part, 0, V, type, tokens, dy, dpart));
  took_floats(dtable, V * C);
  took_floats(dpositions, P * C);
  took_floats(dpart, 4 * C);
  return 1;
}

static int cross_entropy(void) {
  uint32_t targets[ROWS];
  for (uint32_t i = 0; i < ROWS; i++) targets[i] = i * 11 % C;
  uint32_t *wanted = up(targets, ROWS, WW_U32);
  void *logits = in(ALL, 1), *again = in(ALL, 1);
  float *losses = room(ROWS, WW_F32), *lse = room(ROWS, WW_F32), *merged = room(ROWS, WW_F32);
  double loss = 0.0, shared = 0.0, *parts = room(ROWS * 3, WW_F64), *normaliser = room(ROWS * 2, WW_F64);
  size_t counted = 0;
  if (!WORKS("cross_entropy", ww_cross_entropy_forward(stream, ROWS, C, NULL, type, logits, wanted, losses, lse, &loss, &counted)))
    return 0;
  OK(ww_cross_entropy_forward_shard(stream, ROWS, C, 0, C, NULL, type, logits, wanted, parts));
  OK(ww_cross_entropy_merge(stream, 1, ROWS, NULL, parts, wanted, merged, normaliser, &shared, &counted));
  OK(ww_cross_entropy_backward(stream, ROWS, C, NULL, type, logits, wanted, lse, 0.5f));
  OK(ww_cross_entropy_backward_shard(stream, ROWS, C, 0, C, NULL, type, again, wanted, normaliser, 0.5f));
  CHECK(counted == ROWS && fabs(loss - shared) <= 1e-4);
  took_floats(losses, ROWS);
  took_floats(merged, ROWS);
  took(logits, ALL);
  took(again, ALL);
  return 1;
}

/* ---- the optimizer: parameters of the type, with a master and without ---- */

static int optimizer(void) {
  const ww_rule rules[2] = {WW_ADAMW, WW_SGD};
  for (int r = 0; r < 2; r++) {
    ww_optimizer_options options;
    OK(ww_optimizer_options_default(rules[r], &options));
    options.lr = 0.125;
    if (rules[r] == WW_SGD) options.momentum = 0.5;
    float start[C], gradient[C];
    fill(start, C, 1);
    fill(gradient, C, 2);
    ww_optimizer_tensor tensors[2] = {{.size = sizeof tensors[0], .count = C, .decay = 1}, {.size = sizeof tensors[0], .count = C}};
    for (int i = 0; i < 2; i++) {
      tensors[i].param = in(C, 1);
      tensors[i].master = i == 0 ? up(start, C, WW_F32) : NULL;
      tensors[i].grad = up(gradient, C, WW_F32);
      tensors[i].m = zeros(C);
      tensors[i].v = rules[r] == WW_SGD ? NULL : zeros(C);
    }
    if (!WORKS("optimizer", ww_optimizer_step(stream, &options, type, WW_F32, tensors, 2))) return 0;
    took(tensors[0].param, C);
    took(tensors[1].param, C);
    took_floats(tensors[0].master, C);
  }
  return 1;
}

static int dropped_and_turned(void) {
  const ww_dropout drop = {.size = sizeof drop, .seed = 5, .sequence = 6, .first = 3, .probability = 0.5f};
  void *x = in(ALL, 1), *branch = in(ALL, 2), *bias = in(C, 3), *out = room(ALL, type), *dbranch = room(ALL, type), *y = room(ALL, type);
  if (!WORKS("residual", ww_residual_forward_dropout(stream, ROWS, C, &drop, type, x, branch, bias, out))) return 0;
  OK(ww_residual_backward_dropout(stream, ROWS, C, &drop, type, branch, dbranch));
  OK(ww_transpose(stream, 1, ROWS, C, type, x, y));
  took(out, ALL);
  took(dbranch, ALL);
  took(y, ALL);
  return 1;
}

static int randoms(void) {
  void *x = room(ALL, type), *y = room(ALL, type);
  if (!WORKS("philox", ww_random_uniform(stream, 5, 6, 3, -1.0f, 1.0f, ALL, type, x))) return 0;
  OK(ww_random_normal(stream, 5, 6, 3, 0.0f, 1.0f, ALL, type, y));
  took(x, ALL);
  took(y, ALL);
  return 1;
}

/* ---- mixtures of experts ---- */

enum { E = 4, TOP = 2 };

static int experts(void) {
  const ww_moe_shape of_experts = {ROWS, E, TOP};
  float dw[ROWS * TOP];
  fill(dw, ROWS * TOP, 2);
  void *logits = in(ROWS * E, 1), *dlogits = room(ROWS * E, type);
  float *scores = room(ROWS * E, WW_F32), *weights = room(ROWS * TOP, WW_F32);
  uint32_t *chosen = room(ROWS * TOP, WW_U32);
  if (!WORKS("moe", ww_moe_router_forward(stream, &of_experts, NULL, type, logits, NULL, scores, chosen, weights, NULL, NULL))) return 0;
  OK(ww_moe_router_backward(stream, &of_experts, NULL, type, scores, chosen, up(dw, ROWS * TOP, WW_F32), NULL, dlogits));
  took_floats(weights, ROWS * TOP);
  took(dlogits, ROWS * E);
  return 1;
}

static int rows_of_experts(void) {
  uint32_t chosen[ROWS * TOP];
  for (uint32_t i = 0; i < ROWS * TOP; i++) chosen[i] = (i / TOP * 3 + i % TOP) % E;
  const ww_moe_shape of_experts = {ROWS, E, TOP};
  const ww_moe_rows of_rows = {ROWS, TOP, C, ROWS * TOP};
  uint32_t *list = up(chosen, ROWS * TOP, WW_U32), *counts = room(E, WW_U32);
  uint32_t *order = room(ROWS * TOP, WW_U32), *places = room(ROWS * TOP, WW_U32);
  float shares[ROWS * TOP];
  fill(shares, ROWS * TOP, 4);
  float *weights = up(shares, ROWS * TOP, WW_F32), *dweights = room(ROWS * TOP, WW_F32);
  size_t placed = 0;
  void *x = in(ALL, 1), *dy = in(ALL, 3), *spread = room(TOP * ALL, type), *y = room(ALL, type);
  if (!WORKS("moe", ww_moe_sort(stream, &of_experts, list, NULL, counts, order, places, &placed))) return 0;
  CHECK(placed == ROWS * TOP);
  OK(ww_moe_permute(stream, &of_rows, type, order, weights, x, spread));
  OK(ww_moe_combine(stream, &of_rows, type, places, weights, spread, WW_SET, y));
  OK(ww_moe_backward_weights(stream, &of_rows, type, places, spread, dy, dweights));
  took(spread, TOP * ALL);
  took(y, ALL);
  took_floats(dweights, ROWS * TOP);
  return 1;
}

static int products_of_experts(void) {
  const size_t counts[E] = {5, 0, 4, 3};
  void *x = in(ALL, 1), *w = in(E * N * C, 2), *dy = in(ROWS * N, 3), *y = room(ROWS * N, type), *dx = room(ALL, type);
  float *dw = zeros(E * N * C);
  if (!WORKS("matmul", ww_moe_grouped_forward(stream, E, counts, N, C, type, x, w, WW_NONE, NULL, y))) return 0;
  OK(ww_moe_grouped_backward_input(stream, E, counts, N, C, type, dy, w, WW_SET, dx));
  OK(ww_moe_grouped_backward_weight(stream, E, counts, N, C, type, x, dy, dw));
  took(y, ROWS * N);
  took(dx, ALL);
  took_floats(dw, E * N * C);
  return 1;
}

int main(int count, char **arguments) {
  CHECK(count > 1);
  begin(arguments);
  compare("products", products, 1.0);
  compare("activations", activations, 1.0);
  compare("attention", attention, 16.0);
  compare("packed", packed, 16.0);
  compare("in parts", in_parts, 16.0);
  compare("layernorm", layernorm, 2.0);
  compare("rmsnorm", rmsnorm, 2.0);
  compare("softmax", softmax, 8.0);
  compare("residual", residual, 1.0);
  compare("rope", rope, 1.0);
  compare("embedding", embedding, 2.0);
  compare("cross entropy", cross_entropy, 2.0);
  compare("optimizer", optimizer, 1.0);
  compare("dropout and transpose", dropped_and_turned, 1.0);
  compare("random numbers", randoms, 1.0);
  compare("router", experts, 1.0);
  compare("rows of experts", rows_of_experts, 4.0);
  compare("products of experts", products_of_experts, 1.0);
  end("halves");
  return 0;
}
