"""Clean: what runs on ROCm as it stands."""

import torch
from torch import nn


def train(model: nn.Module, batches):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.compile(model.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for x, y in batches:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()
