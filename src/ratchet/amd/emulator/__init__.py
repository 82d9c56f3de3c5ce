"""The emulator: machine code of AMD GPUs, executed on the CPU. It counts what the code does."""
