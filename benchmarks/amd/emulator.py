"""Run the Triton library's machine code in the emulator, and see which dropped barriers it reports.

    python benchmarks/amd/emulator.py [--targets gfx942,gfx1100] [--entries NAME,...]
        [--barriers 40] [--seed 0]

Every entry of the library runs on every case of tier `ci`, for each target, and its outputs are
checked as the judge checks them. After that, barriers are dropped from the machine code, one at a
time: up to --barriers of them, drawn at random over the entries. A dropped barrier matters if the
outputs change when the waves of a workgroup run in one of two orders; `races_found` of those are
reported as races. The last lines are a table and one JSON object. The exit code is 1 if a case is
wrong or fewer than 95 % of the races are found.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ratchet.amd.emulator import linking, loading
from ratchet.amd.emulator.decode import DecodedKernel, decode
from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.launch import Emulator, LaunchCounts
from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel import TARGETS
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.problems.problem import Case, Problem
from ratchet.judge.problems.suites import find_problem

WANTED_RACES = 0.95
SOURCES = [
    one for kernel in LIBRARY.values() for one in kernel.variants if one.language == "triton"
]
PATHS = {one.file: one.path for one in SOURCES}
ENTRIES = {
    name: [entry for one in SOURCES if one.file == name for entry in one.entries] for name in PATHS
}
"""The library's files in Triton, and the entries of each."""
BARRIER = re.compile(r"^[ \t]+s_barrier(_signal|_wait)?\b", re.M)
"""RDNA 4 has a barrier in two halves, which follow each other."""


def wide(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs of the oracle."""
    return [one.double() if one.dtype.is_floating_point else one for one in tensors]


def answer(entry: Any, problem: Problem, case: Case) -> tuple[list[torch.Tensor], list[Any]]:
    """The outputs of an entry, and the checks that failed."""
    inputs = problem.build_inputs(case, 11)
    reference = problem.load_reference()
    own = list(reference(*[one.clone() for one in inputs], case.scalars))
    oracle = list(reference(*wide(inputs), case.scalars))
    changed = [spec.in_place for spec in case.inputs]
    given = [one.clone() if new else one for one, new in zip(inputs, changed, strict=True)]
    got = [one.clone() for one in entry(*given, case.scalars)]
    failed = [
        one for one in problem.check_outputs(case, inputs, got, own, oracle) if not one.passed
    ]
    return got, failed


def barriers(text: str) -> list[list[int]]:
    """Where the halves of each barrier begin, or the whole of it."""
    found: list[list[int]] = []
    for one in BARRIER.finditer(text):
        if one[1] == "_wait":
            found[-1].append(one.start())
        else:
            found.append([one.start()])
    return found


def without_barrier(text: str, which: int) -> str:
    """The machine code with one barrier less."""
    for at in reversed(barriers(text)[which]):
        _, _, rest = text[at:].partition("\n")
        text = f"{text[:at]}\ts_nop 0\n{rest}"
    return text


class Recorder:
    """Counts what runs, and drops a barrier or turns the waves' order where it is told to."""

    def __init__(self) -> None:
        self.instructions = self.lanes = 0
        self.run_s = 0.0
        self.dropped: tuple[str, int] | None = None
        """A kernel's text and the barrier of it that is missing."""
        self.backwards = self.races_pass = False
        self.texts: set[str] = set()

    def install(self) -> None:
        """Stand between the launches and the emulator."""
        plain_run, plain_decode = Emulator.run, decode

        def run(emulator: Emulator, kernel: DecodedKernel, **given: Any) -> LaunchCounts:
            began = time.process_time()
            order = {"backwards": self.backwards, "races_pass": self.races_pass}
            counts = plain_run(emulator, kernel, **order, **given)
            self.run_s += time.process_time() - began
            self.instructions += counts.instructions
            self.lanes += sum(counts.lanes.values())
            return counts

        def decoded(text: str) -> DecodedKernel:
            self.texts.add(text)
            if self.dropped is not None and self.dropped[0] == text:
                text = without_barrier(text, self.dropped[1])
            return plain_decode(text)

        Emulator.run = run  # type: ignore[method-assign]
        linking.decode = decoded  # type: ignore[assignment]


class Launchers:
    """The decoded kernels that launches keep; a changed text must be decoded anew."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        plain = loading.EmulatedLauncher.__init__

        def kept(launcher: Any, **given: Any) -> None:
            plain(launcher, **given)
            self.made.append(launcher)

        loading.EmulatedLauncher.__init__ = kept  # type: ignore[method-assign]

    def forget(self) -> None:
        """Decode every kernel again."""
        for one in self.made:
            one.kernel.cache_clear()


def outcome(entry: Any, problem: Problem, case: Case) -> list[torch.Tensor] | str:
    """The outputs, or the fault's reason."""
    try:
        return answer(entry, problem, case)[0]
    except KernelError as error:
        return str(error)


def differ(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Whether two runs gave other bits."""
    return any(
        not torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in zip(a, b, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Place:
    """One barrier of one kernel."""

    entry: str
    text: str
    at: int


def barrier_places(
    recorder: Recorder, launchers: Launchers, name: str, entry: Any
) -> Iterator[Place]:
    """Each barrier of the kernels that an entry launches in its first case."""
    problem = find_problem(name).at("ci")
    recorder.texts.clear()
    launchers.forget()
    outcome(entry, problem, problem.cases[0])
    for text in sorted(recorder.texts):
        yield from (Place(name, text, at) for at in range(len(barriers(text))))


def drop(
    recorder: Recorder, launchers: Launchers, place: Place, entry: Any
) -> tuple[str, bool, bool]:
    """The entry of a dropped barrier, whether it matters, and whether a race was reported."""
    problem = find_problem(place.entry).at("ci")
    case = problem.cases[0]
    launchers.forget()
    right = outcome(entry, problem, case)
    recorder.dropped = (place.text, place.at)
    found = []
    matters = False
    for checked, backwards in ((True, False), (True, True), (False, False), (False, True)):
        recorder.backwards, recorder.races_pass = backwards, not checked
        launchers.forget()
        got = outcome(entry, problem, case)
        if checked:
            found.append(isinstance(got, str) and "a race in LDS" in got)
        else:
            matters |= isinstance(got, str) or isinstance(right, str) or differ(got, right)
    recorder.dropped, recorder.backwards, recorder.races_pass = None, False, False
    return place.entry, matters, any(found)


def loaded(library: str, target: str, machine: str) -> dict[str, Any]:
    """A library's module; what it asks tensors' addresses of is known until the next is loaded."""
    text, entry = PATHS[library].read_text(), ENTRIES[library][0]
    entry_of: Any = loading.load_emulated(text, entry, target, machine)
    return entry_of.__wrapped__.__globals__


def measure(target: str, only: Sequence[str], most: int, seed: int) -> dict[str, Any]:
    """One target's figures, in a process of its own: the driver changes Triton."""
    torch.set_num_threads(1)
    began = time.process_time()
    machine = str(compiled_machine(target))
    recorder, launchers = Recorder(), Launchers()
    recorder.install()
    wrong, cases, places = [], 0, []
    for library, names in ENTRIES.items():
        module = loaded(library, target, machine)
        for name in names:
            if only and name not in only:
                continue
            problem = find_problem(name).at("ci")
            for case in problem.cases:
                cases += 1
                try:
                    failed = answer(module[name], problem, case)[1]
                except KernelError as error:
                    failed = [error]
                wrong += [f"{name} {case.name}: {failed[0]}"] if failed else []
    found: dict[str, Any] = {
        "target": target,
        "cases": cases,
        "wrong": wrong,
        "seconds": time.process_time() - began,
        "emulation_s": recorder.run_s,
        "instructions": recorder.instructions,
        "lanes": recorder.lanes,
    }
    for library, names in ENTRIES.items() if most else ():
        module = loaded(library, target, machine)
        for name in names:
            if not only or name in only:
                places += barrier_places(recorder, launchers, name, module[name])
    random.Random(seed).shuffle(places)
    rows = []
    for library, names in ENTRIES.items():
        chosen = [place for place in places[:most] if place.entry in names]
        module = loaded(library, target, machine) if chosen else {}
        rows += [drop(recorder, launchers, place, module[place.entry]) for place in chosen]
    found["barriers"] = len(rows)
    found["races"] = sum(matters for _, matters, _ in rows)
    found["races_found"] = sum(matters and told for _, matters, told in rows)
    found["reported_more"] = sum(told and not matters for _, matters, told in rows)
    found["missed"] = [name for name, matters, told in rows if matters and not told]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--entries", default="", help="default: all of the library")
    parser.add_argument(
        "--barriers", type=int, default=40, help="barriers to drop, for each target"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    only = [one for one in given.entries.split(",") if one]
    if given.worker:
        print(json.dumps(measure(given.targets, only, given.barriers, given.seed)))
        return 0
    rows = []
    for target in given.targets.split(","):
        command = [sys.executable, __file__, "--worker", "--targets", target]
        command += ["--entries", given.entries, "--barriers", str(given.barriers)]
        run = subprocess.run(
            [*command, "--seed", str(given.seed)], stdout=subprocess.PIPE, text=True
        )
        if run.returncode:
            return run.returncode
        rows.append(json.loads(run.stdout.splitlines()[-1]))
        one = rows[-1]
        print(
            f"{target}: {one['cases'] - len(one['wrong'])} of {one['cases']} cases right in "
            f"{one['seconds']:.1f} s of CPU, {one['emulation_s']:.2f} s of it emulation "
            f"({one['lanes'] / one['emulation_s'] / 1e9:.2f} G lane instructions a second); "
            f"{one['races_found']} of {one['races']} races found among {one['barriers']} dropped "
            f"barriers, {one['reported_more']} reported that changed no output"
        )
        for line in one["wrong"]:
            print(f"  wrong: {line}")
    total = {
        key: sum(one[key] for one in rows) for key in ("cases", "races", "races_found", "seconds")
    }
    emulation_s = max(1e-9, sum(one["emulation_s"] for one in rows))
    right = total["cases"] - sum(len(one["wrong"]) for one in rows)
    print(
        json.dumps(
            total
            | {
                "right": right,
                "targets": len(rows),
                "lane_instructions_per_s": sum(one["lanes"] for one in rows)
                / max(emulation_s, 1e-9),
            }
        )
    )
    return int(right < total["cases"] or total["races_found"] < WANTED_RACES * total["races"])


if __name__ == "__main__":
    sys.exit(main())
