/* What is refused: every class of wrong argument, by the name that the header has for it. Nothing is written then. */
#include "arrays.h"

enum { ROWS = 4, C = 8, N = ROWS * C };

static float x[N], w[C], b[C], y[N], mean[ROWS], rstd[ROWS];

static void unharmed(const float *values, size_t count) {
  for (size_t i = 0; i < count; i++) CHECK(values[i] == 7.0f);
}

static void handles(void) {
  ww_device *wrong = NULL;
  ww_stream *other = NULL;
  FAILS(WW_NO_DEVICE, ww_device_open("abacus", &wrong), "abacus");
  FAILS(WW_NO_DEVICE, ww_device_open("software?colour=red", &wrong), "colour");
  FAILS(WW_NO_DEVICE, ww_device_open("cuda:x", &wrong), "cuda:x");
  FAILS(WW_INVALID_ARGUMENT, ww_device_open("cpu:0", &wrong), "0 threads");
  FAILS(WW_INVALID_ARGUMENT, ww_device_open(NULL, &wrong), "name");
  FAILS(WW_INVALID_ARGUMENT, ww_device_open("cpu", NULL), "device");
  FAILS(WW_INVALID_ARGUMENT, ww_stream_create(NULL, &other), "device");
  FAILS(WW_INVALID_ARGUMENT, ww_stream_create(device, NULL), "stream");
  FAILS(WW_INVALID_ARGUMENT, ww_stream_from_cuda(device, NULL, &other), "cuda");
  FAILS(WW_INVALID_ARGUMENT, ww_stream_from_cuda(NULL, NULL, &other), "device");
  FAILS(WW_INVALID_ARGUMENT, ww_stream_synchronize(NULL), "stream");
  CHECK(wrong == NULL && other == NULL);
  OK(ww_device_close(NULL));
  OK(ww_stream_destroy(NULL));
  OK(ww_buffer_destroy(NULL));
  /* A stream keeps its device. */
  OK(ww_device_open("cpu:1", &wrong));
  OK(ww_stream_create(wrong, &other));
  OK(ww_device_close(wrong));
  OK(ww_stream_synchronize(other));
  OK(ww_stream_destroy(other));
}

static void buffers(void) {
  ww_buffer *buffer = NULL;
  ww_device *far = NULL;
  ww_stream *elsewhere = NULL;
  void *data = NULL;
  float host[3] = {1.0f, 2.0f, 3.0f}, back[3] = {7.0f, 7.0f, 7.0f};
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_create(NULL, WW_F32, 3, &buffer), "device");
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_create(device, 12, 3, &buffer), "dtype");
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_create(device, WW_F32, 3, NULL), "buffer");
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_create(device, WW_F32, SIZE_MAX / 2, &buffer), "count");
  FAILS(WW_OUT_OF_MEMORY, ww_buffer_create(device, WW_F32, SIZE_MAX / 16, &buffer), "f32");
  OK(ww_buffer_create(device, WW_F32, 3, &buffer));
  OK(ww_buffer_data(buffer, &data));
  CHECK((uintptr_t)data % 64 == 0);
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_data(NULL, &data), "buffer");
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_data(buffer, NULL), "data");
  OK(ww_buffer_copy_from_host(stream, buffer, 0, host, 3));
  OK(ww_buffer_copy_from_host(stream, buffer, 1, host, 1));
  OK(ww_buffer_copy_to_host(stream, buffer, 1, back, 2));
  CHECK(back[0] == 1.0f && back[1] == 3.0f && back[2] == 7.0f);
  OK(ww_buffer_copy_to_host(stream, buffer, 3, NULL, 0));
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_copy_from_host(NULL, buffer, 0, host, 3), "stream");
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_copy_from_host(stream, NULL, 0, host, 3), "buffer");
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_copy_from_host(stream, buffer, 0, NULL, 3), "host");
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_copy_to_host(stream, buffer, 0, NULL, 3), "host");
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_copy_from_host(stream, buffer, 2, host, 2), "2..4");
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_copy_to_host(stream, buffer, SIZE_MAX, back, 2), "3 elements");
  OK(ww_device_open("cpu:1", &far));
  OK(ww_stream_create(far, &elsewhere));
  FAILS(WW_INVALID_ARGUMENT, ww_buffer_copy_to_host(elsewhere, buffer, 0, back, 3), "buffer");
  OK(ww_stream_destroy(elsewhere));
  OK(ww_device_close(far));
  OK(ww_buffer_destroy(buffer));
}

/* LayerNorm's arguments stand for those of every op: they all go the same way. */
static void arrays_of_an_op(void) {
  float *ax = up(x, N, WW_F32), *aw = up(w, C, WW_F32), *ab = up(b, C, WW_F32), *ay = up(y, N, WW_F32);
  float *am = up(mean, ROWS, WW_F32), *ar = up(rstd, ROWS, WW_F32), back[N];
  const ww_dtype f = WW_F32;
  const ww_status no = WW_INVALID_ARGUMENT;
  FAILS(no, ww_layernorm_forward(NULL, ROWS, C, 1e-5f, f, ax, aw, ab, ay, am, ar), "`stream`");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, f, NULL, aw, ab, ay, am, ar), "`x`");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, f, ax, NULL, ab, ay, am, ar), "`w`");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, f, ax, aw, NULL, ay, am, ar), "`b`");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, f, ax, aw, ab, NULL, am, ar), "`y`");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, f, ax, aw, ab, ay, NULL, ar), "`mean`");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, f, ax, aw, ab, ay, am, NULL), "`rstd`");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, WW_F64, ax, aw, ab, ay, am, ar), "`dtype`");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, 99, ax, aw, ab, ay, am, ar), "WW_F64 (0) to WW_U64 (11)");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, -1.0f, f, ax, aw, ab, ay, am, ar), "`eps` is -1");
  FAILS(no, ww_layernorm_forward(stream, SIZE_MAX, C, 1e-5f, f, ax, aw, ab, ay, am, ar), "`x`");
  FAILS(no, ww_layernorm_forward(stream, SIZE_MAX / C / 2, C, 1e-5f, f, ax, aw, ab, ay, am, ar), "memory can address");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, f, (char *)ax + 1, aw, ab, ay, am, ar), "aligned");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, f, ax, aw, ab, (char *)ay + 2, am, ar), "`y`");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, f, ax, aw, ab, ax, am, ar), "overlaps `x`");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, f, ax, aw, ab, ay, ay + N - 1, ar), "`mean` overlaps `y`");
  FAILS(no, ww_layernorm_forward(stream, ROWS, C, 1e-5f, f, ax, aw, aw, ay, aw + C - 1, ar), "`mean` overlaps `w`");
  FAILS(no, ww_layernorm_backward_input(stream, ROWS, C, f, ax, ax, aw, am, ar, 2, ay), "`write`");
  down(ay, back, N);
  unharmed(back, N);
  down(am, back, ROWS);
  unharmed(back, ROWS);
  /* No rows: no element, and no pointer is looked at. */
  if (has("layernorm")) OK(ww_layernorm_forward(stream, 0, C, 1e-5f, f, NULL, aw, ab, NULL, NULL, NULL));
}

static const uint8_t zero_bytes[N];

/* Settings: what a later version may add, and what an older program does not know. */
static void settings(void) {
  struct {
    ww_softmax_options options;
    uint64_t more;
  } later = {.options = {.scale = 1.0f}, .more = 0};
  float *ax = up(x, N, WW_F32), *ay = up(y, N, WW_F32);
  const ww_status no = WW_INVALID_ARGUMENT;
  const ww_softmax_options *options = &later.options;
  FAILS(no, ww_softmax_forward(stream, ROWS, C, options, WW_F32, ax, ay), "`options.size` is 0");
  later.options.size = 12;
  FAILS(no, ww_softmax_forward(stream, ROWS, C, options, WW_F32, ax, ay), "sizeof");
  later.options.size = SIZE_MAX;
  FAILS(no, ww_softmax_forward(stream, ROWS, C, options, WW_F32, ax, ay), "sizeof");
  FAILS(no, ww_softmax_forward(stream, ROWS, C, (const ww_softmax_options *)((const char *)options + 1), WW_F32, ax, ay),
        "aligned");
  later.options.size = sizeof later;
  later.more = 1;
  FAILS(no, ww_softmax_forward(stream, ROWS, C, options, WW_F32, ax, ay), "does not know to 0");
  later.more = 0;
  if (has("softmax")) OK(ww_softmax_forward(stream, ROWS, C, options, WW_F32, ax, ay));
  later.options.causal = 1; /* beyond the size that is said: not read */
  later.options.size = offsetof(ww_softmax_options, causal);
  if (has("softmax")) OK(ww_softmax_forward(stream, ROWS, C, options, WW_F32, ax, ay));
  later.options.size = sizeof later.options;
  later.options.queries = 3;
  FAILS(no, ww_softmax_forward(stream, ROWS, C, options, WW_F32, ax, ay), "`causal` is 3");
  later.options.causal = 0;
  later.options.hidden = (const uint8_t *)ay; /* a mask on top of what is written; on the host or not, an address */
  FAILS(no, ww_softmax_forward(stream, ROWS, C, options, WW_F32, ax, ay), "`y` overlaps `hidden`");
  later.options.hidden = up(zero_bytes, ROWS * C, WW_U8);
  later.options.mask_heads = 5;
  FAILS(no, ww_softmax_forward(stream, ROWS, C, options, WW_F32, ax, ay), "`mask heads` is 5");
  later.options.mask_heads = 1;
  later.options.mask_queries = 7;
  FAILS(no, ww_softmax_forward(stream, ROWS, C, options, WW_F32, ax, ay), "`mask queries` is 7");
  later.options.mask_queries = 0; /* 1 */
  if (has("softmax")) OK(ww_softmax_forward(stream, ROWS, C, options, WW_F32, ax, ay));
}

static void shapes(void) {
  const ww_attention_shape uneven = {1, 2, 2, 3, 2, 8}, huge = {SIZE_MAX, 2, 2, 4, 2, 8}, none = {1, 1, 1, 1, 1, 0};
  const ww_attention_shape longer = {1, 1, 2, 1, 1, 4}, three = {1, 2, 2, 3, 1, 1};
  float *q = up(x, N, WW_F32), *out = up(y, N, WW_F32), *lse = up(mean, ROWS, WW_F32);
  const ww_status no = WW_INVALID_ARGUMENT;
  const ww_matmul_epilogue strange = {.size = sizeof strange, .activation = 9};
  const ww_matmul_epilogue swiglu = {.size = sizeof swiglu, .activation = WW_SWIGLU};
  FAILS(no, ww_attention_forward(stream, &huge, NULL, WW_F32, q, q, q, out, lse), "`q`");
  FAILS(no, ww_attention_forward(stream, NULL, NULL, WW_F32, q, q, q, out, lse), "`shape`");
  FAILS(no, ww_attention_forward(stream, &three, NULL, WW_F32, q, q, NULL, out, lse), "`v`");
  FAILS(no, ww_attention_forward(stream, &three, NULL, WW_F32, q, q, q, q + 1, lse), "overlaps");
  FAILS(no, ww_attention_forward_packed(stream, &longer, NULL, WW_F32, q, out, lse), "`keys`");
  FAILS(no, ww_matmul_forward(stream, 2, 2, 2, WW_F32, q, q, &strange, out), "activation");
  FAILS(no, ww_matmul_forward(stream, 2, 3, 2, WW_F32, q, q, &swiglu, out), "`n` is 3");
  FAILS(no, ww_matmul_forward(stream, SIZE_MAX, 3, 2, WW_F32, q, q, NULL, out), "`x`");
  FAILS(no, ww_matmul_forward(stream, 2, 2, 2, WW_F32, q, q, NULL, NULL), "`y`");
  FAILS(no, ww_matmul_backward_input(stream, 2, 2, 2, WW_I32, q, q, WW_SET, out), "dtype");
  (void)uneven;
  (void)none;
}

int main(int count, char **arguments) {
  CHECK(count > 1);
  begin(arguments);
  for (size_t i = 0; i < N; i++) x[i] = (float)i, y[i] = 7.0f;
  for (size_t i = 0; i < ROWS; i++) mean[i] = rstd[i] = 7.0f;
  handles();
  buffers();
  arrays_of_an_op();
  settings();
  shapes();
  end("arguments");
  return 0;
}
