"""Whole training steps: arms that run one, gradients and losses compared, recipes timed."""
