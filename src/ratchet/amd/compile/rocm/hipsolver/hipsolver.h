// hipsolver is not emulated. Many sources include its header and use nothing of it.
#pragma once
#if __has_include_next(<hipsolver/hipsolver.h>)
#include_next <hipsolver/hipsolver.h>
#endif
