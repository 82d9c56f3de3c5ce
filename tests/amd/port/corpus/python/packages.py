import flash_attn  # port: cuda-package
import pynvml  # port: cuda-package
from apex.optimizers import FusedAdam  # port: cuda-package
from transformer_engine.pytorch import Linear  # port: cuda-package
from xformers.ops import memory_efficient_attention  # port: cuda-package

import bitsandbytes as bnb  # port: cuda-package


def handle():
    pynvml.nvmlInit()
    return FusedAdam, Linear, memory_efficient_attention, bnb, flash_attn
