"""Turn the backward passes of `honest_formulas` into torch kernels, each with its problems."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from honest_case import Honest

from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.suites import find_problem

SOURCE = Path(__file__).with_name("honest_formulas.py")


def kernels() -> Iterator[Honest]:
    """Yield every formula with its problem, and with the bf16 problem if there is one.

    The formulas use torch's operations, so they cannot answer problems that require own code.
    """
    source = SOURCE.read_text(encoding="utf-8")
    formulas = re.findall(r"^def ([a-z]\w*)", source, re.MULTILINE)
    for entry in formulas:
        base = entry.removesuffix("_backward")
        low = f"{base}_bf16{entry.removeprefix(base)}"
        kernel = Kernel(name="honest", language="torch", source=source, entry=entry)
        for name in (entry, low) if low not in formulas else (entry,):
            try:
                asked = find_problem(name).at("ci")
            except KernelError:
                continue  # in fp32 only
            title = f"backward in torch, {name}"
            yield Honest(name=title, kernel=kernel, problem=replace(asked, task="any"))
