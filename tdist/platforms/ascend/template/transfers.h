// Transfers between this PE and another, in bytes, by the engine that the host chose (architecture document 6.5).
//
// What the MTE engine does (ACLSHMEM's device sources): data are staged through UB at offset 0, 16 KiB, with event 0,
// whatever the compiler keeps there. The blocking forms end with a quiet; `_nbi` forms end with nothing: `quiet`
// completes them. `_signal` forms put, quiet, then signal; `dst` and `sig` are this PE's own spelling of the addresses.
//
// Each function exists under two names, `aclshmem_half_putmem` as in AscendNPU-IR's template and `aclshmem_putmem_half`
// as in the architecture document's prefix table (3.4).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TDIST_TEMPLATE_TRANSFERS_H
#define TDIST_TEMPLATE_TRANSFERS_H

#include "signals.h"

#define TDIST_TRANSFER(symbol, call, T)                                                                               \
  TDIST_ENTRY(void, symbol, (tdist::Memref<T, 1> *dst, tdist::Memref<T, 1> *src, uint32_t bytes, int32_t pe)) {       \
    call(tdist::address(dst), tdist::address(src), bytes, pe);                                                        \
  }

#define TDIST_PUTMEM(symbol, name, T) TDIST_TRANSFER(symbol, aclshmem_putmem, T)
#define TDIST_PUTMEM_NBI(symbol, name, T) TDIST_TRANSFER(symbol, aclshmem_putmem_nbi, T)
#define TDIST_GETMEM(symbol, name, T) TDIST_TRANSFER(symbol, aclshmem_getmem, T)
#define TDIST_GETMEM_NBI(symbol, name, T) TDIST_TRANSFER(symbol, aclshmem_getmem_nbi, T)

#define TDIST_TRANSFER_AND_SIGNAL(symbol, call, T)                                                                    \
  TDIST_ENTRY(void, symbol,                                                                                           \
              (tdist::Memref<T, 1> *dst, tdist::Memref<T, 1> *src, uint32_t bytes, tdist::Signal sig, int32_t signal, \
               int32_t sig_op, int32_t pe)) {                                                                         \
    call(tdist::address(dst), tdist::address(src), bytes, tdist::address(&sig), signal, sig_op, pe);                  \
  }

#define TDIST_PUTMEM_SIGNAL(symbol, name, T) TDIST_TRANSFER_AND_SIGNAL(symbol, aclshmem_putmem_signal, T)
#define TDIST_PUTMEM_SIGNAL_NBI(symbol, name, T) TDIST_TRANSFER_AND_SIGNAL(symbol, aclshmem_putmem_signal_nbi, T)

#endif
