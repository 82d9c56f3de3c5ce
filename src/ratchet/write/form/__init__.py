"""The loop-level form of a problem: what its kernels compute, before any choice of a schedule.

`forms_of` traces a problem's reference to core ATen and lowers it, op by op, to a graph of a few
kinds of nodes (`form`) over index maps (`extent`). Importing it does not import torch.
"""
