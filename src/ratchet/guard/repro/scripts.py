"""The texts of the scripts that `repro` writes."""

COMMAND_SCRIPT = '''"""Time two commands in adjacent pairs, in random order. Needs only Python.

python reproduce.py [PAIRS]
"""

import math
import random
import statistics
import subprocess
import sys
import time

COMMANDS = {commands!r}
FOLDER = {folder!r}


def run(command):
    began = time.perf_counter()
    subprocess.run(command, shell=True, check=True, cwd=FOLDER, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main():
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    random.seed(0)
    for command in COMMANDS:
        run(command)  # fills caches
    times = ([], [])
    for pair in range(pairs):
        if pair % 2 == 0:
            order = [0, 1] if random.random() < 0.5 else [1, 0]
        else:
            order = order[::-1]
        for side in order:
            times[side].append(run(COMMANDS[side]))
    logs = [math.log(a / b) for a, b in zip(*times)]
    medians = sorted(statistics.median(random.choices(logs, k=pairs)) for _ in range(2000))
    low, middle, high = (math.exp(x) for x in (medians[50], statistics.median(logs), medians[1949]))
    print(f"A {{statistics.median(times[0]):.4f}} s, B {{statistics.median(times[1]):.4f}} s")
    print(f"A / B {{middle:.4f}}, 95 % interval {{low:.4f}} to {{high:.4f}} (above 1: B is faster)")


if __name__ == "__main__":
    main()
'''

RATCHET_SCRIPT = '''"""Run the comparison again. Needs torch-ratchet."""

import subprocess
import sys

WORDS = {words!r}
FOLDER = {folder!r}

sys.exit(subprocess.run([sys.executable, "-m", "ratchet.cli", *WORDS], cwd=FOLDER).returncode)
'''

VERDICT_SCRIPT = '''"""Judge {title} again, in the sandbox. Needs torch-ratchet.

The verdict was: {status}.
"""

import json

from ratchet.judge.api import judge
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.problem import Problem

DOCUMENT = json.loads({document!r})

if __name__ == "__main__":
    problem = Problem.from_json(DOCUMENT["problem"])
    kernel = Kernel.from_json(DOCUMENT["kernel"])
    print(kernel.source)
    print(judge(kernel, problem).model_dump_json(indent=2))
'''
