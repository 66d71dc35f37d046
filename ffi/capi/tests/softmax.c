/* Softmax, its masks, and its gradient, held to the formulas in double. */
#include "arrays.h"

#include <math.h>

/* u of f32: a sum of 9 exponentials that are each off by a few u is well within 64 u. */
static const double U = 1.0 / (1 << 24);

static float value(size_t i) { return (float)((i * 37 + 11) % 64) / 32.0f - 1.0f; } /* in [-1, 1), exact */

static void fill(float *x, size_t count, size_t seed) {
  for (size_t i = 0; i < count; i++) x[i] = value(i * 3 + seed);
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

/* The same under a given mask: 2 elements of a batch, 2 heads that share its mask, 3 queries; NaN wherever it hides. */
static void softmax_masked(void) {
  enum { B = 2, HEADS = 2, QUERIES = 3, R = B * HEADS * QUERIES, W = 9, MASK = B * QUERIES * W };
  float x[R * W], y[R * W], dy[R * W], dx[R * W];
  uint8_t hidden[MASK];
  fill(x, R * W, 16);
  fill(dy, R * W, 17);
  /* The first row of the mask hides all. */
  for (size_t i = 0; i < MASK; i++) hidden[i] = i < W ? 1 : i * i % 7 < 2 ? 255 : 0;
  const uint8_t *of[R];
  for (size_t r = 0; r < R; r++) {
    of[r] = hidden + (r / (HEADS * QUERIES) * QUERIES + r % QUERIES) * W;
    for (size_t c = 0; c < W; c++)
      if (of[r][c]) x[r * W + c] = dy[r * W + c] = NAN;
  }
  void *ax = up(x, R * W, WW_F32), *ady = up(dy, R * W, WW_F32), *ay = room(R * W, WW_F32), *adx = room(R * W, WW_F32);
  ww_softmax_options options = {.size = sizeof options, .scale = 2.0f, .hidden = up(hidden, MASK, WW_U8), .mask_heads = HEADS};
  options.mask_queries = QUERIES;
  if (!WORKS("softmax", ww_softmax_forward(stream, R, W, &options, WW_F32, ax, ay))) return;
  OK(ww_softmax_backward(stream, R, W, &options, WW_F32, ady, ay, WW_SET, adx));
  down(ay, y, R * W);
  down(adx, dx, R * W);
  for (size_t r = 0; r < R; r++) {
    double sum = 0.0, mean = 0.0;
    for (size_t c = 0; c < W; c++) sum += of[r][c] ? 0.0 : exp(2.0 * x[r * W + c]);
    for (size_t c = 0; c < W; c++) mean += of[r][c] ? 0.0 : exp(2.0 * x[r * W + c]) / sum * dy[r * W + c];
    for (size_t c = 0; c < W; c++) {
      const double p = of[r][c] ? 0.0 : exp(2.0 * x[r * W + c]) / sum;
      CHECK(fabs(y[r * W + c] - p) <= 64 * U * p);
      CHECK(of[r][c] ? dx[r * W + c] == 0.0f : fabs(dx[r * W + c] - 2.0 * p * (dy[r * W + c] - mean)) <= 256 * U * p);
    }
  }
}

int main(int count, char **arguments) {
  CHECK(count > 1);
  begin(arguments);
  softmax();
  softmax_masked();
  end("softmax");
  return 0;
}
