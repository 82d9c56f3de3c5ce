// hipBLASLt where it is not installed: its types, so that the kernels beside its calls compile.
// Names are those of https://rocm.docs.amd.com/projects/hipBLASLt/en/latest/api-reference.html.
#pragma once
#if __has_include_next(<hipblaslt/hipblaslt.h>)
#include_next <hipblaslt/hipblaslt.h>
#else
#include <hipblas/hipblas.h>
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
typedef int hipblasLtEpilogue_t, hipblasLtMatmulDescAttributes_t, hipblasLtMatrixLayoutAttribute_t;
typedef int hipblasLtMatmulPreferenceAttributes_t, hipblasLtOrder_t, hipblasLtPointerMode_t;
#endif
