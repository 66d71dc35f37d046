/*
 * Warpweft: collective communication and kernels for training, for C and whatever can call C.
 *
 * Errors.  Every function that can fail returns a status: WW_OK, or what went wrong. ww_last_error() then gives one
 *   sentence for the calling thread: which argument or which rank, what was given, what is allowed, what to do. A null pointer or
 *   a wrong argument is an error, no kernel is launched and nothing is written; nothing here ends the process, and no exception
 *   crosses.
 * Threads. Different handles may be used from different threads at once. A ww_device may be used from many threads at once.
 *   Calls on one ww_comm run one after the other; all ranks must make the same calls in the same order. A handle must not be
 *   in use when it is closed or destroyed.
 * Memory.  Arrays of a kernel are in the memory of its stream's device: the caller's own host memory on "cpu", device
 *   addresses elsewhere (from ww_buffer_data, cudaMalloc, a tensor of another library). Arrays of a collective are host
 *   memory. They are aligned to their element type, no more (but for attention on a GPU), and those that are written overlap no
 *   other argument except where in-place use is described. Counts are elements, never bytes. A pointer of which no element is
 *   used may be null. Pointers to structs, lists, and single results are always host memory, used during the call only.
 * Order.   Work on a stream runs in the order given. On "cpu" it is done when the call returns; elsewhere the call returns at
 *   once, and arrays must stay until it is done (ww_stream_synchronize). What goes wrong while a kernel runs is the error
 *   of the next ww_stream_synchronize or copy to the host.
 * Structs  of settings begin with `size`: set it to sizeof the struct, and every field that you do not use to 0, which is its
 *   default ( = {.size = sizeof options, .causal = 1}). Later versions may add fields at the end.
 * Letters. B batch, T tokens of a sequence, H query heads, G key/value heads, D head size, C channels, V vocabulary, E experts,
 *   K experts of a token. Arrays are row-major: [B, T, H, D] has D contiguous.
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
#define WW_KERNEL_FAILED 10   /* a kernel failed on its device, or a check reported it; the message is the report */
#define WW_BAD_DATA 11        /* a kernel found data that is not allowed; the message names the argument and the row */

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

/* Opens a device by name. WW_NO_DEVICE where there is no such device; the message says what was looked for.
 *   "cpu", "cpu:4"        the processors of the host, with four threads
 *   "cuda", "cuda:1"      a GPU of NVIDIA, compute capability 8.0 or later; its driver is opened at run time
 *   "software"            a GPU in software, which runs the same kernels on the CPU and checks them; "software?check=all" with
 *                         every check: an access outside its memory is the error of the next synchronisation, not a crash */
ww_status ww_device_open(const char *name, ww_device **device);

/* Closes it; streams and buffers made of it keep it until they are gone. Null is allowed and does nothing. */
ww_status ww_device_close(ww_device *device);

/* ---- Streams ---------------------------------------------------------------------------------------------------- */

typedef struct ww_stream ww_stream;

/* A new stream, not ordered with any other. */
ww_status ww_stream_create(const ww_device *device, ww_stream **stream);

/* A stream that another runtime made on this GPU (cudaStream_t or CUstream; null is the default stream), so that kernels take
 * their place in its order. It must be a stream of the device's primary context, which the CUDA runtime uses, and outlive the
 * handle; ww_stream_destroy leaves it as it is. WW_INVALID_ARGUMENT on "cpu" and "software". */
ww_status ww_stream_from_cuda(const ww_device *device, void *cuda_stream, ww_stream **stream);

/* Returns when all work given to it is done, or with the first error of that work: WW_KERNEL_FAILED for a kernel that failed
 * or that a check of a software device reports, WW_BAD_DATA for data that only the device sees (a target outside the vocabulary):
 * the message names the op, the argument and the row, and nothing that depends on it was written. */
ww_status ww_stream_synchronize(const ww_stream *stream);

/* Frees the handle; work given to it still runs. Null is allowed and does nothing. */
ww_status ww_stream_destroy(ww_stream *stream);

/* ---- Buffers ---------------------------------------------------------------------------------------------------- */

typedef struct ww_buffer ww_buffer;

/* Memory of the device for `count` elements, aligned to at least 64 bytes. No element has a value yet. */
ww_status ww_buffer_create(const ww_device *device, ww_dtype dtype, size_t count, ww_buffer **buffer);

/* Frees it; synchronise the streams that use it before. Null is allowed and does nothing. */
ww_status ww_buffer_destroy(ww_buffer *buffer);

/* The address of its first element: an argument of kernels on this device, and on "cpu" an ordinary pointer. */
ww_status ww_buffer_data(const ww_buffer *buffer, void **data);

/* Copies `count` elements between the host and the buffer's elements from `first` on, in the order of the stream. From the host:
 * the host's array may be used again when it returns. To the host: waits for the stream, as ww_stream_synchronize does. */
ww_status ww_buffer_copy_from_host(const ww_stream *stream, ww_buffer *buffer, size_t first, const void *host, size_t count);
ww_status ww_buffer_copy_to_host(const ww_stream *stream, const ww_buffer *buffer, size_t first, void *host, size_t count);

/* ---- DLPack -------------------------------------------------------------------------------------------------------
 * Tensors of other libraries, as <dlpack/dlpack.h> version 1 declares them; include that to look into them. */

struct DLManagedTensorVersioned;
struct DLManagedTensor;

/* The address of a tensor's first element, if it is what an argument must be: in the memory of the stream's device, of that
 * dtype and shape, row-major without gaps, and not read only where it is `written`. `argument` is the name that the message
 * begins with. The tensor stays the caller's, who calls its deleter after the work that uses it.
 * Memory: kDLCPU and kDLCUDAHost on "cpu", kDLCUDA of that number and kDLCUDAManaged on "cuda", kDLExtDev on "software". */
ww_status ww_from_dlpack(const ww_stream *stream, const char *argument, const struct DLManagedTensorVersioned *tensor,
                         ww_dtype dtype, int32_t ndim, const int64_t *shape, int32_t written, void **data);
ww_status ww_from_dlpack_unversioned(const ww_stream *stream, const char *argument, const struct DLManagedTensor *tensor,
                                     ww_dtype dtype, int32_t ndim, const int64_t *shape, void **data);

/* A buffer as a tensor of that shape, whose product is its count. The tensor's deleter, which the consumer calls, lets go of it:
 * the memory lives until it and ww_buffer_destroy have both been called. */
ww_status ww_buffer_to_dlpack(const ww_buffer *buffer, int32_t ndim, const int64_t *shape,
                              struct DLManagedTensorVersioned **tensor);
ww_status ww_buffer_to_dlpack_unversioned(const ww_buffer *buffer, int32_t ndim, const int64_t *shape,
                                          struct DLManagedTensor **tensor);

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

#ifdef __cplusplus
}
#endif

#include "warpweft_kernels.h"

#endif
