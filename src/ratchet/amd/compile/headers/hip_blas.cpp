// hipBLAS and hipBLASLt on the CPU, for emulated programs: their numbers are a reference's, nothing is timed. Products are
// torch's (hip_products.py).
#define RATCHET_HIPBLAS_SOURCE
#include <hipblas/hipblas.h>
#ifdef RATCHET_HIPBLAS
#include <hipblaslt/hipblaslt.h>
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
// A product as hip_products.py reads it: d = alpha op(a) op(b) + beta c, and what its epilogue does
struct Matrix {
  const void* at;
  int32_t kind, turned, by_rows;
  int64_t rows, columns, ld, stride;
};
struct Product {
  Matrix a, b, c, d, aux;
  const void *alpha, *beta, *bias, *a_scale, *b_scale, *d_scale;
  int32_t scalar_kind, batches, epilogue, bias_kind;
};
extern "C" int ratchet_hip_product(const Product* asked);
namespace {
// The GPU's memory is open to the host while one of these lives
struct Opened {
  Opened() { ratchet_hip_open(1); }
  ~Opened() { ratchet_hip_open(0); }
};
hipblasStatus_t answered(const Product& asked) {
  const int code = ratchet_hip_product(&asked);
  return code == 0 ? HIPBLAS_STATUS_SUCCESS : code == 2 ? HIPBLAS_STATUS_NOT_SUPPORTED : HIPBLAS_STATUS_EXECUTION_FAILED;
}
Matrix matrix(const void* at, hipDataType kind, hipblasOperation_t how, int64_t rows, int64_t columns, int64_t ld,
              int64_t stride) {
  return how == HIPBLAS_OP_N ? Matrix{at, kind, 0, 0, rows, columns, ld, stride}
                             : Matrix{at, kind, 1, 0, columns, rows, ld, stride};
}
hipDataType scalars(hipblasComputeType_t how) {
  if (how == HIPBLAS_COMPUTE_64F || how == HIPBLAS_COMPUTE_64F_PEDANTIC) return HIP_R_64F;
  if (how == HIPBLAS_COMPUTE_16F || how == HIPBLAS_COMPUTE_16F_PEDANTIC) return HIP_R_16F;
  return how == HIPBLAS_COMPUTE_32I || how == HIPBLAS_COMPUTE_32I_PEDANTIC ? HIP_R_32I : HIP_R_32F;
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
hipblasStatus_t hipblasGemmStridedBatchedEx(hipblasHandle_t, hipblasOperation_t of_a, hipblasOperation_t of_b, int m,
                                            int n, int k, const void* alpha, const void* a, hipDataType a_kind,
                                            int lda, hipblasStride by_a, const void* b, hipDataType b_kind, int ldb,
                                            hipblasStride by_b, const void* beta, void* c, hipDataType c_kind,
                                            int ldc, hipblasStride by_c, int batches, hipblasComputeType_t how,
                                            hipblasGemmAlgo_t) {
  Product asked = {};
  asked.a = matrix(a, a_kind, of_a, m, k, lda, by_a), asked.b = matrix(b, b_kind, of_b, k, n, ldb, by_b);
  asked.c = asked.d = matrix(c, c_kind, HIPBLAS_OP_N, m, n, ldc, by_c);
  asked.alpha = alpha, asked.beta = beta, asked.scalar_kind = scalars(how), asked.batches = batches;
  return answered(asked);
}
hipblasStatus_t hipblasGemmBatchedEx(hipblasHandle_t handle, hipblasOperation_t of_a, hipblasOperation_t of_b, int m,
                                     int n, int k, const void* alpha, const void* const* a, hipDataType a_kind,
                                     int lda, const void* const* b, hipDataType b_kind, int ldb, const void* beta,
                                     void* const* c, hipDataType c_kind, int ldc, int batches,
                                     hipblasComputeType_t how, hipblasGemmAlgo_t algo) {
  for (int at = 0; at < batches; ++at) {
    ratchet_hip_open(1);  // the arrays of pointers are the GPU's
    const void *left = a[at], *right = b[at];
    void* into = c[at];
    ratchet_hip_open(0);
    const hipblasStatus_t code =
        hipblasGemmStridedBatchedEx(handle, of_a, of_b, m, n, k, alpha, left, a_kind, lda, 0, right, b_kind, ldb, 0,
                                    beta, into, c_kind, ldc, 0, 1, how, algo);
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
    return hipblasGemmBatchedEx(handle, of_a, of_b, m, n, k, alpha, (const void* const*)a, kind, lda,                \
                                (const void* const*)b, kind, ldb, beta, (void* const*)c, kind, ldc, batches, how,    \
                                HIPBLAS_GEMM_DEFAULT);                                                               \
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
#ifdef RATCHET_HIPBLASLT
// A descriptor's attributes by their numbers; what nobody has set is 0
namespace {
struct Attributes {
  int64_t of[128];
};
hipblasStatus_t set(void* to, int which, const void* value, size_t bytes) {
  if (!to || !value || which < 0 || which >= 128 || bytes > 8) return HIPBLAS_STATUS_INVALID_VALUE;
  int64_t& one = ((Attributes*)to)->of[which];
  return one = 0, memcpy(&one, value, bytes), HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t get(const void* from, int which, void* value, size_t bytes, size_t* written) {
  if (!from || which < 0 || which >= 128 || bytes > 8) return HIPBLAS_STATUS_INVALID_VALUE;
  if (value) memcpy(value, &((const Attributes*)from)->of[which], bytes);
  if (written) *written = bytes;
  return HIPBLAS_STATUS_SUCCESS;
}
int64_t at(const void* from, int which) { return ((const Attributes*)from)->of[which]; }
const int COMPUTE = 120, SCALE = 121;  // no attributes of hipBLASLt's own
Matrix laid_out(const void* place, const void* layout, bool turned) {
  return Matrix{place, (int32_t)at(layout, HIPBLASLT_MATRIX_LAYOUT_TYPE), turned,
                at(layout, HIPBLASLT_MATRIX_LAYOUT_ORDER) == HIPBLASLT_ORDER_ROW,
                at(layout, HIPBLASLT_MATRIX_LAYOUT_ROWS), at(layout, HIPBLASLT_MATRIX_LAYOUT_COLS),
                at(layout, HIPBLASLT_MATRIX_LAYOUT_LD), at(layout, HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)};
}
}  // namespace
extern "C" {
hipblasStatus_t hipblasLtCreate(hipblasLtHandle_t* handle) {
  return *handle = calloc(1, sizeof(Attributes)), HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtDestroy(const hipblasLtHandle_t handle) { return free(handle), HIPBLAS_STATUS_SUCCESS; }
hipblasStatus_t hipblasLtGetVersion(hipblasLtHandle_t, int* version) { return *version = 100000, HIPBLAS_STATUS_SUCCESS; }
#define ATTRIBUTES(T, which)                                                                                         \
  hipblasStatus_t hipblasLt##T##Destroy(const hipblasLt##T##_t one) { return free(one), HIPBLAS_STATUS_SUCCESS; }    \
  hipblasStatus_t hipblasLt##T##SetAttribute(hipblasLt##T##_t to, which one, const void* value, size_t bytes) {      \
    return set(to, one, value, bytes);                                                                               \
  }                                                                                                                  \
  hipblasStatus_t hipblasLt##T##GetAttribute(hipblasLt##T##_t of, which one, void* value, size_t bytes,              \
                                             size_t* written) {                                                      \
    return get(of, one, value, bytes, written);                                                                      \
  }
ATTRIBUTES(MatrixLayout, hipblasLtMatrixLayoutAttribute_t)
ATTRIBUTES(MatmulDesc, hipblasLtMatmulDescAttributes_t)
ATTRIBUTES(MatmulPreference, hipblasLtMatmulPreferenceAttributes_t)
hipblasStatus_t hipblasLtMatrixLayoutCreate(hipblasLtMatrixLayout_t* made, hipDataType kind, uint64_t rows,
                                            uint64_t columns, int64_t ld) {
  Attributes* one = (Attributes*)calloc(1, sizeof(Attributes));
  one->of[HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT] = 1, one->of[HIPBLASLT_MATRIX_LAYOUT_TYPE] = kind;
  one->of[HIPBLASLT_MATRIX_LAYOUT_ROWS] = rows, one->of[HIPBLASLT_MATRIX_LAYOUT_COLS] = columns;
  one->of[HIPBLASLT_MATRIX_LAYOUT_LD] = ld;
  return *made = (hipblasLtMatrixLayout_t)one, HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulDescCreate(hipblasLtMatmulDesc_t* made, hipblasComputeType_t how, hipDataType scale) {
  Attributes* one = (Attributes*)calloc(1, sizeof(Attributes));
  one->of[HIPBLASLT_MATMUL_DESC_TRANSA] = one->of[HIPBLASLT_MATMUL_DESC_TRANSB] = HIPBLAS_OP_N;
  one->of[HIPBLASLT_MATMUL_DESC_EPILOGUE] = HIPBLASLT_EPILOGUE_DEFAULT;
  one->of[HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE] = one->of[HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE] = -1;
  one->of[COMPUTE] = how, one->of[SCALE] = scale;
  return *made = (hipblasLtMatmulDesc_t)one, HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulPreferenceCreate(hipblasLtMatmulPreference_t* made) {
  return *made = (hipblasLtMatmulPreference_t)calloc(1, sizeof(Attributes)), HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(hipblasLtHandle_t, hipblasLtMatmulDesc_t, hipblasLtMatrixLayout_t,
                                                hipblasLtMatrixLayout_t, hipblasLtMatrixLayout_t,
                                                hipblasLtMatrixLayout_t, hipblasLtMatmulPreference_t, int most,
                                                hipblasLtMatmulHeuristicResult_t* found, int* count) {
  if (most < 1) return HIPBLAS_STATUS_INVALID_VALUE;
  memset(found, 0, sizeof *found);
  return found->wavesCount = 1, *count = 1, HIPBLAS_STATUS_SUCCESS;  // one that needs no workspace
}
hipblasStatus_t hipblasLtMatmul(hipblasLtHandle_t, hipblasLtMatmulDesc_t how, const void* alpha, const void* a,
                                hipblasLtMatrixLayout_t of_a, const void* b, hipblasLtMatrixLayout_t of_b,
                                const void* beta, const void* c, hipblasLtMatrixLayout_t of_c, void* d,
                                hipblasLtMatrixLayout_t of_d, const hipblasLtMatmulAlgo_t*, void*, size_t,
                                hipStream_t) {
  if (!how || !of_a || !of_b || !of_d || !alpha || !beta) return HIPBLAS_STATUS_INVALID_VALUE;
  Product asked = {};
  asked.a = laid_out(a, of_a, at(how, HIPBLASLT_MATMUL_DESC_TRANSA) != HIPBLAS_OP_N);
  asked.b = laid_out(b, of_b, at(how, HIPBLASLT_MATMUL_DESC_TRANSB) != HIPBLAS_OP_N);
  asked.c = laid_out(c, of_c ? of_c : of_d, false), asked.d = laid_out(d, of_d, false);
  asked.alpha = alpha, asked.beta = beta, asked.scalar_kind = (int32_t)at(how, SCALE);
  asked.batches = (int32_t)at(of_d, HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
  asked.epilogue = (int32_t)at(how, HIPBLASLT_MATMUL_DESC_EPILOGUE);
  const auto pointer = [how](int which) { return (const void*)at(how, which); };
  const auto kind = [how, &asked](int which) { return at(how, which) < 0 ? asked.d.kind : (int32_t)at(how, which); };
  asked.bias = pointer(HIPBLASLT_MATMUL_DESC_BIAS_POINTER);
  asked.bias_kind = kind(HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
  asked.aux = asked.d, asked.aux.at = pointer(HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
  asked.aux.kind = kind(HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE);
  if (int64_t ld = at(how, HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD)) asked.aux.ld = ld;
  if (int64_t by = at(how, HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE)) asked.aux.stride = by;
  asked.a_scale = pointer(HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER);
  asked.b_scale = pointer(HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER);
  asked.d_scale = pointer(HIPBLASLT_MATMUL_DESC_D_SCALE_POINTER);
  return answered(asked);
}
}
#endif
#endif
