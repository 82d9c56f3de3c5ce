"""The facts in a prompt, of its problem and machine: card, reference, device, profiles, passages.

A problem's own file is code of its user: its card is made in a process of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.base import Json
from ratchet.base.devices import catalogue
from ratchet.base.devices.probe import Device
from ratchet.base.errors import KnowledgeError, RatchetError
from ratchet.base.ledger import Fingerprint, Ledger
from ratchet.base.ledger.books import ExchangeBook
from ratchet.base.process.channel import Message
from ratchet.base.serialise import document_of
from ratchet.base.show.words import counted
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.problems.card import ProblemCard, TensorForm, card_of
from ratchet.judge.problems.problem import Problem, reference_text
from ratchet.judge.problems.problem_file import default_entry, described
from ratchet.judge.problems.templates import (
    TemplateLanguage,
    show_tensor,
    standalone_reference,
    template,
)
from ratchet.write.agent.strategy import StrategyName
from ratchet.write.knowledge import Passage, open_index
from ratchet.write.knowledge.index import cite, query_of

LOG = logging.getLogger(__name__)
WORKER: Final = "ratchet.write.agent.brief"
CARD_LIMIT_S: Final = 120.0
MOST_CASES: Final = 8
MOST_REFERENCE: Final = 24_000  # Characters of a reference that are shown
TASKS: Final = {
    "own": "the work must run in the kernel's own code: no library may do it",
    "any": "a library may do the work",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemBrief:
    """One problem as a prompt shows it, in one language."""

    name: str
    entry: str  # The function, class or C function that the answer must define
    summary: str
    signature: tuple[str, ...]  # The tensors in the order of the call, one line each
    arguments: str  # The arguments of a Python entry: `x, w, scalars`
    scalars: str
    cases: tuple[str, ...]
    task: str
    tolerance: str
    notes: tuple[str, ...]
    is_model: bool
    reference: str
    start: str  # A file to start from: a skeleton with the whole interface; empty if there is none


def brief_of(problem: Problem, language: Language) -> ProblemBrief:
    """Return what a prompt says about a problem.

    Raises RatchetError: its card cannot be made.
    """
    card = _card(problem)
    python = language in ("torch", "triton")
    reference = standalone_reference(problem) or problem.text or reference_text(problem.reference)
    if len(reference) > MOST_REFERENCE:
        reference = reference[:MOST_REFERENCE].rstrip() + "\n# ... the rest is left out\n"
    else:
        reference = reference.rstrip()
    tensors = (*card.inputs, *card.outputs)
    scalars = card.main_case.scalars
    libraries = f"; allowed from libraries: {', '.join(card.libraries)}" if card.libraries else ""
    return ProblemBrief(
        name=card.name,
        entry=card.python_entry if python else card.entry,
        summary=card.summary,
        signature=tuple(show_tensor(one, card) for one in tensors),
        arguments=", ".join([*(one.name for one in card.inputs), "scalars"]),
        scalars=", ".join(f"{one:g}" for one in scalars) or "none",
        cases=tuple(_case_lines(card)),
        task=TASKS[card.task] + libraries,
        tolerance=card.tolerance,
        notes=(*card.notes, *(("tensors differ between cases",) if card.varies else ())),
        is_model=card.is_model,
        reference=reference,
        start=_start(problem, card, language),
    )


def _card(problem: Problem) -> ProblemCard:
    entry = default_entry(problem.name)
    if not problem.text:
        return card_of(problem, given=problem.name, entry=entry)
    request = {"by": WORKER, "problem": problem.as_json(), "entry": entry, "threads": 1}
    found = described(request, CARD_LIMIT_S)
    if "fault" in found:
        raise RatchetError(f"problem {problem.name!r} cannot be shown: {found['fault']}")
    return msgspec.convert(found["card"], ProblemCard)


def _case_lines(card: ProblemCard) -> list[str]:
    """Return the visible cases, the timed ones first."""
    ordered = sorted(card.cases, key=lambda one: not one.timed)
    lines = [
        f"{case.name}{' (timed)' if case.timed else ''}: {_forms(case.inputs)}"
        + (f" -> {_forms(case.outputs)}" if case.outputs else "")
        for case in ordered[:MOST_CASES]
    ]
    left = len(ordered) - len(lines)
    return [*lines, *([f"and {left} more"] if left else [])]


def _forms(forms: tuple[TensorForm, ...]) -> str:
    return ", ".join(f"{one.dtype} {list(one.shape)}" for one in forms)


def _start(problem: Problem, card: ProblemCard, language: Language) -> str:
    if language == "hip":
        return ""
    spoken: TemplateLanguage = language
    try:
        return template(problem, card, spoken)
    except (RatchetError, KeyError) as error:  # KeyError: a dtype that C++ has no name for
        LOG.info("no file to start from for %s in %s: %s", card.name, language, error)
        return ""


def answer(request: Message) -> dict[str, object]:
    """Return the `card` of the request's problem, for a kernel named `entry`."""
    problem = Problem.from_json(request["problem"])
    return {"card": document_of(card_of(problem, given=problem.name, entry=request["entry"]))}


SHOWN: Final[Mapping[str, str]] = {
    "compute_units": "compute units",
    "sms": "SMs",
    "wavefront_size": "lanes in a wave",
    "simds_per_cu": "SIMDs in a compute unit",
    "xcds": "dies",
    "lds_per_cu": "LDS of a compute unit",
    "l1_vector": "vector L1",
    "l2_total": "L2",
    "infinity_cache": "Infinity Cache",
    "memory": "memory",
    "memory_bandwidth": "memory bandwidth",
    "max_engine_clock": "clock",
    "peak_dense.vector_fp32": "vector fp32 peak",
    "peak_dense.matrix_bf16": "matrix bf16 peak",
    "peak_dense.matrix_fp16": "matrix fp16 peak",
    "peak_dense.matrix_fp8": "matrix fp8 peak",
    "fp8_encoding": "fp8",
}


def device_facts(device: Device) -> list[str]:
    vendor = "" if device.model.startswith(device.vendor) else f"{device.vendor} "
    lines = [f"{vendor}{device.model}, target {device.target}"]
    if device.kind == "cpu":
        threads = counted(device.threads, "thread")
        lines.append(f"{counted(device.cores, 'core')}, {threads} may be used")
        lines.append(f"instruction sets: {', '.join(device.isa) or 'unknown'}")
        for name, size in sorted(device.caches_bytes.items()):
            count = device.cache_instances.get(name, 1)
            lines.append(f"{name}: {size >> 10} KiB, {count} of them")
    known = catalogue.load().match(
        device.model, compute_units=device.cores if device.kind == "cuda" else 0
    )
    return [*lines, *(_published(known) if known else ())]


def target_facts(target: str) -> list[str]:
    """Return the lines about a GPU that is not here: its target's limits, and a device's facts."""
    lines = [f"target {target}, not on this machine: kernels are compiled for it, not timed"]
    limits = ARCHITECTURES.get(target)
    if limits is not None:
        lines += [
            f"{limits.wavefront_size} lanes in a wave, at most {limits.max_waves_per_simd} waves "
            "on a SIMD",
            f"{limits.vgprs_per_lane} vector registers a lane, shared by the waves of a SIMD",
            f"{limits.lds_bytes_per_workgroup >> 10} KiB of LDS for a workgroup",
        ]
    devices = catalogue.load().devices.values()
    having = [one for one in devices if (fact := one.get("target")) and fact.value == target]
    best = max(having, key=lambda one: len(one.facts), default=None)
    return [*lines, *(_published(best) if best else ())]


def _published(device: catalogue.CatalogueDevice) -> Iterator[str]:
    yield f"published for {device.name}:"
    for field, words in SHOWN.items():
        fact = device.get(field)
        if fact is not None and fact.value not in ("", "0"):
            yield f"- {words}: {fact.value} {fact.unit}".rstrip()


MOST_KERNELS: Final = 3
PROFILE_LIMIT_S: Final = 60.0


class Profiles:
    """Static profiles: of the ledger's verdicts, else made in the judge's sandbox, each once."""

    def __init__(self, ledger: Ledger, fingerprint: Fingerprint, target: str | None) -> None:
        self._ledger = ledger
        self._fingerprint = fingerprint
        self._target = target
        """A GPU that is not here: kernels without a verdict are compiled for it; None for none."""
        self._known: dict[tuple[str, str], list[str]] = {}

    def lines(self, kernel: Kernel, problem: Problem) -> list[str]:
        """Return the lines about a kernel; none if there is no profile of it."""
        key = (kernel.hash, problem.hash)
        if kernel.language not in ("triton", "hip"):
            return []
        if key not in self._known:
            self._known[key] = self._made(kernel, problem)
        return self._known[key]

    def _made(self, kernel: Kernel, problem: Problem) -> list[str]:
        from ratchet.judge.revision import revision

        found = self._ledger.verdict(
            kernel.hash,
            problem.hash,
            self._fingerprint,
            judge=revision(self._target),
            target=self._target,
        )
        lines = profile_lines((found or {}).get("static"), self._target)
        if lines or self._target is None:
            return lines
        from ratchet.amd.profile import inspect_kernel

        try:
            document = inspect_kernel(kernel, problem, [self._target], time_limit_s=PROFILE_LIMIT_S)
        except RatchetError as error:
            return [f"not compiled for {self._target}: {error}"]
        return profile_lines(document, self._target)


def profile_lines(document: Mapping[str, Json] | None, target: str | None = None) -> list[str]:
    """Return what matters of a static profile, on one target; none without a profile.

    `document` is what `inspect_kernel` returns and a verdict holds under `static`. Without a
    target, the first that compiled is shown.
    """
    targets: Mapping[str, Json] = (document or {}).get("targets") or {}
    for name, found in targets.items():
        if target not in (None, name) or not found.get("kernels"):
            continue
        kept = [one for one in found["kernels"] if one.get("launches", 1) or not one.get("tuned")]
        lines = [line for one in kept[:MOST_KERNELS] for line in _kernel(one)]
        bounds = [
            f"no faster than {bound['time_s'] * 1e6:.0f} us on {bound['device']}, limited by "
            f"{bound['limit']} (an estimate)"
            for bound in found.get("bounds", ())[:1]
        ]
        return [f"compiled for {name}:", *lines, *bounds]
    errors = [
        f"does not compile for {name}: {str(found['error'])[:300]}"
        for name, found in targets.items()
        if found.get("error") and target in (None, name)
    ]
    return errors[:1]


def _kernel(one: Mapping[str, Json]) -> Iterator[str]:
    registers = one.get("total_vgprs", one.get("vgprs", one.get("registers")))
    spills = one.get("spills")
    yield (
        f"- {one['name']}: {registers} vector registers, {spills} spills, "
        f"{one.get('lds_bytes')} bytes of LDS, {one.get('occupancy_waves')} of "
        f"{one.get('max_waves')} waves on a SIMD (limited by {one.get('occupancy_limit')})"
    )
    matrix = [f"{row['count']} x {row['name']}" for row in one.get("matrix_instructions", ())]
    if matrix:
        yield f"  matrix instructions: {'; '.join(matrix)}"
    widths = one.get("global_load_bits") or {}
    if widths:
        shown = ", ".join(f"{count} of {bits} bits" for bits, count in widths.items())
        yield f"  global loads: {shown} a lane"
    for note in one.get("notes", ())[:3]:
        yield f"  note: {note}"


AMD_TARGET: Final = "gfx942"
"""The GPU that Triton and HIP kernels are written for where none is here and none is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    run: str
    model: str
    language: Language
    strategy: StrategyName
    device: Device
    target: str | None  # A GPU that is not here; None to write for `device`
    book: ExchangeBook  # The ledger's, for what was asked before, and what is asked now
    replays: bool  # The answers come from the ledger, so they are not recorded again
    profiles: Profiles
    knowledge: Path | None  # The index of documents; None for no passages at all
    hide: Callable[[str], str]
    """Takes the key out of a text before it is stored: evidence may quote anything."""

    def facts(self) -> tuple[str, ...]:
        """Return the lines about the device to write for."""
        found = target_facts(self.target) if self.target else device_facts(self.device)
        return tuple(found)

    def passages(self, brief: ProblemBrief) -> tuple[Passage, ...]:
        """Return the passages that fit a problem; none if the index cannot be read."""
        if self.knowledge is None:
            return ()
        gpu = self.target is not None or self.device.kind == "cuda"
        amd = gpu and (self.target or self.device.target).startswith("gfx")
        avoid = ("x86",) if amd else ("x86", "AMD") if gpu else ("AMD GPUs",)
        words = "GPU wave LDS registers" if gpu else "CPU x86 cache vector threads OpenMP"
        query = query_of(
            *(brief.name, brief.summary, brief.reference, self.language, words),
            self.target or self.device.target,
        )
        try:
            with open_index(self.knowledge) as index:
                return tuple(cite(index, query, avoid=avoid))
        except KnowledgeError as error:
            LOG.warning("no passages for the agent: %s", error)
            return ()
