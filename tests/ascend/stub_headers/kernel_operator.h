// STUB for checking syntax only: what the device library uses of CANN's kernel_operator.h, as the public headers
// declare it. Nothing here is CANN's text, and nothing that includes it runs on a device.
#ifndef TDIST_STUB_KERNEL_OPERATOR_H
#define TDIST_STUB_KERNEL_OPERATOR_H

// An address space of its own, so that a pointer into global memory mixed up with another one is an error here too.
#define __gm__ __attribute__((address_space(1)))
#define __aicore__ __attribute__((annotate("aicore")))

typedef _Float16 half;
typedef __bf16 bfloat16_t;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __SIZE_TYPE__ size_t;

#endif
