/*
 * Mixtures of experts: the third part of warpweft.h. What warpweft_kernels.h says of its ops holds here.
 */
#ifndef WARPWEFT_MOE_H
#define WARPWEFT_MOE_H

#include "warpweft_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mixtures of experts ------------------------------------------------------------------------------------------
 * M rows, E experts, K of them a row. An assignment is one of the M K pairs of a row and one of its experts: number row K + k. */

typedef struct ww_moe_shape {
  size_t rows;    /* M */
  size_t experts; /* E */
  size_t top_k;   /* K, at most E */
} ww_moe_shape;

typedef int32_t ww_score;
#define WW_SCORE_SOFTMAX 0
#define WW_SCORE_SIGMOID 1

typedef struct ww_moe_router_options {
  size_t size;          /* sizeof(ww_moe_router_options) */
  ww_score score;       /* what makes scores of logits */
  int32_t unnormalized; /* not 0: the weights of a row are not divided by their sum */
  float scale;          /* what weights are multiplied by at the end; 0 means 1 */
} ww_moe_router_options;

/* The K best experts of each row by score + bias, equal ones by number: logits [M, E], bias [E] or null; scores [M, E], experts
 * [M, K], weights [M, K], which come of the scores alone. On the host: the smallest difference of the last expert chosen and the
 * best that was not, and its row; null for neither. */
ww_status ww_moe_router_forward(const ww_stream *stream, const ww_moe_shape *shape, const ww_moe_router_options *options,
                                ww_dtype dtype, const void *logits, const float *bias, float *scores, uint32_t *experts,
                                float *weights, float *margin, size_t *margin_row);

/* dlogits [M, E] from dweights [M, K] and, or null, dscores [M, E]. */
ww_status ww_moe_router_backward(const ww_stream *stream, const ww_moe_shape *shape, const ww_moe_router_options *options,
                                 ww_dtype dtype, const float *scores, const uint32_t *experts, const float *dweights,
                                 const float *dscores, void *dlogits);

/* keep [M, K]: 1 for assignments that fit where each expert takes at most `capacity` of each of `sequences` equal parts of the
 * rows, the first ones; 0 for the others, whose number goes to *dropped or, null, nowhere. */
ww_status ww_moe_within_capacity(const ww_stream *stream, const ww_moe_shape *shape, size_t sequences, size_t capacity,
                                 const uint32_t *experts, uint32_t *keep, size_t *dropped);

/* In place of an assignment or a place: there is none. */
#define WW_MOE_NONE UINT32_MAX

/* Sorts assignments by expert: counts [E], order [M K] which one lies at each place, places [M K] where each one lies. Those that
 * keep [M K] (or null) marks with 0 have none. *placed, on the host: how many have one. */
ww_status ww_moe_sort(const ww_stream *stream, const ww_moe_shape *shape, const uint32_t *experts, const uint32_t *keep,
                      uint32_t *counts, uint32_t *order, uint32_t *places, size_t *placed);

typedef struct ww_moe_rows {
  size_t rows;     /* M */
  size_t top_k;    /* K */
  size_t channels; /* C */
  size_t placed;   /* assignments that have a place */
} ww_moe_rows;

/* y [placed, C]: the row of x [M, C] of the assignment at each place, order [placed]; times its weight [M, K], or null. */
ww_status ww_moe_permute(const ww_stream *stream, const ww_moe_rows *of, ww_dtype dtype, const uint32_t *order,
                         const float *weights, const void *x, void *y);

/* y [M, C]: for each row the sum of the rows of x [placed, C] at its places [M, K], each times its weight, or null. On a GPU K is at
 * most 3072. */
ww_status ww_moe_combine(const ww_stream *stream, const ww_moe_rows *of, ww_dtype dtype, const uint32_t *places,
                         const float *weights, const void *x, ww_write write, void *y);

/* dweights [M, K] of ww_moe_combine, from its x and dy [M, C]; 0 for assignments without a place. */
ww_status ww_moe_backward_weights(const ww_stream *stream, const ww_moe_rows *of, ww_dtype dtype, const uint32_t *places,
                                  const void *x, const void *dy, float *dweights);

/* Products of a linear layer by expert: counts [experts], on the host, rows each, one expert's behind the other's; x [rows, K],
 * w [experts, N, K], pre [rows, N] or null, y as of ww_matmul_forward; dw [experts, N, K] is added to. On a GPU a launch has up to 256
 * experts. */
ww_status ww_moe_grouped_forward(const ww_stream *stream, size_t experts, const size_t *counts, size_t n, size_t k,
                                 ww_dtype dtype, const void *x, const void *w, ww_activation activation, void *pre, void *y);
ww_status ww_moe_grouped_backward_input(const ww_stream *stream, size_t experts, const size_t *counts, size_t n, size_t k,
                                        ww_dtype dtype, const void *dy, const void *w, ww_write write, void *dx);
ww_status ww_moe_grouped_backward_weight(const ww_stream *stream, size_t experts, const size_t *counts, size_t n, size_t k,
                                         ww_dtype dtype, const void *x, const void *dy, float *dw);

/* The same with what ww_matmul_forward and ww_matmul_backward_input_through take besides: bias is [experts, N], a row for each expert,
 * pre and residual have the rows of x, db is [experts, K], or [experts, 2K] with WW_SWIGLU. Null settings: a product alone. */
ww_status ww_moe_grouped_forward_with(const ww_stream *stream, size_t experts, const size_t *counts, size_t n, size_t k,
                                      ww_dtype dtype, const void *x, const void *w, const ww_matmul_epilogue *epilogue,
                                      void *y);
ww_status ww_moe_grouped_backward_input_through(const ww_stream *stream, size_t experts, const size_t *counts, size_t n, size_t k,
                                                ww_dtype dtype, const void *dy, const void *w,
                                                const ww_matmul_through *through, ww_write write, void *dx);

/* db [experts, N] += the sums of each expert's rows of dy [rows, N]. */
ww_status ww_moe_grouped_backward_bias(const ww_stream *stream, size_t experts, const size_t *counts, size_t n, ww_dtype dtype,
                                       const void *dy, float *db);

/* The auxiliary loss that keeps experts evenly used, sequence by sequence: the sum over experts of f P, f = E / (K T) times the
 * tokens that chose the expert, P the mean of its share of the scores. */
typedef struct ww_moe_sequences {
  ww_moe_shape shape; /* rows are those of the sequences, one after the other */
  size_t sequences;   /* a divisor of the rows */
  size_t tokens;      /* T: tokens of a whole sequence, wherever they are */
} ww_moe_sequences;

/* sums [sequences, 2, E]: tokens here that chose each expert, and the sum of its shares; those of all parts of a sequence add up.
 * *loss, on the host, is the sum of all sequences' losses; dscores [M, E] their gradient times `coefficient`. */
ww_status ww_moe_balance_sums(const ww_stream *stream, const ww_moe_sequences *of, ww_score score, const float *scores,
                              const uint32_t *experts, double *sums);
ww_status ww_moe_balance_loss(const ww_stream *stream, const ww_moe_sequences *of, const double *sums, double *loss);
ww_status ww_moe_balance_backward(const ww_stream *stream, const ww_moe_sequences *of, ww_score score, float coefficient,
                                  const float *scores, const double *sums, float *dscores);

/* Balancing without a loss: bias [experts] moves by `rate`, up where the count is below the mean of counts [experts], down where
 * it is above. */
ww_status ww_moe_move_bias(const ww_stream *stream, size_t experts, float rate, const double *counts, float *bias);

#ifdef __cplusplus
}
#endif

#endif
