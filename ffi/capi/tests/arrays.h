/* Arrays in the memory of the device under test, which the first argument of a program names: "cpu", "software?check=all". The
 * others are the ops that must have a kernel for it; on "cpu" every op has one. */
#ifndef ARRAYS_H
#define ARRAYS_H

#include "check.h"

static ww_device *device = NULL;
static ww_stream *stream = NULL;
static char **ops = NULL;

static struct {
  ww_buffer *buffer;
  void *data;
} arrays[256];
static size_t array_count = 0;

static void begin(char **arguments) {
  OK(ww_device_open(arguments[1], &device));
  OK(ww_stream_create(device, &stream));
  ops = strcmp(arguments[1], "cpu") == 0 || strncmp(arguments[1], "cpu:", 4) == 0 ? NULL : arguments + 2;
}

/* Whether the op must have a kernel here. */
static inline int has(const char *op) {
  if (ops == NULL) return 1;
  for (char **known = ops; *known != NULL; known++)
    if (strcmp(*known, op) == 0) return 1;
  return 0;
}

/* Whether the call worked. It must, but for an op that may still say that it has no kernel here. */
#define WORKS(op, call) works(op, (call), #call, __LINE__)

static inline int works(const char *op, ww_status status, const char *call, int line) {
  if (status == WW_OK) return 1;
  if (status == WW_INVALID_ARGUMENT && !has(op) && strstr(ww_last_error(), "not host memory") != NULL) return 0;
  fprintf(stderr, "line %d: %s: %d: %s\n", line, call, status, ww_last_error());
  exit(1);
}

/* `count` elements without a value. */
static inline void *room(size_t count, ww_dtype dtype) {
  CHECK(array_count < sizeof arrays / sizeof *arrays);
  OK(ww_buffer_create(device, dtype, count, &arrays[array_count].buffer));
  OK(ww_buffer_data(arrays[array_count].buffer, &arrays[array_count].data));
  return arrays[array_count++].data;
}

static inline ww_buffer *of(const void *data) {
  for (size_t i = 0; i < array_count; i++)
    if (arrays[i].data == data) return arrays[i].buffer;
  CHECK(!"an array of `room`");
  return NULL;
}

/* A copy on the device. */
static inline void *up(const void *host, size_t count, ww_dtype dtype) {
  void *data = room(count, dtype);
  OK(ww_buffer_copy_from_host(stream, of(data), 0, host, count));
  return data;
}

/* A copy on the host, of what the stream has done so far. */
static inline void down(const void *data, void *host, size_t count) {
  OK(ww_buffer_copy_to_host(stream, of(data), 0, host, count));
}

/* Lets go of all arrays. */
static inline void release(void) {
  OK(ww_stream_synchronize(stream));
  while (array_count > 0) OK(ww_buffer_destroy(arrays[--array_count].buffer));
}

static inline void end(const char *program) {
  release();
  OK(ww_stream_destroy(stream));
  OK(ww_device_close(device));
  printf("%s: all checks passed\n", program);
}

#endif
