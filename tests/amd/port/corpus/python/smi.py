"""Calls nvidia-smi: the words of a docstring do not count."""

import shutil
import subprocess


def memory_used():
    if shutil.which("nvidia-smi") is None:  # port: nvidia-program
        return 0
    done = subprocess.run(
        # port: nvidia-program
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv"], capture_output=True, text=True
    )
    return int(done.stdout.split()[-2])
