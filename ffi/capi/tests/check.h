/* What the C programs of these tests share: a failed check says where, and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "warpweft.h"

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                     \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)

#define OK(call)                                                                          \
  do {                                                                                    \
    const ww_status status_ = (call);                                                     \
    if (status_ != WW_OK) {                                                               \
      fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call, status_, ww_last_error()); \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)

/* The call fails with that status, and its sentence names the function and holds the word. */
#define FAILS(wanted, call, word)                                                         \
  do {                                                                                    \
    const ww_status status_ = (call);                                                     \
    const char *sentence_ = ww_last_error();                                              \
    if (status_ != (wanted) || strncmp(sentence_, "ww_", 3) != 0 || strstr(sentence_, word) == NULL) { \
      fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call, status_, sentence_); \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)

#endif
