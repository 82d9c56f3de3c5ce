"""CUDA code to ROCm: what stands in the way, what can be rewritten, and whether it compiles."""
