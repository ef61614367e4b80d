// Signals, single words, waits.
//
// What the library does (ACLSHMEM's device sources; architecture document 6.2, 6.3):
// - SET and `_p`: a scalar store through `aclshmem_ptr`, then that 64-byte line is written back. No pipe barrier before
//   it: whoever stored data on another pipe drains it first (`fence`).
// - ADD: PipeBarrier<PIPE_ALL>; the value is put into UB at offset 0; an atomic MTE3 copy; PipeBarrier<PIPE_ALL>. It
//   orders earlier stores by itself, and overwrites the first bytes of whichever tile the compiler placed there.
// - Waits poll: each round invalidates the word's line and reads it again. There is no time limit. They change nothing
//   and invalidate no other line.
// - A line has one writer: nobody keeps caches coherent, and of two words in one line one may be lost.
//
// Operation codes are the library's, SET 0 and ADD 1 (the dialect's 1 and 2 are converted where calls are lowered). A
// wrapper passes them on as they are: an ADD stays an ADD. `_p` only stores; ADD on a 64-bit word is refused before.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TDIST_TEMPLATE_SIGNALS_H
#define TDIST_TEMPLATE_SIGNALS_H

#include "memref.h"

static_assert(ACLSHMEM_SIGNAL_SET == 0 && ACLSHMEM_SIGNAL_ADD == 1, "lowered calls carry these codes");
static_assert(ACLSHMEM_CMP_EQ == 0, "`dl.wait` and `signal_wait_until` count from EQ = 0");

namespace tdist {

constexpr int64_t kSlotBytes = 64;  // a word each data cache line (architecture document 4.2)

using Signal = Memref<int32_t, 1>;

}  // namespace tdist

// `sig` is this PE's own spelling of the address: the library translates it. A remote address would be translated
// twice.
TDIST_ENTRY(void, aclshmemx_signal_op, (tdist::Signal sig, int32_t signal, int32_t sig_op, int32_t pe)) {
  aclshmemx_signal_op(tdist::address(&sig), signal, sig_op, pe);
}

TDIST_ENTRY(int32_t, aclshmem_signal_wait_until, (tdist::Signal sig, int32_t cmp, int32_t value)) {
  return aclshmem_signal_wait_until(tdist::address(&sig), cmp, value);
}

#define TDIST_P(symbol, name, T)                                                                                      \
  TDIST_ENTRY(void, symbol, (tdist::Memref<T, 1> *dst, T value, int32_t pe)) {                                        \
    aclshmem_##name##_p(tdist::address(dst), value, pe);                                                              \
  }

// Waits until each of `num_barriers` words, 64 bytes apart, equals `value`, one after another. The token is 0: what
// orders later operations is that the scalar unit issues them after its loop has ended; the token only keeps the
// compiler from moving them.
#define TDIST_WAIT(symbol, name, T)                                                                                   \
  TDIST_ENTRY(int32_t, symbol, (tdist::Memref<T, 1> *ptr, int64_t num_barriers, T value)) {                           \
    constexpr int64_t stride_elems = tdist::kSlotBytes / (int64_t)sizeof(T);                                          \
    for (int64_t slot = 0; slot < num_barriers; ++slot) {                                                             \
      aclshmem_##name##_wait_until(tdist::address(ptr) + slot * stride_elems, ACLSHMEM_CMP_EQ, value);                \
    }                                                                                                                 \
    return 0;                                                                                                         \
  }

#define TDIST_WAIT_UNTIL(symbol, name, T)                                                                             \
  TDIST_ENTRY(void, symbol, (tdist::Memref<T, 1> *ivar, int32_t cmp, T value)) {                                      \
    aclshmem_##name##_wait_until(tdist::address(ivar), cmp, value);                                                   \
  }

#endif
