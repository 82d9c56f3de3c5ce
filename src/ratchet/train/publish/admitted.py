"""The kernels of a recipe that may be published, and the README that says what was proven.

A recipe is foreign code. Its kernels pass the same gate as in `ratchet.apply`: what the ledger does
not hold as proven is judged in the sandbox first, and left out if it is not proven there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.base.errors import PublishError
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.terms import JudgedKernel, Terms
from ratchet.train.publish.patch import recipe_of
from ratchet.train.recipe import Recipe
from ratchet.train.recipe.installed import AnyKernel, ready_kernels

TERMS = Terms()


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmittedKernel:
    installed: AnyKernel
    kernel: Kernel
    built: Path  # Its compiled library, or its source in Triton
    verdict: JudgedKernel | None
    """The newest verdict here with a measured ratio; None if the ledger has none for its own
    problem at these sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmittedRecipe:
    """A recipe, its kernels that may be published, and the reasons for the others."""

    recipe: Recipe
    kernels: tuple[AdmittedKernel, ...]
    left_out: dict[str, str]
    machine: str  # The machine whose ledger holds the verdicts
    versions: dict[str, str]

    @property
    def libraries(self) -> tuple[str, ...]:
        """Return the names of the kernels in the library, and of regions, in their order."""
        return tuple(dict.fromkeys(one.installed.library for one in self.kernels))


def admit(path: Path, ledger: str | None) -> AdmittedRecipe:
    """Read a recipe and prove its kernels.

    Raises RecipeError (a recipe that is missing or damaged); PublishError (no kernel in it, or none
    that is proven here).
    """
    recipe = recipe_of(path)
    if not recipe.kernels:
        raise PublishError(
            f"recipe {path} holds no kernels, only settings of the step: there is nothing to "
            "publish; export it with --to patch"
        )
    ready = ready_kernels(recipe.kernels, ledger, recipe=recipe.checksum)
    if not ready.compiled:
        raise PublishError(f"no kernel of {path} is proven on this machine: {ready.why()}")
    kernels = []
    with Court(ledger) as court:
        for one, kernel, built in ready.compiled:
            known = (court.last(kernel, problem) for problem in one.problems())
            measured = (last for last in known if last and last.verdict.speedup.vs_reference)
            kernels.append(
                AdmittedKernel(
                    installed=one, kernel=kernel, built=built, verdict=next(measured, None)
                )
            )
        device, versions = court.judged_on()
    return AdmittedRecipe(
        recipe=recipe,
        kernels=tuple(kernels),
        left_out=dict(ready.left_out),
        machine=str(device.get("model", recipe.device_name)),
        versions=versions,
    )


def judged_again(
    kernels: Sequence[tuple[AdmittedKernel, Kernel]], ledger: str | None, *, timed: bool
) -> dict[str, str]:
    """Judge kernels as they were read back, in the sandbox; return each one's status by its entry.

    Nothing is recalled. Without `timed`, it is judged whether they are right, not how fast. Raises
    PublishError: one of them is not right.
    """
    found: dict[str, str] = {}
    with Court(ledger) as court:
        for admitted, kernel in kernels:
            for problem in admitted.installed.problems():
                asked = problem if timed else problem.untimed()
                verdict = court.judge(kernel, asked, TERMS, fresh=True).verdict
                if verdict.status not in ("correct", "proven"):
                    raise PublishError(
                        f"{kernel.entry} is {verdict.status} after the export: {verdict.reason}"
                    )
                found[kernel.entry] = verdict.status
    return found


def card(admitted: AdmittedRecipe, name: str, how: Sequence[str]) -> bytes:
    """Return a README in Markdown; `how` are the lines that import the package as `kernels`."""
    recipe = admitted.recipe
    versions = ", ".join(f"{key} {value}" for key, value in admitted.versions.items() if value)
    summaries = [
        f"- `{one}`: {LIBRARY[one].summary} ({LIBRARY[one].source_of_idea})."
        for one in admitted.libraries
        if one in LIBRARY
    ]
    rows = [
        f"| `{own.kernel.entry}` | {own.kernel.language} | {figure(own)} | "
        f"`{own.kernel.hash[:12]}` |"
        for own in admitted.kernels
    ]
    lines = [
        f"# {name}",
        "",
        f"Kernels of the training step of `{recipe.workload}`, as `torch.library` ops with a fake",
        "and a derivative. Without a kernel for your machine, an op runs plain torch.",
        "",
        *summaries,
        "",
        "```python",
        *how,
        "",
        "help(kernels)",
        "```",
        "",
        "## What was proven",
        "",
        "Each kernel was right in a sandbox on several shapes and distributions, against fp64, and",
        f"faster than plain torch. Machine: {admitted.machine}. Versions:",
        f"{versions}.",
        "",
        "| kernel | language | speed-up | hash |",
        "|---|---|---|---|",
        *rows,
        "",
        *_whole_step(admitted),
        "Speed-ups are plain torch's time over the kernel's, with the interval of the paired",
        "measurement, at the sizes of the kernel's problem. They hold for that machine. A dash:",
        "not measured there.",
        "",
    ]
    return "\n".join(lines).encode()


def figure(one: AdmittedKernel) -> str:
    """Return a kernel's measured speed-up with its interval; a dash without one."""
    ratio = one.verdict.verdict.speedup.vs_reference if one.verdict else None
    return "-" if ratio is None else f"{ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _whole_step(admitted: AdmittedRecipe) -> list[str]:
    found = admitted.recipe.speedup.get("vs_compile")
    if not found or "ratio" not in found:
        return []
    low, high = found.get("low"), found.get("high")
    interval = f" ({low:.2f} to {high:.2f})" if low and high else ""
    return [
        f"The whole step with its recipe is {found['ratio']:.2f}{interval} times as fast as the",
        f"best of `torch.compile` on {admitted.recipe.device_name}; that includes settings which",
        "are not in this package.",
        "",
    ]
