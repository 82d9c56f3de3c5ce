#ifndef RATCHET_HIP_HIP_BFLOAT16_H
#define RATCHET_HIP_HIP_BFLOAT16_H
#include <hip/hip_bf16.h>
#endif
