// What precedes each HIP source: HIP's own headers, and the GPU's side of what needs a host on real hardware.
#ifndef RATCHET_RATCHET_HIP_H
#define RATCHET_RATCHET_HIP_H
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#include <hip/hip_bf16.h>
#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ratchet_printf.h>
#undef __noinline__
#define __noinline__
#undef noinline
#define noinline unused
#endif
