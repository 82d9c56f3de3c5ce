// hiprand is not emulated. Many sources include its header and use nothing of it.
#pragma once
#if __has_include_next(<hiprand/hiprand.h>)
#include_next <hiprand/hiprand.h>
#endif
