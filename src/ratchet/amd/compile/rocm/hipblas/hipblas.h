// hipblas is not emulated. Many sources include its header and use nothing of it.
#pragma once
#if __has_include_next(<hipblas/hipblas.h>)
#include_next <hipblas/hipblas.h>
#endif
