#ifndef RATCHET_TORCH_EXTENSION_H
#define RATCHET_TORCH_EXTENSION_H
#include <torch/all.h>
#ifdef RATCHET_WHOLE_TORCH
#include <torch/python.h>
#else
#include <torch/csrc/utils/pybind.h>
#endif
#include <ratchet_torch.h>
#endif
