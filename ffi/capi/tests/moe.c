/* Mixtures of experts on any device against plain loops in double. */
#include "arrays.h"

#include <math.h>

static const double U = 1.0 / (1 << 24);

enum { M = 8, E = 4, K = 2, C = 3, N = 6 };

static float value(size_t i) { return (float)((i * 37 + 11) % 64) / 32.0f - 1.0f; } /* in [-1, 1), exact */

static void fill(float *x, size_t count, size_t seed) {
  for (size_t i = 0; i < count; i++) x[i] = value(i * 3 + seed);
}

static const ww_moe_shape shape = {M, E, K};
static float *scores, *weights;
static uint32_t *experts;

/* The router. */
static void route(void) {
  float logits[M * E], s[M * E], w[M * K], dw[M * K], dl[M * E], margin = 0.0f;
  uint32_t chosen[M * K];
  size_t row = M;
  fill(logits, M * E, 1);
  fill(dw, M * K, 2);
  float *l = up(logits, M * E, WW_F32);
  scores = room(M * E, WW_F32), weights = room(M * K, WW_F32), experts = room(M * K, WW_U32);
  OK(ww_moe_router_forward(stream, &shape, NULL, WW_F32, l, NULL, scores, experts, weights, &margin, &row));
  CHECK(row < M && margin >= 0.0f);
  down(scores, s, M * E);
  down(weights, w, M * K);
  down(experts, chosen, M * K);
  for (size_t m = 0; m < M; m++) {
    double z = 0.0, sum = 0.0;
    for (size_t e = 0; e < E; e++) z += exp(logits[m * E + e]);
    for (size_t e = 0; e < E; e++) CHECK(fabs(s[m * E + e] - exp(logits[m * E + e]) / z) <= 4 * U);
    for (size_t k = 0; k < K; k++) sum += s[m * E + chosen[m * K + k]];
    for (size_t k = 0; k < K; k++) {
      CHECK(fabs(w[m * K + k] - s[m * E + chosen[m * K + k]] / sum) <= 4 * U);
      size_t better = 0;
      for (size_t e = 0; e < E; e++) better += s[m * E + e] > s[m * E + chosen[m * K + k]];
      CHECK(better == k);
    }
  }
  float *d = up(dw, M * K, WW_F32), *to = room(M * E, WW_F32);
  OK(ww_moe_router_backward(stream, &shape, NULL, WW_F32, scores, experts, d, NULL, to));
  down(to, dl, M * E);
  /* The weights of a row sum to 1, and softmax knows no shift: both gradients sum to nothing. */
  for (size_t m = 0; m < M; m++) {
    double sum = 0.0, size = 0.0;
    for (size_t e = 0; e < E; e++) sum += dl[m * E + e], size += fabs(dl[m * E + e]);
    CHECK(fabs(sum) <= 16 * U && size > 1e-4);
  }
  const ww_moe_shape many = {M, E, E + 1};
  const ww_moe_router_options strange = {.size = sizeof strange, .score = 7};
  FAILS(WW_INVALID_ARGUMENT, ww_moe_router_forward(stream, &many, NULL, WW_F32, l, NULL, scores, experts, weights, NULL, NULL), "top_k");
  FAILS(WW_INVALID_ARGUMENT, ww_moe_router_forward(stream, &shape, &strange, WW_F32, l, NULL, scores, experts, weights, NULL, NULL), "score");
}

/* Rows go to their experts, through a layer of each, and come back; what falls out has no place. */
static void dispatch(void) {
  uint32_t chosen[M * K], kept[M * K], counts[E], order[M * K], places[M * K];
  float x[M * C], w[E * N * C], y[M * N], weight[M * K], rows[M * K * C], products[M * K * N], dweights[M * K];
  size_t dropped = 0, placed = 0, rows_of[E];
  fill(x, M * C, 3);
  fill(w, E * N * C, 4);
  uint32_t *keep = room(M * K, WW_U32), *c = room(E, WW_U32), *o = room(M * K, WW_U32), *p = room(M * K, WW_U32);
  OK(ww_moe_within_capacity(stream, &shape, 2, 2, experts, keep, &dropped));
  OK(ww_moe_sort(stream, &shape, experts, keep, c, o, p, &placed));
  down(experts, chosen, M * K);
  down(keep, kept, M * K);
  down(c, counts, E);
  down(o, order, M * K);
  down(p, places, M * K);
  down(weights, weight, M * K);
  CHECK(dropped + placed == M * K && dropped > 0);
  for (size_t a = 0; a < M * K; a++) {
    size_t before = 0;
    for (size_t b = a / (M / 2 * K) * (M / 2 * K); b < a; b++) before += chosen[b] == chosen[a];
    CHECK(kept[a] == (before < 2));
    CHECK(kept[a] ? order[places[a]] == a : places[a] == WW_MOE_NONE);
    if (a >= placed) CHECK(order[a] == WW_MOE_NONE);
  }
  for (size_t at = 1; at < placed; at++) CHECK(chosen[order[at - 1]] <= chosen[order[at]]);
  const ww_moe_rows of_all = {M, K, C, placed}, wide = {M, K, N, placed};
  float *ax = up(x, M * C, WW_F32), *aw = up(w, E * N * C, WW_F32), *ar = room(placed * C, WW_F32);
  float *ap = room(placed * N, WW_F32), *ay = room(M * N, WW_F32), *ad = room(M * K, WW_F32);
  for (size_t e = 0; e < E; e++) rows_of[e] = counts[e];
  OK(ww_moe_permute(stream, &of_all, WW_F32, o, NULL, ax, ar));
  OK(ww_moe_grouped_forward(stream, E, rows_of, N, C, WW_F32, ar, aw, WW_NONE, NULL, ap));
  OK(ww_moe_combine(stream, &wide, WW_F32, p, weights, ap, WW_SET, ay));
  OK(ww_moe_backward_weights(stream, &wide, WW_F32, p, ap, ay, ad));
  down(ar, rows, placed * C);
  down(ap, products, placed * N);
  down(ay, y, M * N);
  down(ad, dweights, M * K);
  for (size_t at = 0; at < placed; at++) {
    CHECK(memcmp(rows + at * C, x + order[at] / K * C, sizeof *x * C) == 0);
    for (size_t n = 0; n < N; n++) {
      double sum = 0.0;
      for (size_t k = 0; k < C; k++) sum += (double)rows[at * C + k] * w[(chosen[order[at]] * N + n) * C + k];
      CHECK(products[at * N + n] == (float)sum); /* multiples of 2^-10 */
    }
  }
  for (size_t m = 0; m < M; m++)
    for (size_t n = 0; n < N; n++) {
      double sum = 0.0;
      for (size_t a = m * K; a < (m + 1) * K; a++)
        if (kept[a]) sum += (double)weight[a] * products[places[a] * N + n];
      CHECK(fabs(y[m * N + n] - sum) <= 8 * U * 4.0);
    }
  for (size_t a = 0; a < M * K; a++) {
    double sum = 0.0;
    for (size_t n = 0; n < N && kept[a]; n++) sum += (double)y[a / K * N + n] * products[places[a] * N + n];
    CHECK(fabs(dweights[a] - sum) <= 16 * U * (1.0 + fabs(sum)));
  }
  /* The gradients of the layers, from ones: columns of the weights, and sums of the rows. */
  float ones[M * K * N], dx[M * K * C], dw[E * N * C], zeros[E * N * C] = {0};
  for (size_t i = 0; i < M * K * N; i++) ones[i] = 1.0f;
  float *a1 = up(ones, placed * N, WW_F32), *adx = room(placed * C, WW_F32), *adw = up(zeros, E * N * C, WW_F32);
  OK(ww_moe_grouped_backward_input(stream, E, rows_of, N, C, WW_F32, a1, aw, WW_SET, adx));
  OK(ww_moe_grouped_backward_weight(stream, E, rows_of, N, C, WW_F32, ar, a1, adw));
  down(adx, dx, placed * C);
  down(adw, dw, E * N * C);
  for (size_t at = 0; at < placed; at++)
    for (size_t k = 0; k < C; k++) {
      double sum = 0.0;
      for (size_t n = 0; n < N; n++) sum += w[(chosen[order[at]] * N + n) * C + k];
      CHECK(dx[at * C + k] == (float)sum);
    }
  for (size_t e = 0; e < E; e++)
    for (size_t k = 0; k < C; k++) {
      double sum = 0.0;
      for (size_t at = 0; at < placed; at++) sum += chosen[order[at]] == e ? rows[at * C + k] : 0.0;
      CHECK(dw[e * N * C + k] == (float)sum && dw[(e * N + N - 1) * C + k] == (float)sum);
    }
  /* With a bias for each expert and a relu; back through the relu that x is said to come of, with the sums of the rows. */
  float bias[E * N], activated[M * K * N], back[M * K * C], db[E * C], sums[E * N];
  for (size_t i = 0; i < E * N; i++) bias[i] = (float)(i % 5) / 4.0f - 0.5f;
  const ww_matmul_epilogue epilogue = {.size = sizeof epilogue, .bias = up(bias, E * N, WW_F32), .activation = WW_RELU};
  ww_matmul_through through = {.size = sizeof through, .pre = ar, .activation = WW_RELU, .scale = 0.5f};
  float *ae = room(placed * N, WW_F32), *ab = room(placed * C, WW_F32), *as = up(zeros, E * N, WW_F32);
  through.db = up(zeros, E * C, WW_F32);
  OK(ww_moe_grouped_forward_with(stream, E, rows_of, N, C, WW_F32, ar, aw, &epilogue, ae));
  OK(ww_moe_grouped_backward_input_through(stream, E, rows_of, N, C, WW_F32, a1, aw, &through, WW_SET, ab));
  OK(ww_moe_grouped_backward_bias(stream, E, rows_of, N, WW_F32, a1, as));
  down(ae, activated, placed * N);
  down(ab, back, placed * C);
  down(through.db, db, E * C);
  down(as, sums, E * N);
  for (size_t at = 0; at < placed; at++) {
    for (size_t n = 0; n < N; n++) {
      const float sum = products[at * N + n] + bias[chosen[order[at]] * N + n];
      CHECK(activated[at * N + n] == (sum > 0.0f ? sum : 0.0f));
    }
    for (size_t k = 0; k < C; k++) CHECK(back[at * C + k] == (rows[at * C + k] > 0.0f ? 0.5f * dx[at * C + k] : 0.0f));
  }
  for (size_t e = 0; e < E; e++) {
    for (size_t n = 0; n < N; n++) CHECK(sums[e * N + n] == (float)rows_of[e]);
    for (size_t k = 0; k < C; k++) {
      double sum = 0.0;
      for (size_t at = 0; at < placed; at++) sum += chosen[order[at]] == e ? back[at * C + k] : 0.0;
      CHECK(db[e * C + k] == (float)sum);
    }
  }
  FAILS(WW_INVALID_ARGUMENT, ww_moe_grouped_backward_input_through(stream, E, rows_of, N, C, WW_F32, a1, aw, &through, WW_ADD, ab),
        "`db`");
  const size_t endless[E] = {SIZE_MAX, 1, 0, 0};
  const ww_status no = WW_INVALID_ARGUMENT;
  FAILS(no, ww_moe_grouped_forward(stream, E, endless, N, C, WW_F32, ar, aw, WW_NONE, NULL, ap), "counts");
  FAILS(no, ww_moe_grouped_forward(stream, E, NULL, N, C, WW_F32, ar, aw, WW_NONE, NULL, ap), "counts");
  FAILS(no, ww_moe_within_capacity(stream, &shape, 3, 2, experts, keep, NULL), "sequences");
  FAILS(no, ww_moe_sort(stream, &shape, experts, NULL, c, o, p, NULL), "`placed`");
  FAILS(no, ww_moe_combine(stream, &wide, WW_F32, NULL, NULL, ap, WW_SET, ay), "`places`");
}

static void balance(void) {
  const ww_moe_sequences of_two = {shape, 2, M / 2}, of_three = {shape, 3, M / 2};
  float s[M * E], moved[E], d[M * E], bias[E] = {0};
  uint32_t chosen[M * K];
  double both[2 * 2 * E], loss = 0.0, exact = 0.0, counts[E] = {5, 1, 3, 3};
  double *sums = room(2 * 2 * E, WW_F64), *c = up(counts, E, WW_F64);
  float *b = up(bias, E, WW_F32), *ds = room(M * E, WW_F32);
  OK(ww_moe_balance_sums(stream, &of_two, WW_SCORE_SOFTMAX, scores, experts, sums));
  OK(ww_moe_balance_loss(stream, &of_two, sums, &loss));
  OK(ww_moe_balance_backward(stream, &of_two, WW_SCORE_SOFTMAX, 0.5f, scores, sums, ds));
  OK(ww_moe_move_bias(stream, E, 0.25f, c, b));
  down(scores, s, M * E);
  down(experts, chosen, M * K);
  down(sums, both, 2 * 2 * E);
  down(ds, d, M * E);
  down(b, moved, E);
  for (size_t q = 0; q < 2; q++)
    for (size_t e = 0; e < E; e++) {
      double chose = 0.0, share = 0.0;
      for (size_t m = q * M / 2; m < (q + 1) * M / 2; m++) {
        share += s[m * E + e];
        for (size_t k = 0; k < K; k++) chose += chosen[m * K + k] == e;
      }
      CHECK(both[(q * 2 + 0) * E + e] == chose && fabs(both[(q * 2 + 1) * E + e] - share) <= 1e-12);
      exact += E / (double)(K * (M / 2)) * chose * share / (M / 2);
      CHECK(fabs(d[q * M / 2 * E + e] - 0.5 * E * chose / (K * (M / 2) * (M / 2))) <= 4 * U);
    }
  CHECK(fabs(loss - exact) <= 1e-12 * exact);
  CHECK(moved[0] == -0.25f && moved[1] == 0.25f && moved[2] == 0.0f);
  FAILS(WW_INVALID_ARGUMENT, ww_moe_balance_loss(stream, &of_three, sums, &loss), "sequences");
  FAILS(WW_INVALID_ARGUMENT, ww_moe_balance_loss(stream, &of_two, sums, NULL), "`loss`");
  FAILS(WW_INVALID_ARGUMENT, ww_moe_move_bias(stream, E, NAN, c, b), "`rate`");
}

int main(int count, char **arguments) {
  CHECK(count > 1);
  begin(arguments);
  route();
  dispatch();
  balance();
  end("moe");
  return 0;
}
