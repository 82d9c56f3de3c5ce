// MIOpen where it is not installed: its handles, so that the kernels beside its calls compile.
// Names are those of https://rocm.docs.amd.com/projects/MIOpen/en/latest/doxygen/html/index.html.
#pragma once
#if __has_include_next(<miopen/miopen.h>)
#include_next <miopen/miopen.h>
#else
typedef struct miopenHandle* miopenHandle_t;
typedef struct miopenTensorDescriptor* miopenTensorDescriptor_t;
typedef struct miopenTensorDescriptor* miopenFilterDescriptor_t;
typedef struct miopenConvolutionDescriptor* miopenConvolutionDescriptor_t;
typedef struct miopenActivationDescriptor* miopenActivationDescriptor_t;
typedef struct miopenPoolingDescriptor* miopenPoolingDescriptor_t;
typedef struct miopenDropoutDescriptor* miopenDropoutDescriptor_t;
typedef struct miopenRNNDescriptor* miopenRNNDescriptor_t;
typedef enum { miopenStatusSuccess } miopenStatus_t;
typedef int miopenDataType_t, miopenConvFwdAlgorithm_t, miopenConvBwdDataAlgorithm_t, miopenActivationMode_t;
#endif
