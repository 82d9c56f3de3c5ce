"""Kernels in a torch.compile'd step: which call sites they take, and how they are put there.

nodes.py      reading dynamo's graph: arguments, casts, shapes
mutation.py   which tensors are written in place, and which nodes run without gradients
constants.py  tensors that depend on no input, computed ahead (causal masks)
scope.py      one graph under rewriting: new nodes with their fake tensors, replaced and swept
sites.py      what was found: call sites with shapes, the report of an installation
patterns/     one file per pattern
rewrite.py    runs the patterns over a graph
install.py    the pass and the `options=` for torch.compile
capture.py    the call sites of a workload, and the judge's problems made of them
steps.py      a training step with the kernels of its configuration in it
"""
