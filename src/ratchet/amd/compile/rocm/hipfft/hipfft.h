// hipfft is not emulated. Many sources include its header and use nothing of it.
#pragma once
#if __has_include_next(<hipfft/hipfft.h>)
#include_next <hipfft/hipfft.h>
#endif
