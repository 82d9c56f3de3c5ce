// hipBLAS on the CPU, for emulated programs: its numbers are a reference's, nothing is timed. Products are added up in
// doubles and rounded once.
#define RATCHET_HIPBLAS_SOURCE
#include <hipblas/hipblas.h>
#ifdef RATCHET_HIPBLAS
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

extern "C" {
int ratchet_hip_open(int allowed);
int ratchet_hip_copy(void* to, const void* from, uint64_t bytes, int kind);
}
struct ratchet_hipblas {
  hipStream_t stream;
  hipblasMath_t math;
  hipblasPointerMode_t pointers;
};
namespace {
// The GPU's memory is open to the host while one of these lives
struct Opened {
  Opened() { ratchet_hip_open(1); }
  ~Opened() { ratchet_hip_open(0); }
};
double of_half(uint16_t bits) {
  _Float16 value;
  memcpy(&value, &bits, 2);
  return (double)value;
}
double read(const void* place, hipDataType kind, size_t at) {
  switch (kind) {
    case HIP_R_32F: return ((const float*)place)[at];
    case HIP_R_64F: return ((const double*)place)[at];
    case HIP_R_16F: return of_half(((const uint16_t*)place)[at]);
    case HIP_R_16BF: {
      const uint32_t bits = (uint32_t)((const uint16_t*)place)[at] << 16;
      float value;
      return memcpy(&value, &bits, 4), value;
    }
    case HIP_R_8I: return ((const int8_t*)place)[at];
    default: return ((const int32_t*)place)[at];
  }
}
void write(void* place, hipDataType kind, size_t at, double value) {
  switch (kind) {
    case HIP_R_32F: ((float*)place)[at] = (float)value; break;
    case HIP_R_64F: ((double*)place)[at] = value; break;
    case HIP_R_16F: {
      const _Float16 near = (_Float16)value;
      memcpy((uint16_t*)place + at, &near, 2);
      break;
    }
    case HIP_R_16BF: {
      const float near = (float)value;
      uint32_t bits;
      memcpy(&bits, &near, 4);
      if (near == near) bits += 0x7fff + (bits >> 16 & 1);
      ((uint16_t*)place)[at] = (uint16_t)(bits >> 16);
      break;
    }
    case HIP_R_8I: ((int8_t*)place)[at] = (int8_t)value; break;
    default: ((int32_t*)place)[at] = (int32_t)value;
  }
}
bool is_known(hipDataType kind) {
  return kind == HIP_R_32F || kind == HIP_R_64F || kind == HIP_R_16F || kind == HIP_R_16BF || kind == HIP_R_8I ||
         kind == HIP_R_32I;
}
std::vector<double> dense(hipblasOperation_t how, const void* a, hipDataType kind, int rows, int columns, int lda) {
  std::vector<double> found((size_t)rows * columns);  // by columns
  for (int j = 0; j < columns; ++j)
    for (int i = 0; i < rows; ++i)
      found[(size_t)j * rows + i] = read(a, kind, how == HIPBLAS_OP_N ? i + (size_t)j * lda : j + (size_t)i * lda);
  return found;
}
void product(hipblasOperation_t of_a, hipblasOperation_t of_b, int m, int n, int k, double alpha, const void* a,
             hipDataType a_kind, int lda, const void* b, hipDataType b_kind, int ldb, double beta, void* c,
             hipDataType c_kind, int ldc) {
  const std::vector<double> left = dense(of_a, a, a_kind, m, k, lda), right = dense(of_b, b, b_kind, k, n, ldb);
  std::vector<double> column(m);
  for (int j = 0; j < n; ++j) {
    for (double& one : column) one = 0;
    for (int l = 0; l < k; ++l) {
      const double factor = right[(size_t)j * k + l];
      const double* from = &left[(size_t)l * m];
      for (int i = 0; i < m; ++i) column[i] += factor * from[i];
    }
    for (int i = 0; i < m; ++i) {
      const size_t at = i + (size_t)j * ldc;
      write(c, c_kind, at, alpha * column[i] + (beta == 0 ? 0 : beta * read(c, c_kind, at)));
    }
  }
}
hipDataType scalars(hipblasComputeType_t how, hipDataType c_kind) {
  if (how == HIPBLAS_COMPUTE_64F || how == HIPBLAS_COMPUTE_64F_PEDANTIC) return HIP_R_64F;
  if (how == HIPBLAS_COMPUTE_16F || how == HIPBLAS_COMPUTE_16F_PEDANTIC) return HIP_R_16F;
  return how == HIPBLAS_COMPUTE_32I || how == HIPBLAS_COMPUTE_32I_PEDANTIC ? HIP_R_32I : HIP_R_32F;
}
size_t bytes(hipDataType kind) {
  return kind == HIP_R_64F ? 8 : kind == HIP_R_8I ? 1 : kind == HIP_R_16F || kind == HIP_R_16BF ? 2 : 4;
}
hipblasStatus_t copied(int rows, int columns, int size, const void* a, int lda, void* b, int ldb, int kind) {
  for (int j = 0; j < columns; ++j)
    if (ratchet_hip_copy((char*)b + (size_t)j * ldb * size, (const char*)a + (size_t)j * lda * size,
                         (uint64_t)rows * size, kind))
      return HIPBLAS_STATUS_MAPPING_ERROR;
  return HIPBLAS_STATUS_SUCCESS;
}
}  // namespace

extern "C" {
hipblasStatus_t hipblasCreate(hipblasHandle_t* handle) {
  return *handle = (hipblasHandle_t)calloc(1, sizeof **handle), HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasDestroy(hipblasHandle_t handle) { return free(handle), HIPBLAS_STATUS_SUCCESS; }
hipblasStatus_t hipblasSetStream(hipblasHandle_t handle, hipStream_t to) {
  return handle->stream = to, HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasGetStream(hipblasHandle_t handle, hipStream_t* to) {
  return *to = handle->stream, HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasSetMathMode(hipblasHandle_t handle, hipblasMath_t to) {
  return handle->math = to, HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasGetMathMode(hipblasHandle_t handle, hipblasMath_t* to) {
  return *to = handle->math, HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasSetWorkspace(hipblasHandle_t, void*, size_t) { return HIPBLAS_STATUS_SUCCESS; }
hipblasStatus_t hipblasSetPointerMode(hipblasHandle_t handle, hipblasPointerMode_t to) {
  return handle->pointers = to, HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasGetPointerMode(hipblasHandle_t handle, hipblasPointerMode_t* to) {
  return *to = handle->pointers, HIPBLAS_STATUS_SUCCESS;
}
const char* hipblasStatusToString(hipblasStatus_t code) {
  return code == HIPBLAS_STATUS_SUCCESS ? "HIPBLAS_STATUS_SUCCESS" : "HIPBLAS_STATUS_NOT_SUPPORTED";
}
hipblasStatus_t hipblasSetMatrix(int rows, int columns, int size, const void* a, int lda, void* b, int ldb) {
  return copied(rows, columns, size, a, lda, b, ldb, hipMemcpyHostToDevice);
}
hipblasStatus_t hipblasGetMatrix(int rows, int columns, int size, const void* a, int lda, void* b, int ldb) {
  return copied(rows, columns, size, a, lda, b, ldb, hipMemcpyDeviceToHost);
}
hipblasStatus_t hipblasSetMatrixAsync(int rows, int columns, int size, const void* a, int lda, void* b, int ldb,
                                      hipStream_t) {
  return hipblasSetMatrix(rows, columns, size, a, lda, b, ldb);
}
hipblasStatus_t hipblasGetMatrixAsync(int rows, int columns, int size, const void* a, int lda, void* b, int ldb,
                                      hipStream_t) {
  return hipblasGetMatrix(rows, columns, size, a, lda, b, ldb);
}
hipblasStatus_t hipblasSetVector(int n, int size, const void* x, int incx, void* y, int incy) {
  return hipblasSetMatrix(1, n, size, x, incx, y, incy);
}
hipblasStatus_t hipblasGetVector(int n, int size, const void* x, int incx, void* y, int incy) {
  return hipblasGetMatrix(1, n, size, x, incx, y, incy);
}
hipblasStatus_t hipblasGemmBatchedEx(hipblasHandle_t, hipblasOperation_t of_a, hipblasOperation_t of_b, int m, int n,
                                     int k, const void* alpha, const void* const* a, hipDataType a_kind, int lda,
                                     const void* const* b, hipDataType b_kind, int ldb, const void* beta,
                                     void* const* c, hipDataType c_kind, int ldc, int batches,
                                     hipblasComputeType_t how, hipblasGemmAlgo_t) {
  if (!is_known(a_kind) || !is_known(b_kind) || !is_known(c_kind)) return HIPBLAS_STATUS_NOT_SUPPORTED;
  const Opened opened;
  const hipDataType kind = scalars(how, c_kind);
  for (int at = 0; at < batches; ++at)
    product(of_a, of_b, m, n, k, read(alpha, kind, 0), a[at], a_kind, lda, b[at], b_kind, ldb, read(beta, kind, 0),
            c[at], c_kind, ldc);
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasGemmStridedBatchedEx(hipblasHandle_t handle, hipblasOperation_t of_a, hipblasOperation_t of_b,
                                            int m, int n, int k, const void* alpha, const void* a,
                                            hipDataType a_kind, int lda, hipblasStride by_a, const void* b,
                                            hipDataType b_kind, int ldb, hipblasStride by_b, const void* beta,
                                            void* c, hipDataType c_kind, int ldc, hipblasStride by_c, int batches,
                                            hipblasComputeType_t how, hipblasGemmAlgo_t algo) {
  for (int at = 0; at < batches; ++at) {
    const void* left = (const char*)a + at * by_a * bytes(a_kind);
    const void* right = (const char*)b + at * by_b * bytes(b_kind);
    void* into = (char*)c + at * by_c * bytes(c_kind);
    const hipblasStatus_t code = hipblasGemmBatchedEx(handle, of_a, of_b, m, n, k, alpha, &left, a_kind, lda, &right,
                                                      b_kind, ldb, beta, &into, c_kind, ldc, 1, how, algo);
    if (code) return code;
  }
  return HIPBLAS_STATUS_SUCCESS;
}
#define ANSWERED(T, t, kind, how)                                                                                    \
  hipblasStatus_t hipblas##T##gemmStridedBatched(hipblasHandle_t handle, hipblasOperation_t of_a,                    \
                                                 hipblasOperation_t of_b, int m, int n, int k, const t* alpha,       \
                                                 const t* a, int lda, hipblasStride by_a, const t* b, int ldb,       \
                                                 hipblasStride by_b, const t* beta, t* c, int ldc,                   \
                                                 hipblasStride by_c, int batches) {                                  \
    return hipblasGemmStridedBatchedEx(handle, of_a, of_b, m, n, k, alpha, a, kind, lda, by_a, b, kind, ldb, by_b,   \
                                       beta, c, kind, ldc, by_c, batches, how, HIPBLAS_GEMM_DEFAULT);                \
  }                                                                                                                  \
  hipblasStatus_t hipblas##T##gemm(hipblasHandle_t handle, hipblasOperation_t of_a, hipblasOperation_t of_b, int m,  \
                                   int n, int k, const t* alpha, const t* a, int lda, const t* b, int ldb,           \
                                   const t* beta, t* c, int ldc) {                                                   \
    return hipblas##T##gemmStridedBatched(handle, of_a, of_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, \
                                          1);                                                                        \
  }                                                                                                                  \
  hipblasStatus_t hipblas##T##gemmBatched(hipblasHandle_t handle, hipblasOperation_t of_a, hipblasOperation_t of_b,  \
                                          int m, int n, int k, const t* alpha, const t* const* a, int lda,           \
                                          const t* const* b, int ldb, const t* beta, t* const* c, int ldc,           \
                                          int batches) {                                                             \
    const Opened opened; /* the arrays of pointers are the GPU's */                                                  \
    const std::vector<const void*> left(a, a + batches), right(b, b + batches);                                      \
    const std::vector<void*> into(c, c + batches);                                                                   \
    return hipblasGemmBatchedEx(handle, of_a, of_b, m, n, k, alpha, left.data(), kind, lda, right.data(), kind, ldb, \
                                beta, into.data(), kind, ldc, batches, how, HIPBLAS_GEMM_DEFAULT);                   \
  }
#define ANSWERED_VECTORS(T, t)                                                                                       \
  hipblasStatus_t hipblas##T##gemv(hipblasHandle_t, hipblasOperation_t how, int m, int n, const t* alpha,            \
                                   const t* a, int lda, const t* x, int incx, const t* beta, t* y, int incy) {       \
    const Opened opened;                                                                                             \
    const int rows = how == HIPBLAS_OP_N ? m : n, columns = how == HIPBLAS_OP_N ? n : m;                             \
    for (int i = 0; i < rows; ++i) {                                                                                 \
      double sum = 0;                                                                                                \
      for (int j = 0; j < columns; ++j)                                                                              \
        sum += (double)a[how == HIPBLAS_OP_N ? i + (size_t)j * lda : j + (size_t)i * lda] * x[(size_t)j * incx];     \
      t* into = y + (size_t)i * incy;                                                                                \
      *into = (t)(*alpha * sum + (*beta == 0 ? 0 : *beta * *into));                                                  \
    }                                                                                                                \
    return HIPBLAS_STATUS_SUCCESS;                                                                                   \
  }                                                                                                                  \
  hipblasStatus_t hipblas##T##ger(hipblasHandle_t, int m, int n, const t* alpha, const t* x, int incx, const t* y,   \
                                  int incy, t* a, int lda) {                                                         \
    const Opened opened;                                                                                             \
    for (int j = 0; j < n; ++j)                                                                                      \
      for (int i = 0; i < m; ++i) a[i + (size_t)j * lda] += *alpha * x[(size_t)i * incx] * y[(size_t)j * incy];      \
    return HIPBLAS_STATUS_SUCCESS;                                                                                   \
  }                                                                                                                  \
  hipblasStatus_t hipblas##T##axpy(hipblasHandle_t, int n, const t* alpha, const t* x, int incx, t* y, int incy) {   \
    const Opened opened;                                                                                             \
    for (int i = 0; i < n; ++i) y[(size_t)i * incy] += *alpha * x[(size_t)i * incx];                                 \
    return HIPBLAS_STATUS_SUCCESS;                                                                                   \
  }                                                                                                                  \
  hipblasStatus_t hipblas##T##scal(hipblasHandle_t, int n, const t* alpha, t* x, int incx) {                         \
    const Opened opened;                                                                                             \
    for (int i = 0; i < n; ++i) x[(size_t)i * incx] *= *alpha;                                                       \
    return HIPBLAS_STATUS_SUCCESS;                                                                                   \
  }                                                                                                                  \
  hipblasStatus_t hipblas##T##copy(hipblasHandle_t, int n, const t* x, int incx, t* y, int incy) {                   \
    const Opened opened;                                                                                             \
    for (int i = 0; i < n; ++i) y[(size_t)i * incy] = x[(size_t)i * incx];                                           \
    return HIPBLAS_STATUS_SUCCESS;                                                                                   \
  }                                                                                                                  \
  hipblasStatus_t hipblas##T##dot(hipblasHandle_t, int n, const t* x, int incx, const t* y, int incy, t* result) {   \
    const Opened opened;                                                                                             \
    double sum = 0;                                                                                                  \
    for (int i = 0; i < n; ++i) sum += (double)x[(size_t)i * incx] * y[(size_t)i * incy];                            \
    return *result = (t)sum, HIPBLAS_STATUS_SUCCESS;                                                                 \
  }                                                                                                                  \
  hipblasStatus_t hipblas##T##nrm2(hipblasHandle_t, int n, const t* x, int incx, t* result) {                        \
    const Opened opened;                                                                                             \
    double sum = 0;                                                                                                  \
    for (int i = 0; i < n; ++i) sum += (double)x[(size_t)i * incx] * x[(size_t)i * incx];                            \
    return *result = (t)sqrt(sum), HIPBLAS_STATUS_SUCCESS;                                                           \
  }                                                                                                                  \
  hipblasStatus_t hipblas##T##asum(hipblasHandle_t, int n, const t* x, int incx, t* result) {                        \
    const Opened opened;                                                                                             \
    double sum = 0;                                                                                                  \
    for (int i = 0; i < n; ++i) sum += fabs((double)x[(size_t)i * incx]);                                            \
    return *result = (t)sum, HIPBLAS_STATUS_SUCCESS;                                                                 \
  }                                                                                                                  \
  hipblasStatus_t hipblasI##T##amax(hipblasHandle_t, int n, const t* x, int incx, int* result) {                     \
    const Opened opened;                                                                                             \
    int best = 0; /* counted from 1 */                                                                               \
    for (int i = 0; i < n; ++i)                                                                                      \
      if (i == 0 || fabs((double)x[(size_t)i * incx]) > fabs((double)x[(size_t)(best - 1) * incx])) best = i + 1;    \
    return *result = best, HIPBLAS_STATUS_SUCCESS;                                                                   \
  }                                                                                                                  \
  hipblasStatus_t hipblas##T##geam(hipblasHandle_t, hipblasOperation_t of_a, hipblasOperation_t of_b, int m, int n,  \
                                   const t* alpha, const t* a, int lda, const t* beta, const t* b, int ldb, t* c,    \
                                   int ldc) {                                                                        \
    const Opened opened;                                                                                             \
    std::vector<t> made((size_t)m * n);                                                                              \
    for (int j = 0; j < n; ++j)                                                                                      \
      for (int i = 0; i < m; ++i) {                                                                                  \
        const size_t at_a = of_a == HIPBLAS_OP_N ? i + (size_t)j * lda : j + (size_t)i * lda;                        \
        const size_t at_b = of_b == HIPBLAS_OP_N ? i + (size_t)j * ldb : j + (size_t)i * ldb;                        \
        made[i + (size_t)j * m] = (*alpha ? *alpha * a[at_a] : 0) + (*beta ? *beta * b[at_b] : 0);                   \
      }                                                                                                              \
    for (int j = 0; j < n; ++j)                                                                                      \
      for (int i = 0; i < m; ++i) c[i + (size_t)j * ldc] = made[i + (size_t)j * m];                                  \
    return HIPBLAS_STATUS_SUCCESS;                                                                                   \
  }
ANSWERED(S, float, HIP_R_32F, HIPBLAS_COMPUTE_32F)
ANSWERED(D, double, HIP_R_64F, HIPBLAS_COMPUTE_64F)
ANSWERED(H, __half, HIP_R_16F, HIPBLAS_COMPUTE_16F)
ANSWERED_VECTORS(S, float)
ANSWERED_VECTORS(D, double)
}
#endif
