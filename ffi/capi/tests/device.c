/* A device with memory of its own: order, reports and streams of another runtime. The argument is "software?check=all", or "cuda",
 * for which the test puts a stand-in of the driver on the library path. */
#include "arrays.h"

enum { ROWS = 3, W = 5, N = ROWS * W };

/* The driver's own functions, as another runtime in this process would call them. */
extern int cuStreamCreate(void **stream, unsigned flags) __attribute__((weak));
extern int cuStreamDestroy_v2(void *stream) __attribute__((weak));
extern int cuStreamQuery(void *stream) __attribute__((weak));
extern int cuMemcpyDtoHAsync_v2(void *host, uint64_t data, size_t bytes, void *stream) __attribute__((weak));
extern int cuStreamSynchronize(void *stream) __attribute__((weak));

static void equal_rows(const float *y) {
  for (int i = 0; i < N; i++) CHECK(y[i] == 0.2f); /* constant rows of five */
}

/* A kernel in a stream that somebody else made, between that one's own calls. */
static void foreign_stream(void) {
  void *theirs = NULL;
  ww_stream *wrapped = NULL;
  float x[N] = {0}, y[N];
  CHECK(cuStreamCreate(&theirs, 1) == 0);
  OK(ww_stream_from_cuda(device, theirs, &wrapped));
  float *a = up(x, N, WW_F32), *b = room(N, WW_F32);
  OK(ww_stream_synchronize(stream));
  OK(ww_softmax_forward(wrapped, ROWS, W, NULL, WW_F32, a, b));
  CHECK(cuMemcpyDtoHAsync_v2(y, (uintptr_t)b, sizeof y, theirs) == 0);
  CHECK(cuStreamSynchronize(theirs) == 0);
  equal_rows(y);
  OK(ww_stream_destroy(wrapped));
  CHECK(cuStreamQuery(theirs) == 0); /* still there */
  /* The default stream. */
  OK(ww_stream_from_cuda(device, NULL, &wrapped));
  OK(ww_softmax_forward(wrapped, ROWS, W, NULL, WW_F32, a, b));
  OK(ww_stream_synchronize(wrapped));
  OK(ww_stream_destroy(wrapped));
  CHECK(cuStreamDestroy_v2(theirs) == 0);
}

/* Pointers into the middle of memory, then one outside: a report, not a crash. */
static void wrong_pointer(void) {
  float x[N + 1] = {0}, y[N];
  float *a = up(x, N + 1, WW_F32), *b = room(N, WW_F32);
  OK(ww_softmax_forward(stream, ROWS, W, NULL, WW_F32, a + 1, b));
  down(b, y, N);
  equal_rows(y);
  OK(ww_softmax_forward(stream, ROWS, W, NULL, WW_F32, a + 2, b)); /* one element too far */
  FAILS(WW_KERNEL_FAILED, ww_stream_synchronize(stream), "softmax");
}

int main(int count, char **arguments) {
  CHECK(count > 1);
  begin(arguments);
  if (strcmp(arguments[1], "cuda") == 0) {
    foreign_stream();
    release();
    OK(ww_stream_destroy(stream));
    OK(ww_device_close(device));
  } else {
    wrong_pointer();
  }
  puts("device: all checks passed");
  return 0;
}
