"""The emulator: machine code that Triton emits for AMD's GPUs, executed on the CPU."""
