#ifndef RATCHET_C10_UTIL_COMPLEX_H
#define RATCHET_C10_UTIL_COMPLEX_H
#include <torch/headeronly/util/complex.h>
#pragma push_macro("__HIPCC__")
#undef __HIPCC__
#include_next <c10/util/complex.h>
#pragma pop_macro("__HIPCC__")
#endif
