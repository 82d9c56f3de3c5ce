#pragma once
#include <torch/all.h>
#include <ratchet_torch.h>
