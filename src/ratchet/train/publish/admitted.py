"""The kernels of a recipe that may be published: those that this machine's ledger holds as proven.

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
from ratchet.judge.terms import JudgedKernel, Terms
from ratchet.train.recipe.installed import AnyKernel
from ratchet.train.recipe.recipe import Recipe
from ratchet.train.recipe.reproof import ready_kernels

TERMS = Terms()


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmittedKernel:
    """A proven kernel of a recipe."""

    installed: AnyKernel
    kernel: Kernel
    built: Path
    """Its compiled library, or its source in Triton."""
    verdict: JudgedKernel | None
    """The newest verdict here with a measured ratio; None if the ledger has none for its own
    problem at these sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmittedRecipe:
    """A recipe, its kernels that may be published, and the reasons for the others."""

    recipe: Recipe
    kernels: tuple[AdmittedKernel, ...]
    left_out: dict[str, str]
    machine: str
    """The machine whose ledger holds the verdicts."""
    versions: dict[str, str]

    @property
    def libraries(self) -> tuple[str, ...]:
        """Return the names of the kernels in the library, and of regions, in their order."""
        return tuple(dict.fromkeys(one.installed.library for one in self.kernels))


def admit(path: Path, ledger: str | None) -> AdmittedRecipe:
    """Read a recipe and prove its kernels.

    Raises:
        RecipeError: a recipe that is missing or damaged.
        PublishError: no kernel in it, or none that is proven here.
    """
    recipe = Recipe.load(path)
    if not recipe.kernels:
        raise PublishError(
            f"recipe {path} holds no kernels, only settings of the step: there is nothing to "
            "publish; export it with --to patch"
        )
    ready = ready_kernels(recipe.kernels, ledger)
    if not ready.compiled:
        raise PublishError(f"no kernel of {path} is proven on this machine: {ready.why()}")
    with Court(ledger) as court:
        kernels = tuple(
            AdmittedKernel(
                installed=one, kernel=kernel, built=built, verdict=_measured(court, one, kernel)
            )
            for one, kernel, built in ready.compiled
        )
        device, versions = court.judged_on()
    return AdmittedRecipe(
        recipe=recipe,
        kernels=kernels,
        left_out=dict(ready.left_out),
        machine=str(device.get("model", recipe.device_name)),
        versions=versions,
    )


def judged_again(
    kernels: Sequence[tuple[AdmittedKernel, Kernel]], ledger: str | None, *, timed: bool
) -> dict[str, str]:
    """Judge kernels as they were read back, in the sandbox; return each one's status by its entry.

    Nothing is recalled. Without `timed`, it is judged whether they are right, not how fast.

    Raises:
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


def _measured(court: Court, installed: AnyKernel, kernel: Kernel) -> JudgedKernel | None:
    known = [court.last(kernel, problem) for problem in installed.problems()]
    return next((one for one in known if one and one.verdict.speedup.vs_reference), None)
