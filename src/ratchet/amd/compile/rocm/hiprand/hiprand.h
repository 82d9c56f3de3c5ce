// hipRAND where it is not installed: its types, so that the kernels beside its calls compile.
#pragma once
#if __has_include_next(<hiprand/hiprand.h>)
#include_next <hiprand/hiprand.h>
#else
typedef struct hiprandGenerator* hiprandGenerator_t;
typedef struct hiprandDiscreteDistribution* hiprandDiscreteDistribution_t;
typedef enum { HIPRAND_STATUS_SUCCESS } hiprandStatus_t;
typedef int hiprandRngType_t, hiprandOrdering_t, hiprandDirectionVectorSet_t;
#endif
