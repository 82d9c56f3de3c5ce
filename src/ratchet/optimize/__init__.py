"""The turn of the ratchet: baseline, levers, kernels, proof, and the recipe that comes of it."""
