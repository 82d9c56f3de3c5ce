#ifndef RATCHET_TORCH_TORCH_H
#define RATCHET_TORCH_TORCH_H
#include <torch/all.h>
#include <ratchet_torch.h>
#endif
