/*
 * Warpweft: collective communication and kernels for training, for C and whatever can call C.
 *
 * Errors.  Every function that can fail returns a status: WW_OK, or what went wrong. ww_last_error() then gives one
 *   sentence for the calling thread: which argument or which rank, what was expected, what to do. A null pointer or a
 *   wrong argument is an error and nothing is written; nothing here ends the process, and no exception crosses.
 * Threads. Different handles may be used from different threads at once. A ww_device may be used from many threads at once.
 *   Calls on one ww_comm run one after the other; all ranks must make the same calls in the same order. A handle must not be
 *   in use when it is closed or destroyed.
 * Memory.  Pointers are host memory of the caller, aligned to their element type and, for arguments that are written, not
 *   overlapping any other argument except where in-place use is described. Counts are elements, never bytes.
 *   A pointer of which no element is used may be null.
 * Letters. B batch, T tokens of a sequence, H query heads, G key/value heads, D head size, C channels.
 *   Arrays are row-major: [B, T, H, D] has D contiguous.
 */
#ifndef WARPWEFT_H
#define WARPWEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong. */
typedef int32_t ww_status;
#define WW_OK 0
#define WW_INVALID_ARGUMENT 1 /* an argument or setting that cannot be served; the message names it */
#define WW_NO_DEVICE 2        /* no such device here; the message says what was looked for */
#define WW_OUT_OF_MEMORY 3
#define WW_PEER_FAILED 4      /* a rank died or its link broke; the message names it */
#define WW_TIMED_OUT 5        /* a rank did not answer within the deadline */
#define WW_ABORTED 6          /* a rank called ww_comm_abort */
#define WW_MISMATCH 7         /* the ranks made different calls */
#define WW_SYSTEM 8           /* the operating system refused something */
#define WW_INTERNAL 9         /* a defect of this library, caught at its boundary: please report it */

/* Element types. */
typedef int32_t ww_dtype;
#define WW_F64 0
#define WW_F32 1
#define WW_F16 2  /* IEEE half */
#define WW_BF16 3 /* bfloat16 */
#define WW_I8 4
#define WW_I16 5
#define WW_I32 6
#define WW_I64 7
#define WW_U8 8
#define WW_U16 9
#define WW_U32 10
#define WW_U64 11

/* Reductions. f16 and bf16 are summed in f32 and rounded once. WW_AVG is the sum over the number of ranks. */
typedef int32_t ww_op;
#define WW_SUM 0
#define WW_PROD 1
#define WW_MIN 2
#define WW_MAX 3
#define WW_AVG 4

/* The version of the library, `0.1.0`. Never null; valid for ever. */
const char *ww_version(void);

/* The sentence of the last error of the calling thread; empty before the first. Never null; valid until the next error of
 * this thread. */
const char *ww_last_error(void);

/* ---- Devices ---------------------------------------------------------------------------------------------------- */

typedef struct ww_device ww_device;

/* Opens a device by name: "cpu", or "cpu:4" for four threads. WW_NO_DEVICE where there is no such device. */
ww_status ww_device_open(const char *name, ww_device **device);

/* Closes it. Null is allowed and does nothing. */
ww_status ww_device_close(ww_device *device);

/* ---- Communicators ---------------------------------------------------------------------------------------------- */

typedef struct ww_comm ww_comm;

/* Names a job of threads of this process. Made once, given to every rank. */
typedef struct ww_unique_id {
  unsigned char bytes[128];
} ww_unique_id;

/* A new, random id. */
ww_status ww_unique_id_create(ww_unique_id *id);

/* Makes `rank` (0 to world - 1) of a job whose ranks are threads of this process. Returns when all `world` ranks have called
 * it with the same id, or with an error after the deadline of 10 minutes. A rank that is taken, or a world that differs from
 * what another rank gave, is WW_INVALID_ARGUMENT. */
ww_status ww_comm_create(const ww_unique_id *id, size_t world, size_t rank, ww_comm **comm);

/* Makes this process's rank of a job that a launcher started, from the environment that torchrun sets: RANK, WORLD_SIZE,
 * LOCAL_RANK, MASTER_ADDR, MASTER_PORT. WW_INVALID_ARGUMENT where they are missing or contradict each other. */
ww_status ww_comm_create_from_env(ww_comm **comm);

/* Leaves the job and frees the handle. Null is allowed and does nothing. */
ww_status ww_comm_destroy(ww_comm *comm);

/* This rank, and the number of ranks. */
ww_status ww_comm_rank(const ww_comm *comm, size_t *rank);
ww_status ww_comm_world(const ww_comm *comm, size_t *world);

/* How long a call may wait for another rank, in seconds, more than 0. */
ww_status ww_comm_set_timeout(ww_comm *comm, double seconds);

/* Ends every call in flight and to come, on all ranks, with WW_ABORTED. May be called while another thread is in a call on the
 * same communicator. `reason` becomes part of every rank's message; null for none. */
ww_status ww_comm_abort(const ww_comm *comm, const char *reason);

/* Splits into one communicator for each color, ranked by key, then by the old rank. Every rank calls it. A negative color joins
 * none: *part is then set to null. */
ww_status ww_comm_split(const ww_comm *comm, int32_t color, int64_t key, ww_comm **part);

/* Collectives. Every rank gives the same count, type, op and root; a difference is WW_MISMATCH on all ranks. */

/* recv[i] = op over ranks of send[i]; count elements each. In place where send == recv. */
ww_status ww_all_reduce(const ww_comm *comm, const void *send, void *recv, size_t count, ww_dtype dtype, ww_op op);

/* recv = the send arrays of all ranks in rank order: `count` elements sent, world * count received. In place where
 * send == recv + rank * count. */
ww_status ww_all_gather(const ww_comm *comm, const void *send, void *recv, size_t count, ww_dtype dtype);

/* recv = this rank's part of the reduction of the send arrays: world * count elements sent, `count` received. In place where
 * recv == send + rank * count; the other parts of send are then overwritten. */
ww_status ww_reduce_scatter(const ww_comm *comm, const void *send, void *recv, size_t count, ww_dtype dtype, ww_op op);

/* buffer of every rank = buffer of rank `root`. */
ww_status ww_broadcast(const ww_comm *comm, void *buffer, size_t count, ww_dtype dtype, size_t root);

/* Block r of send goes to rank r, block r of recv comes from it; world blocks of `count` elements each. Not in place. */
ww_status ww_all_to_all(const ww_comm *comm, const void *send, void *recv, size_t count, ww_dtype dtype);

/* Returns when every rank has called it. */
ww_status ww_barrier(const ww_comm *comm);

/* Point to point; the peer makes the matching call. Two ranks that send to each other use ww_sendrecv. */
ww_status ww_send(const ww_comm *comm, const void *buffer, size_t count, ww_dtype dtype, size_t peer);
ww_status ww_recv(const ww_comm *comm, void *buffer, size_t count, ww_dtype dtype, size_t peer);
ww_status ww_sendrecv(const ww_comm *comm, const void *send, size_t send_count, size_t to, void *recv, size_t recv_count,
                      size_t from, ww_dtype dtype);

/* ---- Kernels ------------------------------------------------------------------------------------------------------
 * dtype is WW_F32, WW_BF16 or WW_F16: the type of every `void *`. Sums are f32. Results do not depend on the number of
 * threads. Gradients of weights are float whatever dtype is, and are ADDED to what is there; other outputs are overwritten. */

/* y = activation(x w^T + bias) + residual. */
typedef int32_t ww_activation;
#define WW_NONE 0
#define WW_GELU_TANH 1
#define WW_GELU_ERF 2
#define WW_SWIGLU 3 /* w is [2F, K]: F rows of the gate, then F of up; n = 2F and y is [M, F] = silu(gate) * up */

typedef struct ww_matmul_epilogue {
  const void *bias;         /* [N], or null */
  ww_activation activation;
  void *pre;                /* [M, N]: keeps the activation's argument for the backward pass; or null */
  const void *residual;     /* the shape of y, or null */
} ww_matmul_epilogue;

/* x [M, K], w [N, K] as in PyTorch's nn.Linear, y [M, N] or with WW_SWIGLU [M, N/2]. A null epilogue does nothing to x w^T. */
ww_status ww_matmul_forward(const ww_device *device, size_t m, size_t n, size_t k, ww_dtype dtype, const void *x,
                            const void *w, const ww_matmul_epilogue *epilogue, void *y);

/* dx [M, K] = dy [M, N] w [N, K]. */
ww_status ww_matmul_backward_input(const ww_device *device, size_t m, size_t n, size_t k, ww_dtype dtype, const void *dy,
                                   const void *w, void *dx);

/* dw [N, K] += dy^T x. */
ww_status ww_matmul_backward_weight(const ww_device *device, size_t m, size_t n, size_t k, ww_dtype dtype, const void *x,
                                    const void *dy, float *dw);

/* db [N] += the sum of the M rows of dy [M, N]. */
ww_status ww_matmul_backward_bias(const ww_device *device, size_t m, size_t n, ww_dtype dtype, const void *dy, float *db);

/* dpre [M, N] = the gradient through the activation at pre [M, N]; dy has the shape of y. */
ww_status ww_matmul_backward_activation(const ww_device *device, size_t m, size_t n, ww_activation activation,
                                        ww_dtype dtype, const void *pre, const void *dy, void *dpre);

/* Attention: out = softmax(scale q k^T) v, head by head; query head h uses key head h * G / H.
 *
 * Causal is aligned at the BOTTOM RIGHT: query i sees key j where j <= i + keys - queries, so that the last query sees every key.
 * (PyTorch's scaled_dot_product_attention with is_causal aligns at the top left; the two agree where queries == keys.)
 * A query that sees no key has output 0, log-sum-exp -infinity and zero gradients. No array of queries x keys exists. */
typedef struct ww_attention_shape {
  size_t batch;     /* B */
  size_t queries;   /* tokens of q */
  size_t keys;      /* tokens of k and v */
  size_t heads;     /* H, a multiple of kv_heads */
  size_t kv_heads;  /* G */
  size_t head_size; /* D */
} ww_attention_shape;

typedef struct ww_attention_options {
  int32_t causal; /* not 0: causal */
  float scale;    /* factor of q k^T; 0 means 1 / sqrt(D) */
} ww_attention_options;

/* q and out [B, queries, H, D], k and v [B, keys, G, D], lse [B, H, queries]: the log of the sum of the exponentials, which the
 * backward pass needs. Null options: not causal, scale 1 / sqrt(D). */
ww_status ww_attention_forward(const ww_device *device, const ww_attention_shape *shape,
                               const ww_attention_options *options, ww_dtype dtype, const void *q, const void *k,
                               const void *v, void *out, float *lse);

/* dq, dk and dv have the shapes of q, k and v and are overwritten; out and lse come from the forward pass. */
ww_status ww_attention_backward(const ww_device *device, const ww_attention_shape *shape,
                                const ww_attention_options *options, ww_dtype dtype, const void *q, const void *k,
                                const void *v, const void *out, const float *lse, const void *dout, void *dq, void *dk,
                                void *dv);

/* LayerNorm over the C channels of each row: y = (x - mean) rstd w + b; x and y [rows, C], w and b [C], mean and rstd [rows]. */
ww_status ww_layernorm_forward(const ww_device *device, size_t rows, size_t channels, float eps, ww_dtype dtype,
                               const void *x, const void *w, const void *b, void *y, float *mean, float *rstd);

/* dx [rows, C] is overwritten; dw and db [C] are added to. */
ww_status ww_layernorm_backward(const ww_device *device, size_t rows, size_t channels, ww_dtype dtype, const void *dy,
                                const void *x, const void *w, const float *mean, const float *rstd, void *dx, float *dw,
                                float *db);

/* RMSNorm over the C channels of each row: y = x rstd w, rstd = 1 / sqrt(mean of x^2 + eps). */
ww_status ww_rmsnorm_forward(const ww_device *device, size_t rows, size_t channels, float eps, ww_dtype dtype,
                             const void *x, const void *w, void *y, float *rstd);

/* dx [rows, C] is overwritten; dw [C] is added to. */
ww_status ww_rmsnorm_backward(const ww_device *device, size_t rows, size_t channels, ww_dtype dtype, const void *dy,
                              const void *x, const void *w, const float *rstd, void *dx, float *dw);

#ifdef __cplusplus
}
#endif

#endif
