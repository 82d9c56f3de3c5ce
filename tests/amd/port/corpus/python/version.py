import torch

print(torch.version.cuda)  # port: cuda-version
if torch.version.cuda is not None:
    print("NVIDIA")
elif torch.version.hip:
    print("AMD")
NEW = int(torch.version.cuda.split(".")[0]) >= 12  # port: cuda-version
