"""CUDA code to ROCm: what stands in the way, what can be rewritten, and whether it compiles.

`port(path, settings)` is the library call behind `ratchet port`.
"""
