import torch

torch.backends.cuda.matmul.allow_tf32 = True  # port: torch-switch
torch.backends.cudnn.allow_tf32 = True  # port: torch-switch
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")
if torch.version.hip is None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
