// hipsparse is not emulated. Many sources include its header and use nothing of it.
#pragma once
#if __has_include_next(<hipsparse/hipsparse.h>)
#include_next <hipsparse/hipsparse.h>
#endif
