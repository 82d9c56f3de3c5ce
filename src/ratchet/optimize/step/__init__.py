"""One way of running a step: its config and kernels, and the process that runs it to be timed."""
