// Tokens: the value itself. A call is what makes later operations depend on a wait; it costs nothing at run time, it
// orders no pipe and invalidates no line (architecture document 4.2).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TDIST_TEMPLATE_TOKENS_H
#define TDIST_TEMPLATE_TOKENS_H

#include "memref.h"

#define TDIST_CONSUME(symbol, name, T)                                                                                \
  TDIST_ENTRY(T, symbol, (T value, int32_t token)) {                                                                  \
    (void)token;                                                                                                      \
    return value;                                                                                                     \
  }

// A pointer, a tensor of pointers or a block pointer: its descriptor, unchanged.
#define TDIST_CONSUME_PTR(symbol, name, T, Rank)                                                                      \
  TDIST_ENTRY(void, symbol, (tdist::Memref<T, Rank> *result, tdist::Memref<T, Rank> *value, int32_t token)) {         \
    (void)token;                                                                                                      \
    *result = *value;                                                                                                 \
  }

#endif
