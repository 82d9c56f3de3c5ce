"""Replace parts of a torch.compile'd step with kernels.

nodes.py      reads dynamo's graph: arguments, casts, shapes mutation.py   finds tensors written in
place and regions without gradients constants.py  computes tensors that depend on no input (causal
masks) scope.py      edits one graph: adds nodes with fake tensors, replaces and erases others
sites.py      call sites with their shapes, and the installation report patterns/     one file per
pattern rewrite.py    runs the patterns over a graph install.py    the pass, and the `options=` for
torch.compile capture.py    the call sites of a workload, and the judge problems built from them
steps.py      a training step with its configured kernels installed
"""
