// hipSPARSE where it is not installed: its types, so that the kernels beside its calls compile.
#pragma once
#if __has_include_next(<hipsparse/hipsparse.h>)
#include_next <hipsparse/hipsparse.h>
#else
typedef void *hipsparseHandle_t, *hipsparseMatDescr_t, *hipsparseSpMatDescr_t, *hipsparseDnMatDescr_t;
typedef void *hipsparseDnVecDescr_t, *hipsparseSpVecDescr_t, *hipsparseSpGEMMDescr_t;
typedef enum { HIPSPARSE_STATUS_SUCCESS } hipsparseStatus_t;
typedef int hipsparseOperation_t, hipsparseIndexType_t, hipsparseIndexBase_t, hipsparseSpMVAlg_t;
#endif
