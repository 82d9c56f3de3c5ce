// hipBLASLt where it is not installed: the types and calls that sources use most. hip_blas.cpp answers them on the CPU.
// Names and values are those of https://rocm.docs.amd.com/projects/hipBLASLt/en/latest/api-reference.html.
#pragma once
#if __has_include_next(<hipblaslt/hipblaslt.h>)
#include_next <hipblaslt/hipblaslt.h>
#else
#include <hipblas/hipblas.h>
#include <stdint.h>
#ifdef RATCHET_HIPBLAS
#define RATCHET_HIPBLASLT
#endif
typedef void* hipblasLtHandle_t;
typedef struct { uint64_t data[4]; } hipblasLtMatmulDescOpaque_t, hipblasLtMatrixLayoutOpaque_t;
typedef struct { uint64_t data[5]; } hipblasLtMatmulPreferenceOpaque_t, hipblasLtMatrixTransformDescOpaque_t;
typedef hipblasLtMatmulDescOpaque_t* hipblasLtMatmulDesc_t;
typedef hipblasLtMatrixLayoutOpaque_t* hipblasLtMatrixLayout_t;
typedef hipblasLtMatmulPreferenceOpaque_t* hipblasLtMatmulPreference_t;
typedef struct { uint8_t data[16]; size_t max_workspace_bytes; } hipblasLtMatmulAlgo_t;
typedef struct {
  hipblasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  hipblasStatus_t state;
  float wavesCount;
  int reserved[4];
} hipblasLtMatmulHeuristicResult_t;
typedef enum {
  HIPBLASLT_EPILOGUE_DEFAULT = 1, HIPBLASLT_EPILOGUE_RELU = 2, HIPBLASLT_EPILOGUE_BIAS = 4,
  HIPBLASLT_EPILOGUE_RELU_BIAS = 6, HIPBLASLT_EPILOGUE_GELU = 32, HIPBLASLT_EPILOGUE_GELU_BIAS = 36,
  HIPBLASLT_EPILOGUE_GELU_AUX = 160, HIPBLASLT_EPILOGUE_GELU_AUX_BIAS = 164, HIPBLASLT_EPILOGUE_DGELU = 192,
  HIPBLASLT_EPILOGUE_DGELU_BGRAD = 208, HIPBLASLT_EPILOGUE_BGRADA = 256, HIPBLASLT_EPILOGUE_BGRADB = 512,
  HIPBLASLT_EPILOGUE_SWISH_EXT = 65536, HIPBLASLT_EPILOGUE_SWISH_BIAS_EXT = 65540
} hipblasLtEpilogue_t;
typedef enum {
  HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT, HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, HIPBLASLT_MATRIX_LAYOUT_TYPE,
  HIPBLASLT_MATRIX_LAYOUT_ORDER, HIPBLASLT_MATRIX_LAYOUT_ROWS, HIPBLASLT_MATRIX_LAYOUT_COLS, HIPBLASLT_MATRIX_LAYOUT_LD
} hipblasLtMatrixLayoutAttribute_t;
typedef enum {
  HIPBLASLT_MATMUL_DESC_TRANSA, HIPBLASLT_MATMUL_DESC_TRANSB, HIPBLASLT_MATMUL_DESC_EPILOGUE,
  HIPBLASLT_MATMUL_DESC_BIAS_POINTER, HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER,
  HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER, HIPBLASLT_MATMUL_DESC_C_SCALE_POINTER, HIPBLASLT_MATMUL_DESC_D_SCALE_POINTER,
  HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
  HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE,
  HIPBLASLT_MATMUL_DESC_POINTER_MODE, HIPBLASLT_MATMUL_DESC_AMAX_D_POINTER,
  HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE = 22, HIPBLASLT_MATMUL_DESC_A_SCALE_MODE = 31,
  HIPBLASLT_MATMUL_DESC_B_SCALE_MODE
} hipblasLtMatmulDescAttributes_t;
typedef enum {
  HIPBLASLT_MATMUL_PREF_SEARCH_MODE, HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
} hipblasLtMatmulPreferenceAttributes_t;
typedef enum { HIPBLASLT_ORDER_COL, HIPBLASLT_ORDER_ROW } hipblasLtOrder_t;
typedef enum { HIPBLASLT_POINTER_MODE_HOST, HIPBLASLT_POINTER_MODE_DEVICE } hipblasLtPointerMode_t;
extern "C" {
hipblasStatus_t hipblasLtCreate(hipblasLtHandle_t*);
hipblasStatus_t hipblasLtDestroy(const hipblasLtHandle_t);
hipblasStatus_t hipblasLtGetVersion(hipblasLtHandle_t, int*);
#define RATCHET_BLASLT(T, which)                                                                               \
  hipblasStatus_t hipblasLt##T##Destroy(const hipblasLt##T##_t);                                               \
  hipblasStatus_t hipblasLt##T##SetAttribute(hipblasLt##T##_t, which, const void* value, size_t bytes);        \
  hipblasStatus_t hipblasLt##T##GetAttribute(hipblasLt##T##_t, which, void* value, size_t bytes, size_t* written);
RATCHET_BLASLT(MatrixLayout, hipblasLtMatrixLayoutAttribute_t)
RATCHET_BLASLT(MatmulDesc, hipblasLtMatmulDescAttributes_t)
RATCHET_BLASLT(MatmulPreference, hipblasLtMatmulPreferenceAttributes_t)
hipblasStatus_t hipblasLtMatrixLayoutCreate(hipblasLtMatrixLayout_t*, hipDataType, uint64_t rows, uint64_t columns,
                                            int64_t ld);
hipblasStatus_t hipblasLtMatmulDescCreate(hipblasLtMatmulDesc_t*, hipblasComputeType_t, hipDataType scale);
hipblasStatus_t hipblasLtMatmulPreferenceCreate(hipblasLtMatmulPreference_t*);
hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(hipblasLtHandle_t, hipblasLtMatmulDesc_t, hipblasLtMatrixLayout_t a,
                                                hipblasLtMatrixLayout_t b, hipblasLtMatrixLayout_t c,
                                                hipblasLtMatrixLayout_t d, hipblasLtMatmulPreference_t, int most,
                                                hipblasLtMatmulHeuristicResult_t*, int* count);
hipblasStatus_t hipblasLtMatmul(hipblasLtHandle_t, hipblasLtMatmulDesc_t, const void* alpha, const void* a,
                                hipblasLtMatrixLayout_t, const void* b, hipblasLtMatrixLayout_t, const void* beta,
                                const void* c, hipblasLtMatrixLayout_t, void* d, hipblasLtMatrixLayout_t,
                                const hipblasLtMatmulAlgo_t*, void* workspace, size_t bytes, hipStream_t);
}
#endif
