// torch's C++ interface without what kernels do not use: it compiles in half the time.
#ifndef RATCHET_TORCH_ALL_H
#define RATCHET_TORCH_ALL_H
#ifdef RATCHET_WHOLE_TORCH
#include_next <torch/all.h>
#else
#include <torch/types.h>
#include <torch/version.h>
#endif
#endif
