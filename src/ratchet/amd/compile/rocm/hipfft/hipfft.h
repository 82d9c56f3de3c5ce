// hipFFT where it is not installed: its types, so that the kernels beside its calls compile.
#pragma once
#if __has_include_next(<hipfft/hipfft.h>)
#include_next <hipfft/hipfft.h>
#else
#include <hip/hip_complex.h>
typedef struct hipfftHandle_t* hipfftHandle;
typedef enum { HIPFFT_SUCCESS } hipfftResult;
typedef int hipfftType;
typedef float hipfftReal;
typedef double hipfftDoubleReal;
typedef hipFloatComplex hipfftComplex;
typedef hipDoubleComplex hipfftDoubleComplex;
#endif
