"""One optimization turn: baseline, explain, kernels, climb, prove, and write the result."""
