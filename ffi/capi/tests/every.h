/* What the program of tests/every needs: handles, arrays, structs whose values go together, and the checks of a call. */
#ifndef EVERY_H
#define EVERY_H

#include "arrays.h"

static int calls = 0, wrong = 0;
static ww_comm *comm = NULL;
static ww_buffer *buffer = NULL;
static ww_unique_id id;
static struct DLManagedTensorVersioned *tensor = NULL;
static struct DLManagedTensor *older_tensor = NULL;
static const int64_t eight[1] = {8};
static const size_t sizes[1] = {8}, rows_of_experts[4] = {2, 2, 2, 2};

/* Rows, channels, classes and tokens are 8 everywhere; 4 experts, 2 of them a row. */
static ww_matmul_epilogue ww_matmul_epilogue_value = {.size = sizeof(ww_matmul_epilogue)};
static ww_matmul_through ww_matmul_through_value = {.size = sizeof(ww_matmul_through)};
static ww_attention_shape ww_attention_shape_value = {1, 8, 8, 2, 1, 8};
static ww_attention_options ww_attention_options_value = {.size = sizeof(ww_attention_options)};
static ww_softmax_options ww_softmax_options_value = {.size = sizeof(ww_softmax_options)};
static ww_cross_entropy_options ww_cross_entropy_options_value = {.size = sizeof(ww_cross_entropy_options)};
static ww_embedding_shape ww_embedding_shape_value = {2, 4, 8, 8, 4};
static ww_optimizer_options ww_optimizer_options_value;
static ww_optimizer_tensor ww_optimizer_tensor_value;
static ww_dropout ww_dropout_value = {.size = sizeof(ww_dropout), .probability = 0.25f};
static ww_rope_shape ww_rope_shape_value = {2, 4, 2, 4, 8};
static ww_rope_options ww_rope_options_value = {.size = sizeof(ww_rope_options)};
static ww_moe_shape ww_moe_shape_value = {8, 4, 2};
static ww_moe_router_options ww_moe_router_options_value = {.size = sizeof(ww_moe_router_options)};
static ww_moe_rows ww_moe_rows_value = {8, 2, 8, 16};
static ww_moe_sequences ww_moe_sequences_value = {{8, 4, 2}, 1, 8};

/* An array of the device, large enough for all and zero; of 40 that take turns, since no call has so many. */
static void *array(void) {
  enum { EACH = 4096 };
  static const char zeros[EACH] = {0};
  static void *turns[40];
  static size_t next = 0;
  void **turn = &turns[next++ % 40];
  if (*turn == NULL) *turn = room(EACH, WW_U8);
  OK(ww_buffer_copy_from_host(stream, of(*turn), 0, zeros, EACH));
  return *turn;
}

/* Memory of the host, likewise. */
static void *host(void) {
  static uint64_t turns[16][64];
  static size_t next = 0;
  return memset(turns[next++ % 16], 0, sizeof turns[0]);
}

/* A list of one array. */
static void *arrays_of_floats(void) {
  static float *list[1];
  list[0] = array();
  return list;
}

static void start(int count, char **arguments) {
  CHECK(count == 2);
  begin(arguments);
  OK(ww_unique_id_create(&id));
  OK(ww_comm_create(&id, 1, 0, &comm));
  OK(ww_unique_id_create(&id));
  OK(ww_buffer_create(device, WW_F32, 8, &buffer));
  OK(ww_buffer_to_dlpack(buffer, 1, eight, &tensor));
  OK(ww_buffer_to_dlpack_unversioned(buffer, 1, eight, &older_tensor));
  OK(ww_optimizer_options_default(WW_ADAMW, &ww_optimizer_options_value));
  /* Of its own: what other ops leave in an array may be no second moment. */
  static const float zeros[8] = {0};
  ww_optimizer_tensor_value = (ww_optimizer_tensor){.size = sizeof(ww_optimizer_tensor), .count = 8, .param = up(zeros, 8, WW_F32)};
  ww_optimizer_tensor_value.grad = up(zeros, 8, WW_F32);
  ww_optimizer_tensor_value.m = up(zeros, 8, WW_F32);
  ww_optimizer_tensor_value.v = up(zeros, 8, WW_F32);
}

/* The call worked, or has no kernel on this device. */
static void fine(const char *function, const char *what, ww_status status) {
  calls++;
  if (status == WW_OK) status = ww_stream_synchronize(stream);
  if (status == WW_OK || (status == WW_INVALID_ARGUMENT && strstr(ww_last_error(), "not host memory") != NULL)) return;
  fprintf(stderr, "%s, %s: %d: %s\n", function, what, status, ww_last_error());
  wrong++;
}

/* The call was refused by a sentence that names the function and the argument, or some argument. */
static void refused(const char *function, const char *argument, const char *what, ww_status status) {
  char name[64] = "`";
  const char *sentence = ww_last_error();
  calls++;
  if (argument != NULL) snprintf(name, sizeof name, "`%s`", argument);
  const int is_refused = status == WW_INVALID_ARGUMENT || (argument == NULL && status == WW_OUT_OF_MEMORY);
  if (is_refused && strncmp(sentence, function, strlen(function)) == 0 && strstr(sentence, name) != NULL) return;
  fprintf(stderr, "%s, %s, %s: %d: %s\n", function, argument == NULL ? "" : argument, what, status, sentence);
  wrong++;
}

#endif
