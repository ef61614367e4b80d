// What the device library takes from CANN and from ACLSHMEM. A function that another release spells differently is
// renamed here and nowhere else.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TDIST_TEMPLATE_LIBRARY_H
#define TDIST_TEMPLATE_LIBRARY_H

#include "kernel_operator.h"  // CANN: __aicore__, __gm__, half, bfloat16_t, fixed-width integers
#include "shmem.h"            // ACLSHMEM: the device functions, ACLSHMEM_CMP_*, ACLSHMEM_SIGNAL_*

#define TDIST_INLINE __attribute__((always_inline)) inline __aicore__

// The half of a mix kernel that this is built for, ".cube" or ".vector": in such kernels the vendor's compiler puts it
// behind every name that it calls, and its own library has it there too (meta_op.mix.*.bc of AscendNPU-IR).
#ifndef TDIST_CORE_SUFFIX
#define TDIST_CORE_SUFFIX ""
#endif

// An entry of the library: C linkage and the name that the vendor's compiler calls. MLIR puts `_mlir_ciface_` in front
// of a function that takes or gives a memref, the compiler in front of all others: every link name has it.
// `parameters` are in parentheses.
#define TDIST_ENTRY(result, symbol, parameters)                                                                       \
  extern "C" __aicore__ result _mlir_ciface_##symbol parameters                                                       \
      __asm__("_mlir_ciface_" #symbol TDIST_CORE_SUFFIX);                                                             \
  extern "C" __attribute__((used)) __aicore__ result _mlir_ciface_##symbol parameters

#endif
