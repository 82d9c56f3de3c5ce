import torch


def quantize(x):
    scale = x.abs().max() / 448.0
    return (x / scale).to(torch.float8_e4m3fn), scale  # port: fp8-dtype
