// hipBLAS where it is not installed: the types and calls that sources use most. hip_blas.cpp answers them on the CPU.
// Names and values are those of hipBLAS 2 (https://rocm.docs.amd.com/projects/hipBLAS/en/latest/reference/api.html).
#pragma once
#if __has_include_next(<hipblas/hipblas.h>)
#include_next <hipblas/hipblas.h>
#elif __has_include(<hipblas-common/hipblas-common.h>)
#define RATCHET_HIPBLAS
#ifdef RATCHET_HIPBLAS_SOURCE
#include <hip/hip_runtime_api.h>
struct __half {
  unsigned short bits;
};
#else
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#endif
#include <hip/library_types.h>
#include <hipblas-common/hipblas-common.h>
#include <stdint.h>

typedef struct ratchet_hipblas* hipblasHandle_t;
typedef long long hipblasStride;
typedef uint16_t hipblasHalf;
typedef int8_t hipblasInt8;
typedef enum { HIPBLAS_POINTER_MODE_HOST, HIPBLAS_POINTER_MODE_DEVICE } hipblasPointerMode_t;
typedef enum { HIPBLAS_FILL_MODE_UPPER = 121, HIPBLAS_FILL_MODE_LOWER, HIPBLAS_FILL_MODE_FULL } hipblasFillMode_t;
typedef enum { HIPBLAS_DIAG_NON_UNIT = 131, HIPBLAS_DIAG_UNIT } hipblasDiagType_t;
typedef enum { HIPBLAS_SIDE_LEFT = 141, HIPBLAS_SIDE_RIGHT, HIPBLAS_SIDE_BOTH } hipblasSideMode_t;
typedef enum { HIPBLAS_GEMM_DEFAULT = 160 } hipblasGemmAlgo_t;
typedef enum { HIPBLAS_ATOMICS_NOT_ALLOWED, HIPBLAS_ATOMICS_ALLOWED } hipblasAtomicsMode_t;
typedef enum {
  HIPBLAS_DEFAULT_MATH,
  HIPBLAS_XF32_XDL_MATH,
  HIPBLAS_PEDANTIC_MATH,
  HIPBLAS_TF32_TENSOR_OP_MATH,
  HIPBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION,
  HIPBLAS_TENSOR_OP_MATH
} hipblasMath_t;

extern "C" {
hipblasStatus_t hipblasCreate(hipblasHandle_t*);
hipblasStatus_t hipblasDestroy(hipblasHandle_t);
hipblasStatus_t hipblasSetStream(hipblasHandle_t, hipStream_t);
hipblasStatus_t hipblasGetStream(hipblasHandle_t, hipStream_t*);
hipblasStatus_t hipblasSetMathMode(hipblasHandle_t, hipblasMath_t);
hipblasStatus_t hipblasGetMathMode(hipblasHandle_t, hipblasMath_t*);
hipblasStatus_t hipblasSetWorkspace(hipblasHandle_t, void*, size_t);
hipblasStatus_t hipblasSetPointerMode(hipblasHandle_t, hipblasPointerMode_t);
hipblasStatus_t hipblasGetPointerMode(hipblasHandle_t, hipblasPointerMode_t*);
const char* hipblasStatusToString(hipblasStatus_t);
hipblasStatus_t hipblasSetVector(int n, int bytes, const void* x, int incx, void* y, int incy);
hipblasStatus_t hipblasGetVector(int n, int bytes, const void* x, int incx, void* y, int incy);
hipblasStatus_t hipblasSetMatrix(int rows, int columns, int bytes, const void* a, int lda, void* b, int ldb);
hipblasStatus_t hipblasGetMatrix(int rows, int columns, int bytes, const void* a, int lda, void* b, int ldb);
hipblasStatus_t hipblasSetMatrixAsync(int rows, int columns, int bytes, const void* a, int lda, void* b, int ldb,
                                      hipStream_t);
hipblasStatus_t hipblasGetMatrixAsync(int rows, int columns, int bytes, const void* a, int lda, void* b, int ldb,
                                      hipStream_t);

hipblasStatus_t hipblasGemmStridedBatchedEx(hipblasHandle_t, hipblasOperation_t, hipblasOperation_t, int m, int n,
                                            int k, const void* alpha, const void* a, hipDataType, int lda,
                                            hipblasStride, const void* b, hipDataType, int ldb, hipblasStride,
                                            const void* beta, void* c, hipDataType, int ldc, hipblasStride,
                                            int batches, hipblasComputeType_t, hipblasGemmAlgo_t);
hipblasStatus_t hipblasGemmBatchedEx(hipblasHandle_t, hipblasOperation_t, hipblasOperation_t, int m, int n, int k,
                                     const void* alpha, const void* const* a, hipDataType, int lda,
                                     const void* const* b, hipDataType, int ldb, const void* beta, void* const* c,
                                     hipDataType, int ldc, int batches, hipblasComputeType_t, hipblasGemmAlgo_t);
#define RATCHET_BLAS(T, t)                                                                                        \
  hipblasStatus_t hipblas##T##gemm(hipblasHandle_t, hipblasOperation_t, hipblasOperation_t, int m, int n, int k,  \
                                   const t* alpha, const t* a, int lda, const t* b, int ldb, const t* beta, t* c, \
                                   int ldc);                                                                      \
  hipblasStatus_t hipblas##T##gemmStridedBatched(hipblasHandle_t, hipblasOperation_t, hipblasOperation_t, int m,  \
                                                 int n, int k, const t* alpha, const t* a, int lda,               \
                                                 hipblasStride, const t* b, int ldb, hipblasStride,               \
                                                 const t* beta, t* c, int ldc, hipblasStride, int batches);       \
  hipblasStatus_t hipblas##T##gemmBatched(hipblasHandle_t, hipblasOperation_t, hipblasOperation_t, int m, int n,  \
                                          int k, const t* alpha, const t* const* a, int lda, const t* const* b,   \
                                          int ldb, const t* beta, t* const* c, int ldc, int batches);
#define RATCHET_BLAS_VECTORS(T, t)                                                                                  \
  hipblasStatus_t hipblas##T##gemv(hipblasHandle_t, hipblasOperation_t, int m, int n, const t* alpha, const t* a,   \
                                   int lda, const t* x, int incx, const t* beta, t* y, int incy);                   \
  hipblasStatus_t hipblas##T##ger(hipblasHandle_t, int m, int n, const t* alpha, const t* x, int incx, const t* y,  \
                                  int incy, t* a, int lda);                                                         \
  hipblasStatus_t hipblas##T##axpy(hipblasHandle_t, int n, const t* alpha, const t* x, int incx, t* y, int incy);   \
  hipblasStatus_t hipblas##T##scal(hipblasHandle_t, int n, const t* alpha, t* x, int incx);                         \
  hipblasStatus_t hipblas##T##copy(hipblasHandle_t, int n, const t* x, int incx, t* y, int incy);                   \
  hipblasStatus_t hipblas##T##dot(hipblasHandle_t, int n, const t* x, int incx, const t* y, int incy, t* result);   \
  hipblasStatus_t hipblas##T##nrm2(hipblasHandle_t, int n, const t* x, int incx, t* result);                        \
  hipblasStatus_t hipblas##T##asum(hipblasHandle_t, int n, const t* x, int incx, t* result);                        \
  hipblasStatus_t hipblasI##T##amax(hipblasHandle_t, int n, const t* x, int incx, int* result);                     \
  hipblasStatus_t hipblas##T##geam(hipblasHandle_t, hipblasOperation_t, hipblasOperation_t, int m, int n,           \
                                   const t* alpha, const t* a, int lda, const t* beta, const t* b, int ldb, t* c,   \
                                   int ldc);
RATCHET_BLAS(S, float)
RATCHET_BLAS(D, double)
RATCHET_BLAS(H, __half)
RATCHET_BLAS_VECTORS(S, float)
RATCHET_BLAS_VECTORS(D, double)
}
inline hipblasStatus_t hipblasGemmEx(hipblasHandle_t handle, hipblasOperation_t of_a, hipblasOperation_t of_b, int m,
                                     int n, int k, const void* alpha, const void* a, hipDataType a_kind, int lda,
                                     const void* b, hipDataType b_kind, int ldb, const void* beta, void* c,
                                     hipDataType c_kind, int ldc, hipblasComputeType_t how, hipblasGemmAlgo_t algo) {
  return hipblasGemmStridedBatchedEx(handle, of_a, of_b, m, n, k, alpha, a, a_kind, lda, 0, b, b_kind, ldb, 0, beta,
                                     c, c_kind, ldc, 0, 1, how, algo);
}
// cuBLAS before 11 named the type that products are added up in
inline hipblasComputeType_t ratchet_compute(hipDataType kind) {
  return kind == HIP_R_64F ? HIPBLAS_COMPUTE_64F : kind == HIP_R_16F ? HIPBLAS_COMPUTE_16F
       : kind == HIP_R_32I ? HIPBLAS_COMPUTE_32I : HIPBLAS_COMPUTE_32F;
}
inline hipblasStatus_t hipblasGemmEx(hipblasHandle_t handle, hipblasOperation_t of_a, hipblasOperation_t of_b, int m,
                                     int n, int k, const void* alpha, const void* a, hipDataType a_kind, int lda,
                                     const void* b, hipDataType b_kind, int ldb, const void* beta, void* c,
                                     hipDataType c_kind, int ldc, hipDataType how, hipblasGemmAlgo_t algo) {
  return hipblasGemmEx(handle, of_a, of_b, m, n, k, alpha, a, a_kind, lda, b, b_kind, ldb, beta, c, c_kind, ldc,
                       ratchet_compute(how), algo);
}
inline hipblasStatus_t hipblasGemmStridedBatchedEx(hipblasHandle_t handle, hipblasOperation_t of_a,
                                                   hipblasOperation_t of_b, int m, int n, int k, const void* alpha,
                                                   const void* a, hipDataType a_kind, int lda, hipblasStride by_a,
                                                   const void* b, hipDataType b_kind, int ldb, hipblasStride by_b,
                                                   const void* beta, void* c, hipDataType c_kind, int ldc,
                                                   hipblasStride by_c, int batches, hipDataType how,
                                                   hipblasGemmAlgo_t algo) {
  return hipblasGemmStridedBatchedEx(handle, of_a, of_b, m, n, k, alpha, a, a_kind, lda, by_a, b, b_kind, ldb, by_b,
                                     beta, c, c_kind, ldc, by_c, batches, ratchet_compute(how), algo);
}
#endif
