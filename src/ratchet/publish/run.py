"""The library call behind `ratchet export` for recipes: admit, write, load back, judge again."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, get_args

from ratchet.base import scratch
from ratchet.base.errors import FileError, PublishError
from ratchet.base.files import make_folder, why_not_new_folder
from ratchet.publish.admitted import AdmittedRecipe, admit, judged_again
from ratchet.publish.card import figure
from ratchet.publish.check import check_kernels_package, loaded, read_back, write_files
from ratchet.publish.layouts import hub_layout, wheel_layout
from ratchet.publish.package import KernelPackage
from ratchet.publish.result import ExportedKernel, ExportResult, written_files

Form = Literal["kernels", "wheel", "patch", "export"]
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def parse_form(text: str) -> Form:
    """Return what to export to; a PublishError for anything else."""
    for one in get_args(Form):
        if one == text:
            return one  # type: ignore[no-any-return]
    raise PublishError(f"--to {text!r} is unknown: use {', '.join(get_args(Form))}")


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
        ops = loaded(stage, layout)
        again = read_back(stage, layout)
        pairs = [(one, again[one.kernel.hash]) for one in admitted.kernels]
        statuses = judged_again(pairs, ledger, timed=prove)
        files = written_files(stage)
    loader = "kernels.get_local_kernel" if form == "kernels" else "Python"
    said = "proven again" if prove else "right, by the judge"
    return ExportResult(
        subject=str(recipe),
        to=form,
        out=str(out),
        files=files,
        checks=(
            f"{ops} tests of its ops passed in a new process that loaded it with {loader}",
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


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder that becomes `out` once the block ends without an error.

    Raises:
        PublishError: `out` holds something already.
        FileError: it cannot be made.
    """
    if why := why_not_new_folder(out):
        raise FileError(f"the folder {out} {why}")
    if out.exists() and any(out.iterdir()):
        raise PublishError(f"--out {out} holds files already: name a new or an empty folder")
    target = Path(os.path.realpath(out))
    make_folder(target.parent)
    with scratch.folder("export", place=target.parent) as stage:
        made = stage / "made"
        made.mkdir()
        yield made
        try:
            os.rename(made, target)
        except OSError as error:
            raise FileError.of(error, out, "written") from error
