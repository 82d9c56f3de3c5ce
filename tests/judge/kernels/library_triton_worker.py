"""Runs the Triton library's machine code in the emulator: one JSON line a check.

The emulator's driver changes Triton for the whole process, so this has a process of its own. The
sources are loaded as the judge's worker loads candidates. Arguments: `few` or `all` cases of each
problem, the target, and the source's name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.loading import load_emulated
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.problems.problem import Case, Problem
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.problems.suites.shipped import WorkloadShapes

FP32 = WorkloadShapes(
    batch=2,
    sequence=24,
    hidden=48,
    intermediate=96,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocabulary=130,
    dtype="float32",
    parameters=((33, 7), (5,), (64, 32)),
)


FEW = ("hidden", "shifted", "full_ragged", "bf16-copy")
"""How the names of those cases end that are run beside the timed one."""


def say(name: str, passed: bool, detail: str) -> None:
    print(json.dumps({"check": name, "passed": passed, "detail": detail}), flush=True)


def widened(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [one.double() if one.dtype.is_floating_point else one for one in tensors]


def check_case(entry: Any, problem: Problem, case: Case, label: str) -> None:
    inputs = problem.build_inputs(case, 11)
    reference = problem.load_reference()
    with torch.no_grad():
        own = list(reference(*[one.clone() for one in inputs], case.scalars))
        oracle = list(reference(*widened(inputs), case.scalars))
        changed = [spec.in_place for spec in case.inputs]
        given = [one.clone() if new else one for one, new in zip(inputs, changed, strict=True)]
        got = [one.clone() for one in entry(*given, case.scalars)]
    checks = problem.check_outputs(case, inputs, got, own, oracle)
    wrong = [one.detail for one in checks if not one.passed]
    say(f"{label}{problem.name}: {case.name}", not wrong, "; ".join(wrong))


def chunks(module: dict[str, Any], words: int, bias: bool, weights: torch.dtype) -> None:
    """Two chunks of tokens, the last of them ragged, some tokens ignored and smoothed."""
    from ratchet.judge.problems.suites.shipped.linear import linear_cross_entropy

    module["LOGITS_BYTES"] = 1
    generator = torch.Generator().manual_seed(5)
    x, weight, added = (
        torch.randn(*shape, generator=generator, dtype=torch.float32)
        for shape in ((270, 40), (words, 40), (words if bias else 0,))
    )
    target = torch.randint(0, words, (270,), generator=generator)
    target[::7] = 3
    scalars = (3.0, 0.1)
    inputs = (x.bfloat16(), weight.to(weights), added.bfloat16())
    got = module["linear_cross_entropy"](*inputs, target, scalars)
    own = linear_cross_entropy(*inputs, target, scalars)
    oracle = linear_cross_entropy(*(one.double() for one in inputs), target, scalars)
    checks = find_problem("linear_cross_entropy").tolerance.check_all(got, own, oracle)
    wrong = [one.detail for one in checks if not one.passed]
    say(f"chunks of {words} words", not wrong, "; ".join(wrong))


def no_token(module: dict[str, Any]) -> None:
    """The loss over no token is NaN, as in torch, and the gradients are zero."""
    weight, bias = torch.randn(30, 16), torch.randn(30)
    for tokens in (20, 0):
        inputs = torch.randn(tokens, 16), weight, bias, torch.full((tokens,), 3)
        nothing = module["linear_cross_entropy"](*inputs, (3.0, 0.0))
        zero = all(bool((one == 0).all()) for one in nothing[1:])
        say(f"no token of {tokens}", bool(nothing[0].isnan()) and zero, f"loss {float(nothing[0])}")


def no_rows(module: dict[str, Any], name: str) -> None:
    """Gradients over no rows at all are zero."""
    empty, weight = torch.empty(0, 48), torch.randn(48)
    found = module[f"{name}_backward"](empty, empty, weight, (1e-5,))
    zero = all(bool((one == 0).all()) for one in found[1:])
    say(f"no rows of {name}", found[0].shape == empty.shape and zero, "")


PLACES = """
import triton
import triton.language as tl

@triton.jit
def places_kernel(out, rows, columns, XCDS: tl.constexpr):
    row, column = _place(rows, columns, 64, 64, 8, XCDS)
    tl.store(out + tl.program_id(0), row * 1000 + column)
"""


def places(module: dict[str, Any]) -> None:
    """Dealt over eight dies, every tile is still computed once."""
    import tempfile
    from pathlib import Path

    path = Path(tempfile.mkdtemp()) / "places.py"
    path.write_text(PLACES)
    exec(compile(PLACES, str(path), "exec"), module)
    for rows, columns in ((64, 64), (700, 300), (64 * 17, 64 * 3), (64 * 8, 64 * 8)):
        tiles = -(-rows // 64) * -(-columns // 64)
        for xcds in (1, 6, 8):
            out = torch.full((tiles,), -1, dtype=torch.int64)
            module["places_kernel"][(tiles,)](out, rows, columns, XCDS=xcds)
            wanted = {r * 1000 + c for r in range(-(-rows // 64)) for c in range(-(-columns // 64))}
            say(f"tiles of {rows} x {columns} on {xcds}", set(out.tolist()) == wanted, "")


def sources() -> dict[str, list[str]]:
    """The text of each source in Triton, then its entries, by the file's name."""
    found: dict[str, list[str]] = {}
    for one in (variant for library in LIBRARY.values() for variant in library.variants):
        if one.language == "triton":
            found.setdefault(one.file, [one.path.read_text()]).extend(one.entries)
    return found


def main() -> None:
    torch.set_num_threads(1)
    everything, target, name = sys.argv[1] == "all", *sys.argv[2:4]
    machine = str(compiled_machine(target))
    in_fp32 = {one.name: one for lib in LIBRARY.values() for one in lib.problems(FP32)}
    source, *entries = sources()[name]
    module = load_emulated(source, entries[0], target, machine).__wrapped__.__globals__
    for entry in entries:
        problem = find_problem(entry).at("ci")
        for case in problem.cases:
            if everything or case.timed or case.name.endswith(FEW):
                check_case(module[entry], problem, case, "")
        if entry in in_fp32:
            check_case(module[entry], in_fp32[entry], in_fp32[entry].cases[0], "fp32 ")
    if name == "norms":
        no_rows(module, "rms_norm")
        no_rows(module, "layer_norm")
    if name == "linear_cross_entropy":
        places(module)
        no_token(module)
        chunks(module, 97, True, torch.bfloat16)
        chunks(module, 128, False, torch.float32)


if __name__ == "__main__":
    main()
