"""The texts of the scripts that reproduce a finding."""

from __future__ import annotations

CHECK = '''def check():
    """End with a line if the folder or a commit is not there."""
    if not os.path.isdir(FOLDER):
        sys.exit(f"this needs the folder {FOLDER}: give it with {USAGE}")
    for commit in COMMITS:
        asked = ["git", "-C", FOLDER, "cat-file", "-e", commit + "^{commit}"]
        if subprocess.run(asked, stderr=subprocess.DEVNULL).returncode:
            sys.exit(f"this needs commit {commit} in {FOLDER}: fetch it first")
    asked = ["git", "-C", FOLDER, "rev-parse", "HEAD"]
    said = COMMIT and subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    if said != COMMIT:
        print(f"{FOLDER} is at {said or 'no commit'}, and was at {COMMIT}", file=sys.stderr)
'''
"""The check a script begins with; the script defines FOLDER, COMMIT, COMMITS and USAGE."""

COMMAND_SCRIPT = '''"""Time two commands in adjacent pairs, in random order.

python reproduce.py [PAIRS] [FOLDER]

It needs:
{needs}
"""

import math
import os
import random
import statistics
import subprocess
import sys
import time

COMMANDS = {commands!r}
FOLDER = sys.argv[2] if len(sys.argv) > 2 else {folder!r}
PAIRS = int(sys.argv[1]) if len(sys.argv) > 1 else {pairs}
COMMIT = {commit!r}
COMMITS = []
USAGE = "python reproduce.py PAIRS FOLDER"


{check}

def run(command):
    began = time.perf_counter()
    subprocess.run(command, shell=True, check=True, cwd=FOLDER, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main():
    check()
    pairs = PAIRS
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

RATCHET_SCRIPT = '''"""Run the comparison again.

python reproduce.py [FOLDER]

It needs:
{needs}
"""

import os
import subprocess
import sys

WORDS = {words!r}
FOLDER = sys.argv[1] if len(sys.argv) > 1 else {folder!r}
COMMIT = {commit!r}
COMMITS = {commits!r}
USAGE = "python reproduce.py FOLDER"


{check}

check()
sys.exit(subprocess.run([sys.executable, "-m", "ratchet.cli", *WORDS], cwd=FOLDER).returncode)
'''

VERDICT_SCRIPT = '''"""Judge {title} again, in the sandbox.

The verdict was: {status}.

It needs:
{needs}
"""

import json

from ratchet.base.serialise import document_of
from ratchet.judge.court.calls import judge
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem

DOCUMENT = json.loads({document!r})
TERMS = {terms!r}

if __name__ == "__main__":
    problem = Problem.from_json(DOCUMENT["problem"])
    kernel = Kernel.from_json(DOCUMENT["kernel"])
    print(kernel.source)
    verdict = document_of(judge(kernel, problem, **TERMS))
    print(json.dumps(verdict, indent=2))
'''

SWEEP_SCRIPT = '''"""Run one training step of a tiny model of transformers in two ways.

{title}

It needs:
{needs}
"""

import torch._inductor.config

from ratchet.guard.sweep.trial import run_arm

if __name__ == "__main__":
    torch._inductor.config.fallback_random = True
    torch._inductor.config.fallback_by_default = {quick!r}
    torch._inductor.config.layout_optimization = not {quick!r}
    for arm in ("written", {arm!r}):
        print(arm, run_arm({type!r}, arm).losses)
'''


NUMERICS_SCRIPT = '''"""{title}

Runs one module on saved inputs: the code it is held against, and the changed code, each against
fp64. Needs torch{needs}. Exit code 1: the changed code errs more than its dtype explains.
"""

import contextlib
import copy
import importlib.util
import pathlib
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
SOURCES = {sources!r}
COMPILE_MODE = {compile_mode!r}
PRECISION = {precision!r}
LEAST = 1e-4  # two honest fp32 results differ by less


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    values = value.values() if isinstance(value, dict) else value
    return [t for one in values for t in tensors(one)] if isinstance(values, (list, tuple)) or (
        isinstance(value, dict)
    ) else []


def mapped(value, change):
    if isinstance(value, torch.Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {{name: mapped(one, change) for name, one in value.items()}}
    if type(value) in (list, tuple):
        return type(value)(mapped(one, change) for one in value)
    return value


def run(saved, *, double=False, compile_mode=None):
    """Return the outputs, the gradients of the inputs and those of the weights."""
    module = copy.deepcopy(saved["module"])
    module = module.double() if double else module
    fresh = lambda t: (t.double() if double else t).clone().requires_grad_()
    arguments, named = mapped((saved["args"], saved["kwargs"]), fresh)
    autocast = PRECISION == "bf16_autocast" and not double
    context = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    if compile_mode is not None:
        module.compile(mode=None if compile_mode == "default" else compile_mode)
    with context:
        outputs = tensors(module(*arguments, **named))
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(o.shape, generator=generator).to(o.dtype) for o in outputs]
    torch.autograd.backward(outputs, gradients)
    found = {{f"output {{at}}": one for at, one in enumerate(outputs)}}
    for at, one in enumerate(tensors((arguments, named))):
        if one.grad is not None:
            found[f"gradient of input {{at}}"] = one.grad
    for name, one in module.named_parameters():
        if one.grad is not None:
            found[f"gradient of {{name}}"] = one.grad
    return {{name: one.detach().double() for name, one in found.items()}}


def load(file):
    """Load a saved module; its classes are those of the source that was saved with it."""
    if file in SOURCES:
        name, source = SOURCES[file]
        spec = importlib.util.spec_from_file_location(name, HERE / source)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return torch.load(HERE / file, weights_only=False)


def error(one, exact):
    return float((one - exact).norm() / exact.norm().clamp_min(1e-300))


def main():
    torch.manual_seed(0)
    before, after = load("{baseline}"), load("{changed}")
    after["args"], after["kwargs"] = before["args"], before["kwargs"]
    exact, usual = run(before, double=True), run(before)
    new = run(after, compile_mode=COMPILE_MODE)
    wrong = False
    for name in exact:
        if name not in new:
            continue
        was, now = error(usual[name], exact[name]), error(new[name], exact[name])
        bad = not now <= max(2 * was, LEAST)
        wrong = wrong or bad
        mark = "  <-- differs" if bad else ""
        print(f"{{name}}: error {{now:.2e}}, baseline {{was:.2e}}{{mark}}")
    print("reproduced" if wrong else "not reproduced: the module alone agrees")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
'''
