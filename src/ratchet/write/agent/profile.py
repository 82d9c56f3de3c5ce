"""The lines about a kernel's static profile that a prompt shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ratchet.base import Json
from ratchet.base.errors import RatchetError
from ratchet.base.ledger import Fingerprint, Ledger
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem

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
        from ratchet.amd.profile.inspection import inspect_kernel

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
