/* Two ranks as two threads: every collective against a loop, in place and out of place, and the errors that a caller meets. */
#include "check.h"

#include <pthread.h>

enum { WORLD = 2, COUNT = 1001 };

static ww_unique_id id;

/* What rank r holds at i: small whole numbers, so that every sum is exact. */
static float held(size_t r, size_t i) { return (float)((i * 7 + r * 13) % 100) - 50.0f; }

static void reductions(const ww_comm *comm, size_t rank) {
  float send[COUNT], recv[COUNT], whole[WORLD * COUNT], all[WORLD * COUNT];
  for (size_t i = 0; i < COUNT; i++) send[i] = held(rank, i);
  OK(ww_all_reduce(comm, send, recv, COUNT, WW_F32, WW_SUM));
  for (size_t i = 0; i < COUNT; i++) CHECK(recv[i] == held(0, i) + held(1, i));
  OK(ww_all_reduce(comm, send, recv, COUNT, WW_F32, WW_MAX));
  for (size_t i = 0; i < COUNT; i++) CHECK(recv[i] == (held(0, i) > held(1, i) ? held(0, i) : held(1, i)));
  OK(ww_all_reduce(comm, send, send, COUNT, WW_F32, WW_AVG));
  for (size_t i = 0; i < COUNT; i++) CHECK(send[i] == (held(0, i) + held(1, i)) / 2.0f);

  for (size_t i = 0; i < WORLD * COUNT; i++) whole[i] = held(rank, i);
  OK(ww_reduce_scatter(comm, whole, recv, COUNT, WW_F32, WW_SUM));
  for (size_t i = 0; i < COUNT; i++) CHECK(recv[i] == held(0, rank * COUNT + i) + held(1, rank * COUNT + i));
  OK(ww_reduce_scatter(comm, whole, whole + rank * COUNT, COUNT, WW_F32, WW_SUM));
  for (size_t i = 0; i < COUNT; i++) CHECK(whole[rank * COUNT + i] == recv[i]);

  for (size_t i = 0; i < COUNT; i++) send[i] = held(rank, i);
  OK(ww_all_gather(comm, send, all, COUNT, WW_F32));
  for (size_t r = 0; r < WORLD; r++)
    for (size_t i = 0; i < COUNT; i++) CHECK(all[r * COUNT + i] == held(r, i));
  for (size_t i = 0; i < WORLD * COUNT; i++) all[i] = -1.0f;
  for (size_t i = 0; i < COUNT; i++) all[rank * COUNT + i] = held(rank, i);
  OK(ww_all_gather(comm, all + rank * COUNT, all, COUNT, WW_F32));
  for (size_t r = 0; r < WORLD; r++)
    for (size_t i = 0; i < COUNT; i++) CHECK(all[r * COUNT + i] == held(r, i));
}

static void movements(const ww_comm *comm, size_t rank) {
  int64_t buffer[5], blocks[WORLD * 3], got[WORLD * 3];
  for (size_t i = 0; i < 5; i++) buffer[i] = (int64_t)(rank * 1000 + i);
  OK(ww_broadcast(comm, buffer, 5, WW_I64, 1));
  for (size_t i = 0; i < 5; i++) CHECK(buffer[i] == (int64_t)(1000 + i));
  for (size_t i = 0; i < WORLD * 3; i++) blocks[i] = (int64_t)(rank * 100 + i);
  OK(ww_all_to_all(comm, blocks, got, 3, WW_I64));
  for (size_t r = 0; r < WORLD; r++)
    for (size_t i = 0; i < 3; i++) CHECK(got[r * 3 + i] == (int64_t)(r * 100 + rank * 3 + i));
  const double sent = 0.5 + (double)rank;
  double received = 0.0;
  OK(ww_sendrecv(comm, &sent, 1, 1 - rank, &received, 1, 1 - rank, WW_F64));
  CHECK(received == 0.5 + (double)(1 - rank));
  if (rank == 0) {
    OK(ww_send(comm, blocks, 3, WW_I64, 1));
  } else {
    OK(ww_recv(comm, got, 3, WW_I64, 0));
    for (size_t i = 0; i < 3; i++) CHECK(got[i] == (int64_t)i);
  }
  OK(ww_barrier(comm));
  OK(ww_all_reduce(comm, NULL, NULL, 0, WW_F32, WW_SUM)); /* nothing to reduce: no pointer is looked at */
}

static void refusals(const ww_comm *comm) {
  float x[8] = {0};
  FAILS(WW_INVALID_ARGUMENT, ww_all_reduce(NULL, x, x, 8, WW_F32, WW_SUM), "comm");
  FAILS(WW_INVALID_ARGUMENT, ww_all_reduce(comm, NULL, x, 8, WW_F32, WW_SUM), "send");
  FAILS(WW_INVALID_ARGUMENT, ww_all_reduce(comm, x, NULL, 8, WW_F32, WW_SUM), "recv");
  FAILS(WW_INVALID_ARGUMENT, ww_all_reduce(comm, x, x, 8, 12, WW_SUM), "dtype");
  FAILS(WW_INVALID_ARGUMENT, ww_all_reduce(comm, x, x, 8, WW_F32, 5), "op");
  FAILS(WW_INVALID_ARGUMENT, ww_all_reduce(comm, x, x + 1, 7, WW_F32, WW_SUM), "overlaps");
  FAILS(WW_INVALID_ARGUMENT, ww_all_reduce(comm, x, (char *)x + 1, 1, WW_F32, WW_SUM), "aligned");
  FAILS(WW_INVALID_ARGUMENT, ww_all_reduce(comm, x, x, SIZE_MAX, WW_F32, WW_SUM), "memory");
  FAILS(WW_INVALID_ARGUMENT, ww_all_gather(comm, x, x, SIZE_MAX, WW_F32), "memory");
  FAILS(WW_INVALID_ARGUMENT, ww_all_to_all(comm, x, x, 4, WW_F32), "overlaps");
  FAILS(WW_INVALID_ARGUMENT, ww_broadcast(comm, x, 8, WW_F32, 2), "root");
  FAILS(WW_INVALID_ARGUMENT, ww_send(comm, x, 8, WW_F32, 2), "2");
  FAILS(WW_INVALID_ARGUMENT, ww_comm_rank(comm, NULL), "rank");
}

static void split(const ww_comm *comm, size_t rank) {
  ww_comm *part = NULL;
  size_t value = 99;
  OK(ww_comm_split(comm, 0, -(int64_t)rank, &part)); /* a negative key: the order is turned round */
  OK(ww_comm_rank(part, &value));
  CHECK(value == 1 - rank);
  float x = (float)rank;
  OK(ww_all_reduce(part, &x, &x, 1, WW_F32, WW_SUM));
  CHECK(x == 1.0f);
  OK(ww_comm_destroy(part));
  OK(ww_comm_split(comm, rank == 0 ? -1 : 3, 0, &part));
  CHECK((part == NULL) == (rank == 0));
  if (part != NULL) {
    OK(ww_comm_world(part, &value));
    CHECK(value == 1);
  }
  OK(ww_comm_destroy(part));
}

static void *run(void *argument) {
  const size_t rank = *(const size_t *)argument;
  ww_comm *comm = NULL;
  size_t value = 99;
  OK(ww_comm_create(&id, WORLD, rank, &comm));
  OK(ww_comm_rank(comm, &value));
  CHECK(value == rank);
  OK(ww_comm_world(comm, &value));
  CHECK(value == WORLD);
  OK(ww_comm_set_timeout(comm, 30.0));
  FAILS(WW_INVALID_ARGUMENT, ww_comm_set_timeout(comm, 0.0), "seconds");
  FAILS(WW_INVALID_ARGUMENT, ww_comm_set_timeout(comm, -1.0), "seconds");
  reductions(comm, rank);
  movements(comm, rank);
  refusals(comm);
  split(comm, rank);
  /* The ranks give different counts: both are told. */
  float x[2] = {0};
  FAILS(WW_MISMATCH, ww_all_reduce(comm, x, x, 1 + rank, WW_F32, WW_SUM), "all_reduce");
  OK(ww_comm_destroy(comm));
  return NULL;
}

/* A rank that waits for one that never comes to the barrier is ended by abort, with the reason. */
static void *waits(void *argument) {
  ww_comm *comm = *(ww_comm **)argument;
  FAILS(WW_ABORTED, ww_barrier(comm), "enough of it");
  return NULL;
}

static void *joins(void *argument) {
  OK(ww_comm_create(&id, WORLD, 1, (ww_comm **)argument));
  return NULL;
}

static void aborts(void) {
  ww_comm *first = NULL, *second = NULL;
  pthread_t thread;
  OK(ww_unique_id_create(&id));
  CHECK(pthread_create(&thread, NULL, joins, &second) == 0);
  OK(ww_comm_create(&id, WORLD, 0, &first));
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(pthread_create(&thread, NULL, waits, &first) == 0);
  OK(ww_comm_abort(second, "enough of it"));
  CHECK(pthread_join(thread, NULL) == 0);
  OK(ww_comm_destroy(first));
  OK(ww_comm_destroy(second));
}

int main(void) {
  pthread_t threads[WORLD];
  size_t ranks[WORLD] = {0, 1};
  ww_comm *comm = NULL;

  CHECK(strlen(ww_last_error()) == 0);
  CHECK(strchr(ww_version(), '.') != NULL);
  FAILS(WW_INVALID_ARGUMENT, ww_unique_id_create(NULL), "id");
  OK(ww_unique_id_create(&id));
  FAILS(WW_INVALID_ARGUMENT, ww_comm_create(&id, 0, 0, &comm), "rank");
  FAILS(WW_INVALID_ARGUMENT, ww_comm_create(&id, 2, 2, &comm), "0 to 1");
  FAILS(WW_INVALID_ARGUMENT, ww_comm_create(&id, SIZE_MAX, 0, &comm), "4096");
  FAILS(WW_INVALID_ARGUMENT, ww_comm_create(NULL, 2, 0, &comm), "id");
  FAILS(WW_INVALID_ARGUMENT, ww_comm_create(&id, 2, 0, NULL), "comm");
  FAILS(WW_INVALID_ARGUMENT, ww_comm_create_from_env(&comm), "RANK");
  OK(ww_comm_destroy(NULL));
  for (size_t r = 0; r < WORLD; r++) CHECK(pthread_create(&threads[r], NULL, run, &ranks[r]) == 0);
  for (size_t r = 0; r < WORLD; r++) CHECK(pthread_join(threads[r], NULL) == 0);
  aborts();
  puts("ranks: all checks passed");
  return 0;
}
