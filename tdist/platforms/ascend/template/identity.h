// Who this PE is, and where the others' memory lies.
//
// All of it reads ACLSHMEM's device state, whose address is fixed by the architecture: no wrapper takes a handle, and
// no host patches the module (architecture document 1.2, 4.2).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TDIST_TEMPLATE_IDENTITY_H
#define TDIST_TEMPLATE_IDENTITY_H

#include "memref.h"

namespace tdist {

// The memory of PE `pe` that corresponds to `local`: the same view over another base. `aclshmem_ptr` subtracts this
// PE's heap base and adds the other's (architecture document 5.3), so it may be applied to the base while offset,
// sizes and strides stay: the compiler reads them from the type, where they are static, and not from here. It checks
// neither the heap's bounds nor null.
template <typename T>
TDIST_INLINE void remote(Memref<T, 1> *result, const Memref<T, 1> *local, int32_t pe) {
  *result = *local;
  result->allocated = (__gm__ T *)aclshmem_ptr(local->allocated, pe);
  result->aligned = (__gm__ T *)aclshmem_ptr(local->aligned, pe);
}

}  // namespace tdist

TDIST_ENTRY(int32_t, aclshmem_my_pe, ()) { return aclshmem_my_pe(); }

TDIST_ENTRY(int32_t, aclshmem_n_pes, ()) { return aclshmem_n_pes(); }

TDIST_ENTRY(int32_t, aclshmem_team_my_pe, (int32_t team)) { return aclshmem_team_my_pe(team); }

TDIST_ENTRY(int32_t, aclshmem_team_n_pes, (int32_t team)) { return aclshmem_team_n_pes(team); }

TDIST_ENTRY(int32_t, aclshmem_team_translate_pe, (int32_t src_team, int32_t src_pe, int32_t dest_team)) {
  return aclshmem_team_translate_pe(src_team, src_pe, dest_team);
}

#define TDIST_PTR(symbol, name, T)                                                                                    \
  TDIST_ENTRY(void, symbol, (tdist::Memref<T, 1> *result, tdist::Memref<T, 1> *ptr, int32_t pe)) {                    \
    tdist::remote(result, ptr, pe);                                                                                   \
  }

#endif
