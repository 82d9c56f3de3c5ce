import torch.nn.functional as F
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
torch::Tensor finish(torch::Tensor x) {
  return torch::relu(x) * 0.5;
}
"""
module = load_inline(name="contract_finish", cpp_sources=SOURCE, functions=["finish"])


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        return module.finish(F.linear(x, self.fc.weight, self.fc.bias))
