"""Replace parts of a torch.compile'd step with kernels.

nodes.py     reads dynamo's graph: arguments, casts, shapes, what is written in place, constants
scope.py     edits one graph: call sites with their shapes, new nodes with fake tensors, patterns
patterns/    the call sites that library kernels take
install.py   runs the patterns over a graph; the pass, and the `options=` for torch.compile
capture.py   the call sites of a workload, and the judge problems built from them
steps.py     a training step with its configured kernels installed
regions/     parts of a graph that one kernel could compute
"""
