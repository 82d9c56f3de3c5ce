"""One turn of the ratchet: baseline, explain, kernels, climb, prove, and the result it writes."""
