// hipSOLVER where it is not installed: its types, so that the kernels beside its calls compile.
#pragma once
#if __has_include_next(<hipsolver/hipsolver.h>)
#include_next <hipsolver/hipsolver.h>
#else
typedef void *hipsolverHandle_t, *hipsolverDnHandle_t, *hipsolverSpHandle_t;
typedef enum { HIPSOLVER_STATUS_SUCCESS } hipsolverStatus_t;
#endif
