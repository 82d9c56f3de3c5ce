"""Bisect a slowdown: a Bayesian search over commits with noisy probes."""
