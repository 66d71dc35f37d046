/* Attention where q, k and v lie in longer rows: the bits of packed rows, which lie so too, and of separate ones. */
#include "arrays.h"

#include <math.h>

enum { B = 2, T = 5, H = 4, G = 2, D = 8, ROW = (H + 2 * G) * D, NR = B * T * ROW, NQ = B * T * H * D, NK = B * T * G * D, NL = B * H * T };

static const ww_attention_shape shape = {B, T, T, H, G, D};

static void same(const void *a, const void *b, size_t count) {
  static float one[NR], other[NR];
  down(a, one, count);
  down(b, other, count);
  CHECK(memcmp(one, other, count * sizeof *one) == 0);
}

static ww_attention_options in_rows(void) {
  ww_attention_options options = {.size = sizeof options, .causal = 1};
  options.q_row = options.k_row = options.v_row = ROW;
  options.k_first = H * D;
  options.v_first = (H + G) * D;
  return options;
}

static void whole(const float *qkv, const float *dout) {
  const ww_attention_options causal = {.size = sizeof causal, .causal = 1}, options = in_rows();
  float gradients[NR], parts[NR];
  void *rows = up(qkv, NR, WW_F32), *error = up(dout, NQ, WW_F32), *out = room(NQ, WW_F32), *again = room(NQ, WW_F32);
  void *packed = room(NR, WW_F32), *dq = room(NQ, WW_F32), *dk = room(NK, WW_F32), *dv = room(NK, WW_F32);
  float *lse = room(NL, WW_F32), *sum = room(NL, WW_F32);
  if (!WORKS("attention", ww_attention_forward_packed(stream, &shape, &causal, WW_F32, rows, out, lse))) return;
  OK(ww_attention_forward(stream, &shape, &options, WW_F32, rows, rows, rows, again, sum));
  same(out, again, NQ);
  same(lse, sum, NL);
  OK(ww_attention_backward_packed(stream, &shape, &causal, WW_F32, rows, out, lse, error, packed));
  OK(ww_attention_backward(stream, &shape, &options, WW_F32, rows, rows, rows, out, lse, error, dq, dk, dv));
  down(packed, gradients, NR);
  void *of[3] = {dq, dk, dv};
  const size_t widths[3] = {H * D, G * D, G * D};
  for (size_t i = 0, first = 0; i < 3; first += widths[i++]) {
    down(of[i], parts, B * T * widths[i]);
    for (size_t row = 0; row < B * T; row++)
      CHECK(memcmp(parts + row * widths[i], gradients + row * ROW + first, widths[i] * sizeof *parts) == 0);
  }
}

/* One part of all keys, of rows and of arrays apart. */
static void in_parts(const float *qkv, const float *dout) {
  const ww_attention_options plain = {.size = sizeof plain, .causal = 1}, options = in_rows();
  float none[NL], q[NQ], k[NK], v[NK];
  const float zeros[NQ] = {0};
  for (size_t i = 0; i < NL; i++) none[i] = -INFINITY;
  for (size_t row = 0; row < B * T; row++) {
    memcpy(q + row * H * D, qkv + row * ROW, H * D * sizeof *q);
    memcpy(k + row * G * D, qkv + row * ROW + H * D, G * D * sizeof *k);
    memcpy(v + row * G * D, qkv + row * ROW + (H + G) * D, G * D * sizeof *v);
  }
  void *rows = up(qkv, NR, WW_F32), *aq = up(q, NQ, WW_F32), *ak = up(k, NK, WW_F32), *av = up(v, NK, WW_F32), *error = up(dout, NQ, WW_F32);
  float *out[2], *lse[2], *dq[2], *dk[2], *dv[2];
  for (int i = 0; i < 2; i++) {
    const void *from[3] = {i == 0 ? aq : rows, i == 0 ? ak : rows, i == 0 ? av : rows};
    const ww_attention_options *how = i == 0 ? &plain : &options;
    out[i] = up(zeros, NQ, WW_F32), lse[i] = up(none, NL, WW_F32);
    dq[i] = up(zeros, NQ, WW_F32), dk[i] = up(zeros, NK, WW_F32), dv[i] = up(zeros, NK, WW_F32);
    if (!WORKS("attention", ww_attention_forward_onto(stream, &shape, how, WW_F32, NULL, from[0], from[1], from[2], out[i], lse[i]))) return;
    OK(ww_attention_backward_onto(stream, &shape, how, WW_F32, NULL, from[0], from[1], from[2], out[i], lse[i], error, dq[i], dk[i], dv[i]));
  }
  same(out[0], out[1], NQ);
  same(lse[0], lse[1], NL);
  same(dq[0], dq[1], NQ);
  same(dk[0], dk[1], NK);
  same(dv[0], dv[1], NK);
}

static void refused(const float *qkv) {
  ww_attention_options options = in_rows();
  void *rows = up(qkv, NR, WW_F32), *out = room(NQ, WW_F32);
  float *lse = room(NL, WW_F32);
  const ww_status no = WW_INVALID_ARGUMENT;
  FAILS(no, ww_attention_forward_packed(stream, &shape, &options, WW_F32, rows, out, lse), "`q_row` goes with no packed rows");
  options.k_row = ROW - 1;
  options.k_first = ROW - G * D;
  FAILS(no, ww_attention_forward(stream, &shape, &options, WW_F32, rows, rows, rows, out, lse), "`k_row` is 63");
  options = in_rows();
  options.v_first = SIZE_MAX;
  FAILS(no, ww_attention_forward(stream, &shape, &options, WW_F32, rows, rows, rows, out, lse), "`v_row`");
  options = in_rows();
  options.q_row = 0;
  options.q_first = 1;
  FAILS(no, ww_attention_forward(stream, &shape, &options, WW_F32, rows, rows, rows, out, lse), "`q_row` is 0");
  options.q_row = SIZE_MAX / 2;
  FAILS(no, ww_attention_forward(stream, &shape, &options, WW_F32, rows, rows, rows, out, lse), "`q`");
  options = in_rows();
  FAILS(no, ww_attention_forward(stream, &shape, &options, WW_F32, rows, rows, NULL, out, lse), "`v` is null");
  FAILS(no, ww_attention_forward(stream, &shape, &options, WW_F32, rows, rows, rows, (float *)rows + NR - 1, lse), "overlaps");
}

int main(int count, char **arguments) {
  static float qkv[NR], dout[NQ];
  CHECK(count > 1);
  begin(arguments);
  for (size_t i = 0; i < NR; i++) qkv[i] = (float)(i * 37 % 64) / 32.0f - 1.0f;
  for (size_t i = 0; i < NQ; i++) dout[i] = (float)(i * 29 % 64) / 32.0f - 1.0f;
  whole(qkv, dout);
  in_parts(qkv, dout);
  refused(qkv);
  end("rows");
  return 0;
}
