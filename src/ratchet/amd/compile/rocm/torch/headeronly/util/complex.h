// Complex numbers without thrust, which the GPU's side would use.
#ifndef RATCHET_TORCH_HEADERONLY_UTIL_COMPLEX_H
#define RATCHET_TORCH_HEADERONLY_UTIL_COMPLEX_H
#include <torch/headeronly/util/Half.h>
#pragma push_macro("__HIPCC__")
#undef __HIPCC__
#include_next <torch/headeronly/util/complex.h>
#pragma pop_macro("__HIPCC__")
#endif
