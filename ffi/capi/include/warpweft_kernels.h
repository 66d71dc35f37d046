/*
 * The kernels of Warpweft: the second part of warpweft.h, which includes this and says what holds for all: errors, memory, order,
 * structs of settings, letters. Mixtures of experts are the third, warpweft_moe.h.
 */
#ifndef WARPWEFT_KERNELS_H
#define WARPWEFT_KERNELS_H

#include "warpweft.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Kernels ------------------------------------------------------------------------------------------------------
 * dtype is WW_F32, WW_BF16 or WW_F16: the type of every `void *`. Sums are f32 or wider. The same arguments give the same bits
 * on every call, and on the CPU for any number of threads. Gradients of weights are float whatever dtype is, and are ADDED to
 * what is there; other outputs are overwritten, or what `write` says. Every op has a CPU path, and kernels for GPUs of compute
 * capability 8.0 and later; on an earlier card a call is WW_INVALID_ARGUMENT, and the message names the card. On a GPU rows, columns
 * and lengths of sums are at most 2^31 - 1; where an op has other limits there, they stand beside it, and WW_INVALID_ARGUMENT names the
 * size. */

/* What to do with a gradient that is already there. */
typedef int32_t ww_write;
#define WW_SET 0 /* overwrite it */
#define WW_ADD 1 /* add to it */

/* y = activation(scale x w^T + bias) + residual. */
typedef int32_t ww_activation;
#define WW_NONE 0
#define WW_GELU_TANH 1
#define WW_GELU_ERF 2
#define WW_SWIGLU 3 /* w is [2F, K]: F rows of the gate, then F of up; n = 2F and y is [M, F] = silu(gate) * up */
#define WW_RELU 4

typedef struct ww_matmul_epilogue {
  size_t size;              /* sizeof(ww_matmul_epilogue) */
  const void *bias;         /* [N], or null */
  void *pre;                /* [M, N]: keeps the activation's argument for the backward pass; or null */
  const void *residual;     /* the shape of y, or null */
  ww_activation activation;
  float scale;              /* factor of x w^T; 0 means 1 */
} ww_matmul_epilogue;

/* x [M, K], w [N, K] as in PyTorch's nn.Linear, y [M, N] or with WW_SWIGLU [M, N/2]. A null epilogue does nothing to x w^T. */
ww_status ww_matmul_forward(const ww_stream *stream, size_t m, size_t n, size_t k, ww_dtype dtype, const void *x,
                            const void *w, const ww_matmul_epilogue *epilogue, void *y);

/* y = activation(pre): what the forward call makes of the argument that it keeps. */
ww_status ww_matmul_activate(const ww_stream *stream, size_t m, size_t n, ww_activation activation, ww_dtype dtype,
                             const void *pre, void *y);

/* dx [M, K] = dy [M, N] w [N, K]. */
ww_status ww_matmul_backward_input(const ww_stream *stream, size_t m, size_t n, size_t k, ww_dtype dtype, const void *dy,
                                   const void *w, ww_write write, void *dx);

/* The same and, in one pass, through the activation that x came out of: dx = scale (dy w) activation'(pre); and, with WW_SET, the
 * gradient of the bias before that: db += the sum of dx's rows. */
typedef struct ww_matmul_through {
  size_t size;              /* sizeof(ww_matmul_through) */
  const void *pre;          /* the activation's argument [M, K], or [M, 2K] with WW_SWIGLU, as dx then is; null without one */
  ww_activation activation;
  float scale;              /* 0 means 1 */
  float *db;                /* [K], or [2K] with WW_SWIGLU; null without */
} ww_matmul_through;

ww_status ww_matmul_backward_input_through(const ww_stream *stream, size_t m, size_t n, size_t k, ww_dtype dtype,
                                           const void *dy, const void *w, const ww_matmul_through *through,
                                           ww_write write, void *dx);

/* dw [N, K] += dy^T x. */
ww_status ww_matmul_backward_weight(const ww_stream *stream, size_t m, size_t n, size_t k, ww_dtype dtype, const void *x,
                                    const void *dy, float *dw);

/* db [N] += the sum of the M rows of dy [M, N]. On a GPU N is at most 2,097,120, and so are the columns of db above. */
ww_status ww_matmul_backward_bias(const ww_stream *stream, size_t m, size_t n, ww_dtype dtype, const void *dy, float *db);

/* dpre [M, N] = the gradient through the activation at pre [M, N]; dy has the shape of y. */
ww_status ww_matmul_backward_activation(const ww_stream *stream, size_t m, size_t n, ww_activation activation,
                                        ww_dtype dtype, const void *pre, const void *dy, void *dpre);

/* Attention: out = softmax(scale q k^T) v, head by head; query head h uses key head h * G / H. No array of queries x keys exists.
 *
 * Causal is aligned at the BOTTOM RIGHT: query i sees key j where j <= i + keys - queries, so that the last query sees every key.
 * (PyTorch's scaled_dot_product_attention with is_causal aligns at the TOP LEFT; the two agree where queries == keys.)
 * A window is aligned likewise: query i sees i + keys - queries - window_left <= j <= i + keys - queries + window_right.
 * A score is scale q k, then c tanh(score / c) with a softcap c, then less slope * |i + keys - queries - j| with ALiBi; dropout
 * comes last, on the weights. A query that sees no key has output 0, log-sum-exp -infinity and zero gradients.
 * On a GPU the head size is a multiple of 8, at most 256; q, k, v, out, dout and their gradients of any dtype begin at multiples of 16
 * bytes (gradients that are float at multiples of 8), and rows are multiples of 8 elements, as q_row and q_first are. */
typedef struct ww_attention_shape {
  size_t batch;     /* B */
  size_t queries;   /* tokens of q; of the longest sequence where there are starts */
  size_t keys;      /* tokens of k and v; likewise */
  size_t heads;     /* H, a multiple of kv_heads */
  size_t kv_heads;  /* G */
  size_t head_size; /* D */
} ww_attention_shape;

typedef struct ww_attention_options {
  size_t size;                  /* sizeof(ww_attention_options) */
  int32_t causal;               /* not 0: causal */
  float scale;                  /* factor of q k^T; 0 means 1 / sqrt(D) */
  float softcap;                /* 0: none */
  int32_t window;               /* not 0: the two fields below count */
  int64_t window_left;          /* keys before the one beside the query; -1: no limit */
  int64_t window_right;         /* keys after it; -1: no limit */
  float dropout;                /* probability that a weight is dropped, counted in multiples of 2^-16 */
  uint32_t first_sequence;      /* number of the first sequence here among all: dropout is a function of these numbers */
  uint64_t seed;                /* of dropout; backward takes the same */
  uint32_t first_head;          /* number of the first query head here among all */
  const float *alibi_slopes;    /* [H], in the device's memory; or null */
  const uint32_t *query_starts; /* [batch + 1] each, in the device's memory: where sequences begin, one behind the other, */
  const uint32_t *key_starts;   /* and the number of all tokens at the end; or null: sequences of equal length */
  size_t all_queries;           /* with starts: q and out are [all_queries, H, D], lse is [H, all_queries], */
  size_t all_keys;              /* k and v are [all_keys, G, D] */
  size_t q_row, k_row, v_row;   /* elements from one token to the next where q, k, v lie in longer rows, to whose begin they point; */
  size_t q_first, k_first, v_first; /* 0: nothing is between. And the first element of such a row that is theirs */
} ww_attention_options;

/* q and out [B, queries, H, D], k and v [B, keys, G, D], lse [B, H, queries]: the log of the sum of the exponentials, which the
 * backward pass needs. Null options: all defaults. */
ww_status ww_attention_forward(const ww_stream *stream, const ww_attention_shape *shape,
                               const ww_attention_options *options, ww_dtype dtype, const void *q, const void *k,
                               const void *v, void *out, float *lse);

/* dq, dk and dv have the shapes of q, k and v and are overwritten; out and lse come from the forward pass. */
ww_status ww_attention_backward(const ww_stream *stream, const ww_attention_shape *shape,
                                const ww_attention_options *options, ww_dtype dtype, const void *q, const void *k,
                                const void *v, const void *out, const float *lse, const void *dout, void *dq, void *dk,
                                void *dv);

/* The same where one product made q, k and v: qkv and dqkv [B, queries, (H + 2 G) D] hold the heads of q, then of k, then of v,
 * and keys == queries. Slopes, starts and longer rows are not for these. */
ww_status ww_attention_forward_packed(const ww_stream *stream, const ww_attention_shape *shape,
                                      const ww_attention_options *options, ww_dtype dtype, const void *qkv, void *out,
                                      float *lse);
ww_status ww_attention_backward_packed(const ww_stream *stream, const ww_attention_shape *shape,
                                       const ww_attention_options *options, ww_dtype dtype, const void *qkv,
                                       const void *out, const float *lse, const void *dout, void *dqkv);

/* The same where keys come in parts, as in ring attention: each call joins `keys` more keys and values to what out and lse stand
 * for, which are float. Begin with lse = -infinity; out is not read there. With seen [queries], in the device's memory, query i
 * sees the first seen[i] of these keys, a number that does not fall; null: what the options say, for seen goes with neither causal nor
 * a window. Dropout, slopes and starts, which count keys of the whole, are refused here and in backward. */
ww_status ww_attention_forward_onto(const ww_stream *stream, const ww_attention_shape *shape,
                                    const ww_attention_options *options, ww_dtype dtype, const uint32_t *seen,
                                    const void *q, const void *k, const void *v, float *out, float *lse);

/* Adds what these keys and values give to dq and get in dk and dv, which are float; out, of the call's dtype, and lse are those of
 * all keys together. */
ww_status ww_attention_backward_onto(const ww_stream *stream, const ww_attention_shape *shape,
                                     const ww_attention_options *options, ww_dtype dtype, const uint32_t *seen,
                                     const void *q, const void *k, const void *v, const void *out, const float *lse,
                                     const void *dout, float *dq, float *dk, float *dv);

/* LayerNorm over the C channels of each row: y = (x - mean) rstd w + b; x and y [rows, C], w and b [C], mean and rstd [rows]. */
ww_status ww_layernorm_forward(const ww_stream *stream, size_t rows, size_t channels, float eps, ww_dtype dtype,
                               const void *x, const void *w, const void *b, void *y, float *mean, float *rstd);

/* The end of a residual branch on the way: sum [rows, C] = x + branch, and the norm of that. */
ww_status ww_layernorm_forward_residual(const ww_stream *stream, size_t rows, size_t channels, float eps, ww_dtype dtype,
                                        const void *x, const void *branch, const void *w, const void *b, void *sum, void *y,
                                        float *mean, float *rstd);

/* dx [rows, C]; dw and db [C], on a GPU of at most 2,097,120 channels. */
ww_status ww_layernorm_backward_input(const ww_stream *stream, size_t rows, size_t channels, ww_dtype dtype, const void *dy,
                                      const void *x, const void *w, const float *mean, const float *rstd, ww_write write,
                                      void *dx);
ww_status ww_layernorm_backward_weight(const ww_stream *stream, size_t rows, size_t channels, ww_dtype dtype, const void *dy,
                                       const void *x, const float *mean, const float *rstd, float *dw, float *db);

/* RMSNorm over the C channels of each row: y = x rstd w, rstd = 1 / sqrt(mean of x^2 + eps). */
ww_status ww_rmsnorm_forward(const ww_stream *stream, size_t rows, size_t channels, float eps, ww_dtype dtype,
                             const void *x, const void *w, void *y, float *rstd);

/* The end of a residual branch on the way: sum [rows, C] = x + branch, and the norm of that. */
ww_status ww_rmsnorm_forward_residual(const ww_stream *stream, size_t rows, size_t channels, float eps, ww_dtype dtype,
                                      const void *x, const void *branch, const void *w, void *sum, void *y, float *rstd);

/* dx [rows, C]; dw [C], on a GPU of at most 2,097,120 channels. */
ww_status ww_rmsnorm_backward_input(const ww_stream *stream, size_t rows, size_t channels, ww_dtype dtype, const void *dy,
                                    const void *x, const void *w, const float *rstd, ww_write write, void *dx);
ww_status ww_rmsnorm_backward_weight(const ww_stream *stream, size_t rows, size_t channels, ww_dtype dtype, const void *dy,
                                     const void *x, const float *rstd, float *dw);

/* Softmax of each row, y = e^(scale x - max) / sum; x and y [rows, columns], rows of any length. Masked elements are not used (they
 * may be NaN), and are 0 in y; a row of -infinity only, or in which all is masked, is all 0.
 * A mask can be given as bytes: any but 0 HIDES its element, as in Megatron's scaled masked softmax. With x [B, heads, queries,
 * columns] it is [B, queries, columns]: all mask_heads of a batch element share one. mask_heads = B * heads shares it over the batch
 * too, 1 gives every row its own; mask_queries = 1 with mask_heads = heads * queries is a mask of padding, [B, columns]. */
typedef struct ww_softmax_options {
  size_t size;    /* sizeof(ww_softmax_options) */
  size_t queries; /* with causal: rows of a sequence, a divisor of `rows` */
  int32_t causal; /* not 0: row i of a sequence sees column j where j <= i + columns - queries: aligned at the bottom right */
  float scale;    /* 0 means 1 */
  const uint8_t *hidden; /* [rows / mask_heads, columns], in the device's memory; or null: none is given */
  size_t mask_heads;     /* heads that share a mask; 0 means 1 */
  size_t mask_queries;   /* rows of the mask for each of them; 0 means 1; mask_heads * mask_queries divides `rows` */
} ww_softmax_options;

ww_status ww_softmax_forward(const ww_stream *stream, size_t rows, size_t columns, const ww_softmax_options *options,
                             ww_dtype dtype, const void *x, void *y);

/* dx = scale y (dy - sum of y dy), from the output y. Where y is 0, as behind any mask, dy is not used and dx is 0: the options'
 * `hidden` is not read. */
ww_status ww_softmax_backward(const ww_stream *stream, size_t rows, size_t columns, const ww_softmax_options *options,
                              ww_dtype dtype, const void *dy, const void *y, ww_write write, void *dx);

/* Cross-entropy of rows of logits against a target class each, in nats, fused with the softmax. A target that is ignored has
 * loss 0 and zero gradient; PyTorch's ignore_index of -100 is 4294967196 here. A target outside the vocabulary is an error that
 * names its row. */
typedef struct ww_cross_entropy_options {
  size_t size;      /* sizeof(ww_cross_entropy_options) */
  int32_t ignoring; /* not 0: rows whose target is `ignore` do not count */
  uint32_t ignore;
  float smoothing;  /* s in [0, 1]: the target distribution is 1 - s at the target and s spread evenly over all classes */
  float z_loss;     /* at least 0: z_loss lse^2 is added to each row's loss */
  float softcap;    /* c: logits count as c tanh(logit / c); 0: none */
} ww_cross_entropy_options;

/* logits [rows, V], targets [rows], losses [rows], lse [rows]: the log of the sum of the exponentials, which the backward pass
 * needs. *loss, on the host, is the sum of the losses and *counted the number of rows in it; null for neither. */
ww_status ww_cross_entropy_forward(const ww_stream *stream, size_t rows, size_t vocab,
                                   const ww_cross_entropy_options *options, ww_dtype dtype, const void *logits,
                                   const uint32_t *targets, float *losses, float *lse, double *loss, size_t *counted);

/* Replaces the logits by their gradient, (softmax - onehot) scale without the three options above; scale = 1 / counted is that of the
 * mean loss. */
ww_status ww_cross_entropy_backward(const ww_stream *stream, size_t rows, size_t vocab,
                                    const ww_cross_entropy_options *options, ww_dtype dtype, void *logits,
                                    const uint32_t *targets, const float *lse, float scale);

/* The same where ranks share the vocabulary: this one has `vocab` classes, from class `first` of `all`. Each rank writes
 * parts [rows, 3]: its largest logit, the sum of e^(logit - largest), the target's logit (0 where another rank has it). The
 * parts [ranks, rows, 3] of all ranks, gathered, give every rank the losses and the normaliser [rows, 2] of the gradient. */
ww_status ww_cross_entropy_forward_shard(const ww_stream *stream, size_t rows, size_t vocab, size_t first, size_t all,
                                         const ww_cross_entropy_options *options, ww_dtype dtype, const void *logits,
                                         const uint32_t *targets, double *parts);
ww_status ww_cross_entropy_merge(const ww_stream *stream, size_t ranks, size_t rows,
                                 const ww_cross_entropy_options *options, const double *parts, const uint32_t *targets,
                                 float *losses, double *normaliser, double *loss, size_t *counted);
ww_status ww_cross_entropy_backward_shard(const ww_stream *stream, size_t rows, size_t vocab, size_t first, size_t all,
                                          const ww_cross_entropy_options *options, ww_dtype dtype, void *logits,
                                          const uint32_t *targets, const double *normaliser, float scale);

/* Embedding: y[b, t] = table[ids[b, t]] + position_table[t]. A token outside the vocabulary is an error that names its row. */
typedef struct ww_embedding_shape {
  size_t batch;     /* B */
  size_t tokens;    /* T */
  size_t channels;  /* C */
  size_t vocab;     /* V, rows of the table */
  size_t positions; /* rows of the table of positions, at least T where there is one */
} ww_embedding_shape;

/* ids [B, T], table [V, C], position_table [positions, C] or null, y [B, T, C]. */
ww_status ww_embedding_forward(const ww_stream *stream, const ww_embedding_shape *shape, ww_dtype dtype,
                               const uint32_t *ids, const void *table, const void *position_table, void *y);

/* dtable [V, C], and dpositions [positions, C] or null. On a GPU C is at most 8,388,480. */
ww_status ww_embedding_backward(const ww_stream *stream, const ww_embedding_shape *shape, ww_dtype dtype,
                                const uint32_t *ids, const void *dy, float *dtable, float *dpositions);

/* The same where ranks share the table: this one has shape->vocab rows, from row `first` of `all`. Tokens of other ranks' rows
 * give 0, so that the sum over the ranks is the embedding; shape->positions is not used. */
ww_status ww_embedding_forward_shard(const ww_stream *stream, const ww_embedding_shape *shape, size_t first, size_t all,
                                     ww_dtype dtype, const uint32_t *ids, const void *table, ww_write write, void *y);
ww_status ww_embedding_backward_shard(const ww_stream *stream, const ww_embedding_shape *shape, size_t first, size_t all,
                                      ww_dtype dtype, const uint32_t *ids, const void *dy, float *dtable);

/* One step of a list of tensors. With g = grad_scale * grad:
 * WW_ADAMW  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 *           w -= lr ((m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay w)
 * WW_ADAM   the same of g + weight_decay w, and no other decay
 * WW_SGD    g += weight_decay w;  m = g at step 1, else momentum m + (1 - dampening) g;
 *           w -= lr (m, or g + momentum m with nesterov, or g without momentum)
 * all in PyTorch's form. Every device gives the same bits. */
typedef int32_t ww_rule;
#define WW_ADAMW 0
#define WW_ADAM 1
#define WW_SGD 2

typedef struct ww_optimizer_options {
  size_t size;           /* sizeof(ww_optimizer_options) */
  ww_rule rule;
  int32_t nesterov;      /* not 0: Nesterov's form of WW_SGD */
  double beta1;
  double beta2;
  double eps;
  double momentum;
  double dampening;
  double weight_decay;   /* of the tensors that have `decay` set */
  double lr;
  uint64_t step;         /* the number of this step, from 1; 0 is refused */
  double grad_scale;     /* the factor on every gradient: the clip coefficient, or 1 */
  const double *control; /* [5] in the device's memory, instead of the three numbers above; or null */
  uint64_t seed;         /* with stochastic */
  int32_t stochastic;    /* not 0: parameters are rounded up or down by chance, so that the mean is right. For WW_BF16 without
                          * master. A pure function of seed, step, tensor and element: the same on every device */
} ww_optimizer_options;

/* PyTorch's defaults of a rule: betas 0.9 and 0.999, eps 1e-8, no momentum, weight_decay 1e-2 for WW_ADAMW and else 0; lr 1e-3,
 * step 1, grad_scale 1; and the size. */
ww_status ww_optimizer_options_default(ww_rule rule, ww_optimizer_options *options);

/* A tensor, its gradient and its state, `count` elements each. All tensors of a list say the same size. */
typedef struct ww_optimizer_tensor {
  size_t size;       /* sizeof(ww_optimizer_tensor) */
  void *param;       /* of the call's dtype */
  float *master;     /* the parameter in f32, which is updated and param its rounding; or null */
  const float *grad;
  void *m;           /* of the call's m_dtype, WW_F32 or WW_BF16; null for WW_SGD without momentum */
  float *v;          /* null for WW_SGD */
  size_t count;
  int32_t decay;     /* not 0: weight decay applies */
  uint32_t tensor;   /* with stochastic: the number of the tensor, and that of its first element here where ranks share it, */
  uint64_t first;    /* on a GPU best a multiple of 4 */
} ww_optimizer_tensor;

ww_status ww_optimizer_step(const ww_stream *stream, const ww_optimizer_options *options, ww_dtype dtype, ww_dtype m_dtype,
                            const ww_optimizer_tensor *tensors, size_t count);

/* A step whose numbers stay on the device, so that the host waits for none of them: ww_optimizer_begin writes control [5], which is
 * lr, step, grad_scale, skip (0) and norm (0); ww_norm_sum_of_squares_into and ww_norm_clip make grad_scale, skip and norm of the
 * gradients; ww_optimizer_step takes them. Kernels of yours may write it too. Where skip is not 0, or grad_scale not finite, no step
 * is taken; a step that is no whole number from 1 on, or a learning rate below 0 or not finite, is WW_BAD_DATA at the next
 * synchronisation, and no step is taken. */
ww_status ww_optimizer_begin(const ww_stream *stream, double lr, uint64_t step, double grad_scale, double *control);

/* The sum of the squares of all elements of a list of `count` arrays of counts[i] elements: the global norm is its root. It
 * cannot overflow; a NaN or an infinity comes through. */
ww_status ww_norm_sum_of_squares(const ww_stream *stream, const float *const *tensors, const size_t *counts, size_t count,
                                 double *sum);

/* The same into squares [1] on the device, without waiting. */
ww_status ww_norm_sum_of_squares_into(const ww_stream *stream, const float *const *tensors, const size_t *counts,
                                      size_t count, double *squares);

/* min(1, max_norm / (norm + 1e-6)): the factor that clips gradients of that norm. NaN where the norm is, 0 where that is
 * infinite. */
double ww_norm_clip_coefficient(double norm, double max_norm);

/* The same on the device, from squares [1] and without waiting: the norm, that of the gradients times control's grad_scale, is written to
 * control [5]; grad_scale is multiplied by the factor; skip is set where the norm is not finite. An infinite max_norm does not clip. */
ww_status ww_norm_clip(const ww_stream *stream, const double *squares, double max_norm, double *control);

/* Multiplies all elements by `factor`. */
ww_status ww_norm_scale(const ww_stream *stream, float *const *tensors, const size_t *counts, size_t count, double factor);

/* Rotary positions, in place: the pair d of a head at position p is turned by p * base^(-2d / D). */
typedef struct ww_rope_shape {
  size_t batch;      /* B */
  size_t tokens;     /* T */
  size_t heads;      /* that are turned, the first ones of each row */
  size_t head_size;  /* D, even; on a GPU at most 8192 */
  size_t row_stride; /* elements from a token to the next, at least heads * D; 0 means just that */
} ww_rope_shape;

typedef struct ww_rope_options {
  size_t size;         /* sizeof(ww_rope_options) */
  size_t position;     /* of the first token; added to every position where those are given */
  float base;          /* 0 means 10000 */
  int32_t interleaved; /* not 0: the pairs are (2d, 2d + 1), else (d, d + D/2) */
} ww_rope_options;

/* x [B, T, row_stride], positions [B, T] or null for 0, 1, 2, ...; backward turns a gradient the other way. */
ww_status ww_rope_forward(const ww_stream *stream, const ww_rope_shape *shape, const ww_rope_options *options,
                          ww_dtype dtype, const uint32_t *positions, void *x);
ww_status ww_rope_backward(const ww_stream *stream, const ww_rope_shape *shape, const ww_rope_options *options,
                           ww_dtype dtype, const uint32_t *positions, void *dx);

/* From one of WW_F32, WW_BF16 and WW_F16 to another, rounded to nearest even. */
ww_status ww_cast(const ww_stream *stream, size_t count, ww_dtype from_dtype, const void *from, ww_dtype to_dtype, void *to);

/* out = x + branch + bias; x, branch and out [rows, C], bias [C] or null. */
ww_status ww_residual_forward(const ww_stream *stream, size_t rows, size_t channels, ww_dtype dtype, const void *x,
                              const void *branch, const void *bias, void *out);

/* The same with dropout: out = x + kept (branch + bias) / (1 - p). The mask is a pure function of seed, sequence (say, the number of a
 * layer in a step) and element: the same on every device, for any split of the rows, and in the backward pass. */
typedef struct ww_dropout {
  size_t size;       /* sizeof(ww_dropout) */
  uint64_t seed;
  uint64_t sequence;
  uint64_t first;    /* the number of the first element here in the whole tensor; on a GPU best a multiple of 8 */
  float probability; /* p, from 0 to 1, counted in multiples of 2^-16 */
} ww_dropout;

ww_status ww_residual_forward_dropout(const ww_stream *stream, size_t rows, size_t channels, const ww_dropout *dropout,
                                      ww_dtype dtype, const void *x, const void *branch, const void *bias, void *out);

/* dbranch = kept dout / (1 - p), [rows, C] both. The gradient of x is dout; that of the bias is ww_matmul_backward_bias of dbranch. */
ww_status ww_residual_backward_dropout(const ww_stream *stream, size_t rows, size_t channels, const ww_dropout *dropout,
                                       ww_dtype dtype, const void *dout, void *dbranch);

/* y[b, c, r] = x[b, r, c]: x [batch, rows, columns], y [batch, columns, rows]. */
ww_status ww_transpose(const ww_stream *stream, size_t batch, size_t rows, size_t columns, ww_dtype dtype, const void *x,
                       void *y);

/* out[i] = value, rounded to dtype. */
ww_status ww_fill(const ww_stream *stream, size_t count, double value, ww_dtype dtype, void *out);

/* Random numbers: Philox 4x32-10, a pure function of seed, sequence (say, the number of a tensor) and element; those of elements
 * first, first + 1, ... of the sequence. Uniform in [low, high) before rounding to dtype, the same bits on every device; normal by
 * Box and Muller in f64, whose last bits may differ between devices. */
ww_status ww_random_uniform(const ww_stream *stream, uint64_t seed, uint64_t sequence, uint64_t first, float low, float high,
                            size_t count, ww_dtype dtype, void *out);
ww_status ww_random_normal(const ww_stream *stream, uint64_t seed, uint64_t sequence, uint64_t first, float mean, float std,
                           size_t count, ww_dtype dtype, void *out);

#ifdef __cplusplus
}
#endif

#include "warpweft_moe.h"

#endif
