// What the device library takes from CANN and from ACLSHMEM. A function that another release spells differently is
// renamed here and nowhere else.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TDIST_TEMPLATE_LIBRARY_H
#define TDIST_TEMPLATE_LIBRARY_H

#include "kernel_operator.h"  // CANN: __aicore__, __gm__, half, bfloat16_t, fixed-width integers
#include "shmem.h"            // ACLSHMEM: the device functions, ACLSHMEM_CMP_*, ACLSHMEM_SIGNAL_*

#define TDIST_INLINE __attribute__((always_inline)) inline __aicore__

// An entry of the library: C linkage and the name that the vendor's compiler calls. MLIR puts `_mlir_ciface_` in front
// of a function that takes or gives a memref, the compiler in front of all others: every link name has it.
#define TDIST_ENTRY(result, symbol) extern "C" __attribute__((used)) __aicore__ result _mlir_ciface_##symbol

#endif
