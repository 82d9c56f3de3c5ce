"""One way of running a step: its config, its kernels, and the process that is timed."""
