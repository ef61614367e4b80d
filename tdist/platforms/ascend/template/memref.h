// MLIR's descriptor of a memref of `Rank` dimensions in global memory, as its C interface passes it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TDIST_TEMPLATE_MEMREF_H
#define TDIST_TEMPLATE_MEMREF_H

#include "library.h"

namespace tdist {

template <typename T, int Rank>
struct Memref {
  __gm__ T *allocated;
  __gm__ T *aligned;
  int64_t offset;  // elements, from `aligned` to the first element
  int64_t sizes[Rank];
  int64_t strides[Rank];  // elements
};

// The first element.
template <typename T>
TDIST_INLINE __gm__ T *address(const Memref<T, 1> *memory) {
  return memory->aligned + memory->offset;
}

}  // namespace tdist

#endif
