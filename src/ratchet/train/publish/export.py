"""The library call behind `ratchet export`: admit, write, load back, judge again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

from ratchet.base.errors import PublishError
from ratchet.train.publish.admitted import AdmittedRecipe, admit, judged_again
from ratchet.train.publish.card import figure
from ratchet.train.publish.check import check_kernels_package, loaded, read_back, write_files
from ratchet.train.publish.export_result import ExportedKernel, ExportResult, Form, written_files
from ratchet.train.publish.layouts import hub_layout, wheel_layout
from ratchet.train.publish.package import KernelPackage
from ratchet.train.publish.patch import export_patch
from ratchet.train.publish.program import export_workload
from ratchet.train.publish.staging import new_folder
from ratchet.train.workloads.names import LoadOptions

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def run_export(
    subject: str,
    form: Form,
    out: Path,
    *,
    script: Path | None = None,
    name: str | None = None,
    prove: bool = False,
    options: LoadOptions | None = None,
    ledger: str | None = None,
) -> ExportResult:
    """Export a recipe or, to `export`, a workload, which `options` build.

    Raises:
        RatchetError: a mistake in the call, or an export that fails its checks. Nothing is written
            then.
    """
    if form == "patch":
        return export_patch(Path(subject), script, out)
    if script is not None:
        raise PublishError(f"--script goes with --to patch, not with --to {form}: leave it out")
    if form == "export":
        return export_workload(subject, options or {}, out)
    return export_kernels(Path(subject), form, out, name=name, prove=prove, ledger=ledger)


def export_kernels(
    recipe: Path,
    form: Literal["kernels", "wheel"],
    out: Path,
    *,
    name: str | None = None,
    prove: bool = False,
    ledger: str | None = None,
) -> ExportResult:
    """Publish a recipe's kernels in a new folder, after loading them from it and judging them.

    With `prove` the judge times them again too. Nothing is left in `out` if a check fails.

    Raises:
        RatchetError: a recipe without proven kernels, a folder that holds something, an export that
            does not load.
    """
    if form == "kernels":
        check_kernels_package()
    with new_folder(out) as stage:
        if name is not None and not _NAME.fullmatch(name):
            raise PublishError(f"--name {name!r}: use small letters, digits and single hyphens")
        admitted = admit(recipe, ledger)
        package = KernelPackage(admitted, (name or default_name(admitted)).replace("-", "_"))
        layout = hub_layout(package) if form == "kernels" else wheel_layout(package)
        write_files(stage, layout.files)
        found = loaded(stage, layout)
        again = read_back(stage, layout)
        pairs = [(one, again[one.kernel.hash]) for one in admitted.kernels]
        statuses = judged_again(pairs, ledger, timed=prove)
        files = written_files(stage)
    loader = "kernels.get_local_kernel" if form == "kernels" else "Python"
    said = "judged again, with their speed" if prove else "right, by the judge"
    why = next(iter(found.left_out.values()), "")
    plain = f", where plain torch ran for {len(found.left_out)} kernels: {why}" if why else ""
    return ExportResult(
        subject=str(recipe),
        to=form,
        out=str(out),
        files=files,
        checks=(
            f"{found.tests} tests passed in a new process that loaded it with {loader}{plain}",
            f"{len(pairs)} kernels, read back from the folder, are {said}",
        ),
        kernels=tuple(
            ExportedKernel(
                entry=one.kernel.entry,
                library=one.installed.library,
                language=one.kernel.language,
                hash=one.kernel.hash,
                speedup=figure(one),
                after=statuses.get(one.kernel.entry, "-"),
            )
            for one in admitted.kernels
        ),
        left_out=tuple(admitted.left_out.items()),
    )


def default_name(admitted: AdmittedRecipe) -> str:
    """Return a name for a package from that of the recipe's workload."""
    words = re.findall(r"[a-z0-9]+", admitted.recipe.workload.lower())
    return "-".join(["kernels", *words])[:60].rstrip("-")
