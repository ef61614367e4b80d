// Barriers, fence and quiet.
//
// What each of them drains is the library's matter (ACLSHMEM's device sources):
// - `quiet` and `fence` are the same: PipeBarrier<PIPE_ALL>, then the whole data cache is cleaned and invalidated. They
//   are the only calls here that make scalar reads and gathers see what a peer wrote, and the cheapest that drain
//   earlier stores before a signal.
// - A barrier has no quiet of its own. Its core part is AscendC's SyncAll where the bitcode is built with
//   `-cce-enable-mix` (variants mix_aic, mix_aiv), which starts with PipeBarrier<PIPE_ALL>; in the plain `aiv` variant
//   it is a barrier in software that drains nothing: a kernel without `tl.dot` fences before `barrier_all_vec`.
// - Every program and both vector cores of each must arrive, or nobody leaves. Barriers of a launch must not be mixed
//   with SyncAll of another source. Team -1 returns at once.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TDIST_TEMPLATE_ORDER_H
#define TDIST_TEMPLATE_ORDER_H

#include "library.h"

TDIST_ENTRY(void, aclshmem_barrier, (int32_t team)) { aclshmem_barrier(team); }

TDIST_ENTRY(void, aclshmem_barrier_all, ()) { aclshmem_barrier_all(); }

TDIST_ENTRY(void, aclshmemx_barrier_vec, (int32_t team)) { aclshmemx_barrier_vec(team); }

TDIST_ENTRY(void, aclshmemx_barrier_all_vec, ()) { aclshmemx_barrier_all_vec(); }

TDIST_ENTRY(void, aclshmem_quiet, ()) { aclshmem_quiet(); }

TDIST_ENTRY(void, aclshmem_fence, ()) { aclshmem_fence(); }

#endif
