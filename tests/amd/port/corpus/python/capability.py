import torch

HOPPER = torch.cuda.get_device_capability() >= (9, 0)  # port: device-capability


def has_bf16():
    major, _ = torch.cuda.get_device_capability()
    return major >= 8 or torch.cuda.get_device_properties(0).major >= 8  # port: device-capability


IS_NVIDIA = torch.version.hip is None
BLACKWELL = IS_NVIDIA and torch.cuda.get_device_capability() == (12, 0)
