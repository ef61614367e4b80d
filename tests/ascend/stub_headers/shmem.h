// STUB for checking syntax only: the device functions of ACLSHMEM that the device library calls, as its public headers
// declare them. No body, no library: nothing that includes this was built for, or run on, a device.
#ifndef TDIST_STUB_SHMEM_H
#define TDIST_STUB_SHMEM_H

#include "kernel_operator.h"

#define ACLSHMEM_DEVICE __aicore__  // without `inline`: the stubs have no bodies

typedef int aclshmem_team_t;

enum { ACLSHMEM_SIGNAL_SET = 0, ACLSHMEM_SIGNAL_ADD = 1 };
enum {
  ACLSHMEM_CMP_EQ = 0,
  ACLSHMEM_CMP_NE = 1,
  ACLSHMEM_CMP_GT = 2,
  ACLSHMEM_CMP_GE = 3,
  ACLSHMEM_CMP_LT = 4,
  ACLSHMEM_CMP_LE = 5
};

ACLSHMEM_DEVICE int aclshmem_my_pe();
ACLSHMEM_DEVICE int aclshmem_n_pes();
ACLSHMEM_DEVICE int aclshmem_team_my_pe(aclshmem_team_t team);
ACLSHMEM_DEVICE int aclshmem_team_n_pes(aclshmem_team_t team);
ACLSHMEM_DEVICE int aclshmem_team_translate_pe(aclshmem_team_t src_team, int src_pe, aclshmem_team_t dest_team);
ACLSHMEM_DEVICE __gm__ void *aclshmem_ptr(__gm__ void *ptr, int pe);

ACLSHMEM_DEVICE void aclshmem_barrier(aclshmem_team_t team);
ACLSHMEM_DEVICE void aclshmem_barrier_all();
ACLSHMEM_DEVICE void aclshmemx_barrier_vec(aclshmem_team_t team);
ACLSHMEM_DEVICE void aclshmemx_barrier_all_vec();
ACLSHMEM_DEVICE void aclshmem_quiet();
ACLSHMEM_DEVICE void aclshmem_fence();

ACLSHMEM_DEVICE void aclshmemx_signal_op(__gm__ int32_t *sig_addr, int32_t signal, int sig_op, int pe);
ACLSHMEM_DEVICE int32_t aclshmem_signal_wait_until(__gm__ int32_t *sig_addr, int cmp, int32_t cmp_val);

#define P(NAME, TYPE) ACLSHMEM_DEVICE void aclshmem_##NAME##_p(__gm__ TYPE *dst, const TYPE value, int pe);
#define WAIT_UNTIL(NAME, TYPE) \
  ACLSHMEM_DEVICE void aclshmem_##NAME##_wait_until(__gm__ TYPE *ivar, int cmp, TYPE cmp_value);
#define COMPARED(X)                                                                        \
  X(float, float) X(int8, int8_t) X(int16, int16_t) X(int32, int32_t) X(int64, int64_t)    \
  X(uint8, uint8_t) X(uint16, uint16_t) X(uint32, uint32_t) X(uint64, uint64_t) X(char, char)
COMPARED(P) P(half, half) P(bfloat16, bfloat16_t)
COMPARED(WAIT_UNTIL)
#undef COMPARED
#undef WAIT_UNTIL
#undef P

ACLSHMEM_DEVICE void aclshmem_putmem(__gm__ void *dst, __gm__ void *src, uint32_t elem_size, int32_t pe);
ACLSHMEM_DEVICE void aclshmem_putmem_nbi(__gm__ void *dst, __gm__ void *src, uint32_t elem_size, int32_t pe);
ACLSHMEM_DEVICE void aclshmem_getmem(__gm__ void *dst, __gm__ void *src, uint32_t elem_size, int32_t pe);
ACLSHMEM_DEVICE void aclshmem_getmem_nbi(__gm__ void *dst, __gm__ void *src, uint32_t elem_size, int32_t pe);
ACLSHMEM_DEVICE void aclshmem_putmem_signal(__gm__ void *dst, __gm__ void *src, size_t elem_size,
                                            __gm__ int32_t *sig_addr, int32_t signal, int sig_op, int pe);
ACLSHMEM_DEVICE void aclshmem_putmem_signal_nbi(__gm__ void *dst, __gm__ void *src, size_t elem_size,
                                                __gm__ int32_t *sig_addr, int32_t signal, int sig_op, int pe);

#endif
