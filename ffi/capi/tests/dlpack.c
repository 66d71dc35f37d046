/* DLPack, against a declaration of its layouts that is this program's own. On "cuda" the test puts a stand-in of the driver on the
 * library path. */
#include "arrays.h"

typedef struct tensor {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} tensor;

typedef struct DLManagedTensor {
  tensor t;
  void *context;
  void (*deleter)(struct DLManagedTensor *);
} older;

typedef struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct DLManagedTensorVersioned *);
  uint64_t flags;
  tensor t;
} newer;

_Static_assert(sizeof(tensor) == 48 && sizeof(older) == 64 && sizeof(newer) == 80, "the layouts of a 64-bit machine");

/* What DLPack calls the device's memory: the host's, CUDA's, or an extension's. */
static int32_t kind = 1;

static void out_and_in(void) {
  ww_buffer *buffer = NULL;
  void *data = NULL, *again = NULL;
  newer *mine = NULL;
  older *other = NULL;
  const int64_t shape[2] = {3, 4}, flat[1] = {12}, short_one[1] = {11}, negative[2] = {-3, -4};
  float host[12], back[12];
  const ww_status no = WW_INVALID_ARGUMENT;
  for (int i = 0; i < 12; i++) host[i] = (float)i;
  OK(ww_buffer_create(device, WW_F32, 12, &buffer));
  OK(ww_buffer_data(buffer, &data));
  OK(ww_buffer_copy_from_host(stream, buffer, 0, host, 12));
  FAILS(no, ww_buffer_to_dlpack(NULL, 2, shape, &mine), "`buffer`");
  FAILS(no, ww_buffer_to_dlpack(buffer, 2, shape, NULL), "`tensor`");
  FAILS(no, ww_buffer_to_dlpack(buffer, 2, NULL, &mine), "`shape`");
  FAILS(no, ww_buffer_to_dlpack(buffer, -1, shape, &mine), "ndim");
  FAILS(no, ww_buffer_to_dlpack(buffer, 1, short_one, &mine), "11; it must be 12");
  FAILS(no, ww_buffer_to_dlpack(buffer, 2, negative, &mine), "at least 0");
  OK(ww_buffer_to_dlpack(buffer, 2, shape, &mine));
  OK(ww_buffer_to_dlpack_unversioned(buffer, 1, flat, &other));
  CHECK(mine->major == 1 && mine->flags == 0 && mine->t.data == data && mine->t.ndim == 2 && mine->t.byte_offset == 0);
  CHECK(mine->t.code == 2 && mine->t.bits == 32 && mine->t.lanes == 1);
  CHECK(mine->t.shape[0] == 3 && mine->t.shape[1] == 4 && mine->t.strides[0] == 4 && mine->t.strides[1] == 1);
  CHECK(mine->t.device_type == kind && mine->t.device_id == 0);
  CHECK(other->t.data == data && other->t.ndim == 1 && other->t.shape[0] == 12 && other->t.strides[0] == 1);
  OK(ww_from_dlpack(stream, "x", mine, WW_F32, 2, shape, 1, &again));
  CHECK(again == data);
  OK(ww_from_dlpack_unversioned(stream, "x", other, WW_F32, 1, flat, &again));
  CHECK(again == data);
  /* The memory lives as long as any of the three. */
  OK(ww_buffer_destroy(buffer));
  mine->deleter(mine);
  CHECK(array_count == 0);
  float *y = room(12, WW_F32);
  if (WORKS("softmax", ww_softmax_forward(stream, 3, 4, NULL, WW_F32, other->t.data, y))) {
    down(y, back, 12);
    for (int i = 0; i < 12; i++) CHECK(back[i] == back[i % 4] && back[i] > 0.0f); /* the rows differ by a constant */
  }
  OK(ww_stream_synchronize(stream));
  other->deleter(other);
}

/* What a tensor is not: each part by name, and the argument's. */
static void refused(void) {
  void *data = room(12, WW_F32), *found = NULL;
  int64_t shape[2] = {3, 4}, strides[2] = {4, 1};
  const int64_t wanted[2] = {3, 4}, flat[1] = {12}, column[2] = {3, 1}, none[2] = {0, 4};
  newer t = {.major = 1, .t = {data, kind, 0, 2, 2, 32, 1, shape, strides, 0}};
  const ww_status no = WW_INVALID_ARGUMENT;
  OK(ww_from_dlpack(stream, "x", &t, WW_F32, 2, wanted, 0, &found));
  t.t.byte_offset = 8;
  OK(ww_from_dlpack(stream, "x", &t, WW_F32, 2, wanted, 0, &found));
  CHECK(found == (char *)data + 8);
  t.t.byte_offset = UINT64_MAX;
  FAILS(no, ww_from_dlpack(stream, "x", &t, WW_F32, 2, wanted, 0, &found), "byte offset");
  t.t.byte_offset = 0;
  t.t.strides = NULL; /* as libraries before version 1.2 say that it is compact */
  OK(ww_from_dlpack(stream, "x", &t, WW_F32, 2, wanted, 0, &found));
  t.t.strides = strides;
  strides[0] = 1, strides[1] = 3; /* transposed */
  FAILS(no, ww_from_dlpack(stream, "logits", &t, WW_F32, 2, wanted, 0, &found), "`logits`: its strides is [1, 3]");
  strides[0] = 8, strides[1] = 1; /* some columns of wider rows */
  FAILS(no, ww_from_dlpack(stream, "logits", &t, WW_F32, 2, wanted, 0, &found), "its strides is [8, 1]; it must be [4, 1]");
  strides[0] = 0, strides[1] = 1; /* one row for all */
  FAILS(no, ww_from_dlpack(stream, "logits", &t, WW_F32, 2, wanted, 0, &found), "its strides is [0, 1]");
  strides[0] = -4, strides[1] = 1; /* the last row first */
  FAILS(no, ww_from_dlpack(stream, "logits", &t, WW_F32, 2, wanted, 0, &found), "make it contiguous first");
  strides[0] = 4, strides[1] = 1;
  shape[1] = 1, strides[1] = 77, strides[0] = 1; /* one column: no step along it */
  OK(ww_from_dlpack(stream, "x", &t, WW_F32, 2, column, 0, &found));
  shape[1] = 4, strides[1] = 1, strides[0] = 4;
  FAILS(no, ww_from_dlpack(stream, "x", &t, WW_BF16, 2, wanted, 0, &found), "`x`: its type is code 2, 32 bits");
  FAILS(no, ww_from_dlpack(stream, "x", &t, 55, 2, wanted, 0, &found), "`dtype`");
  FAILS(no, ww_from_dlpack(stream, "x", &t, WW_F32, 1, flat, 0, &found), "[3, 4]; it must be [12]");
  t.t.device_type = kind == 2 ? 1 : 2;
  FAILS(no, ww_from_dlpack(stream, "x", &t, WW_F32, 2, wanted, 0, &found),
        kind == 2 ? "`x`: its device type is 1" : "`x`: its device type is 2");
  t.t.device_type = kind;
  t.flags = 1;
  OK(ww_from_dlpack(stream, "x", &t, WW_F32, 2, wanted, 0, &found));
  FAILS(no, ww_from_dlpack(stream, "x", &t, WW_F32, 2, wanted, 1, &found), "read only");
  t.flags = 0;
  t.major = 2;
  FAILS(no, ww_from_dlpack(stream, "x", &t, WW_F32, 2, wanted, 0, &found), "major version is 2");
  t.major = 1;
  t.t.data = NULL;
  FAILS(no, ww_from_dlpack(stream, "x", &t, WW_F32, 2, wanted, 0, &found), "data is null");
  shape[0] = 0;
  OK(ww_from_dlpack(stream, "x", &t, WW_F32, 2, none, 0, &found));
  t.t.shape = NULL;
  FAILS(no, ww_from_dlpack(stream, "x", &t, WW_F32, 2, none, 0, &found), "shape");
  t.t.ndim = 1000;
  FAILS(no, ww_from_dlpack(stream, "x", &t, WW_F32, 2, wanted, 0, &found), "dimensions");
  FAILS(no, ww_from_dlpack(NULL, "x", &t, WW_F32, 2, wanted, 0, &found), "`stream`");
  FAILS(no, ww_from_dlpack(stream, NULL, &t, WW_F32, 2, wanted, 0, &found), "`argument`");
  FAILS(no, ww_from_dlpack(stream, "x", NULL, WW_F32, 2, wanted, 0, &found), "`tensor`");
  FAILS(no, ww_from_dlpack(stream, "x", &t, WW_F32, 2, wanted, 0, NULL), "`data`");
}

int main(int count, char **arguments) {
  CHECK(count > 1);
  begin(arguments);
  if (strcmp(arguments[1], "cuda") == 0)
    kind = 2;
  else if (ops != NULL)
    kind = 12;
  out_and_in();
  refused();
  end("dlpack");
  return 0;
}
