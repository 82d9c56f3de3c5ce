"""The library call behind `ratchet port`, and its result: scan, patch, compile, write."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from ratchet.amd.architectures import find_architectures
from ratchet.amd.port.compile import Compilation, by_file, compile_clean, hip_texts
from ratchet.amd.port.patch import new_texts
from ratchet.amd.port.rule import Finding
from ratchet.amd.port.scan import ScannedFile, scan
from ratchet.base.errors import PortError, RepositoryError
from ratchet.base.files import make_folder, why_not_new_file, write_all
from ratchet.base.git import diff_of, git
from ratchet.base.serialise import json_text
from ratchet.judge.kernels.kernel import TARGETS

UNTRIED: Final = "not executed"
RAN: Final = "ran"
MAIN: Final = "main"  # the entry of a program's proof


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelProof:
    """The judge's answer on one ported kernel, executed as a target's machine code."""

    file: str
    entry: str
    target: str
    status: str  # a verdict's status, `not executed`, or `ran` for a program without faults
    why: str = ""  # why it is not right, or was not executed

    @property
    def is_right(self) -> bool:
        """Return whether it was executed and nothing was found wrong."""
        return self.status in ("correct", "proven", RAN)

    @property
    def was_executed(self) -> bool:
        return self.status != UNTRIED

    @property
    def said(self) -> str:
        """Return the answer in words."""
        if self.status == RAN:
            return f"ran to its end on {self.target}"
        if self.is_right:
            return f"executed right on {self.target}"
        if self.status == "wrong":
            return f"executed wrong on {self.target}"
        return f"{self.status} on {self.target}"


@dataclass(frozen=True, kw_only=True)
class PortResult:
    path: str
    scanned: tuple[ScannedFile, ...]
    new: Mapping[str, bytes]  # the texts of the files that the patch changes
    patch: bytes
    compiled: tuple[Compilation, ...] = ()
    proofs: tuple[KernelProof, ...] = ()
    written: bool = False  # true if the tree has the new texts
    outputs: tuple[str, ...] = ()  # the files that were written beside the tree
    seconds: float = 0.0

    @property
    def findings(self) -> list[Finding]:
        return [one for scanned in self.scanned for one in scanned.findings]

    @property
    def left(self) -> list[Finding]:
        """The errors and warnings that the tree still has."""
        found = [one for one in self.findings if one.severity != "note"]
        return self.by_hand(found) if self.written else found

    @property
    def failed(self) -> list[str]:
        """The files that do not compile, patched, for at least one target."""
        return list(dict.fromkeys(one.file for one in self.compiled if one.status == "failed"))

    @property
    def is_done(self) -> bool:
        """True if nothing is left, nothing fails to compile, and what was executed is right."""
        wrong = any(one.was_executed and not one.is_right for one in self.proofs)
        return not (self.left or self.failed or wrong)

    def is_fixed(self, finding: Finding) -> bool:
        return finding.fixable or (finding.rule == "api-name" and finding.file in self.new)

    def by_hand(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the errors and warnings that the patch does not fix."""
        return [one for one in findings if one.severity != "note" and not self.is_fixed(one)]

    @property
    def lines(self) -> int:
        return sum(one.found.text.count(b"\n") for one in self.scanned)

    def as_json(self) -> dict[str, object]:
        """Return the result as plain data."""
        return {
            "path": self.path,
            "lines": self.lines,
            "scan_s": self.seconds,
            "written": self.written,
            "left": len(self.left),
            "by_hand": len(self.by_hand(self.findings)),
            "failed": self.failed,
            "counts": dict(Counter(one.severity for one in self.findings)),
            "files": [self._file(one) for one in self.scanned],
            "findings": [one.as_json(self.is_fixed(one)) for one in self.findings],
            "compiled": [asdict(one) | {"executed": False} for one in self.compiled],
            "proofs": [asdict(one) for one in self.proofs],
            "outputs": list(self.outputs),
        }

    def _file(self, scanned: ScannedFile) -> dict[str, object]:
        found = scanned.found
        compiled = by_file(self.compiled).get(found.name, [])
        return {
            "file": found.name,
            "kind": found.kind,
            "skipped": found.skipped,
            "generated": found.generated,
            "unparsed": scanned.unparsed,
            "built_by_torch": scanned.for_torch and found.kind == "cuda",
            "readiness": self.readiness(scanned),
            "fixed_by_patch": sum(self.is_fixed(one) for one in scanned.findings),
            "by_hand": len(self.by_hand(scanned.findings)),
            "changed": found.name in self.new,
            "compiled": {one.target: one.status for one in compiled},
        }

    def readiness(self, scanned: ScannedFile) -> str:
        """Return how far a file is: `ready`, `patched`, `by hand`, `not read`."""
        if scanned.found.skipped:
            return "not read"
        if self.by_hand(scanned.findings):
            return "by hand"
        return "patched" if scanned.found.name in self.new else "ready"


PATCH, DOCUMENT, PAGE, HIP = "port.patch", "port.json", "report.html", "hip"


@dataclass(frozen=True, kw_only=True, slots=True)
class PortSettings:
    write: bool = False  # change the tree
    force: bool = False  # change it even if git says that it has changes
    targets: Sequence[str] = TARGETS
    compiles: bool = True


def port(path: Path, settings: PortSettings | None = None) -> PortResult:
    """Find what stands between a tree and ROCm, and rewrite what can be rewritten.

    The tree changes only with `settings.write`, and then all of its files or none. Raises PortError
    (the tree cannot be read, has changes that git does not hold, or tree-sitter is missing);
    FileError (the tree cannot be written).
    """
    settings = settings or PortSettings()
    find_architectures(list(settings.targets))
    if settings.write and not settings.force:
        _check_clean(path)
    began = time.perf_counter()
    scanned = scan(path)
    seconds = time.perf_counter() - began
    new = new_texts(scanned)
    old = {one.found.name: one.found.text for one in scanned}
    result = PortResult(
        path=str(path),
        scanned=tuple(scanned),
        new=new,
        patch=diff_of(old, new),
        compiled=tuple(compile_clean(scanned, settings.targets)) if settings.compiles else (),
        seconds=seconds,
    )
    if settings.write:
        _write(result, scanned)
        result = replace(result, written=True)
    return result


def _check_clean(path: Path) -> None:
    folder = path if path.is_dir() else path.parent
    try:
        changes = git(folder, "status", "--porcelain", "--untracked-files=all", "--", ".")
    except RepositoryError as error:
        raise PortError(
            f"{path} is in no git repository that could bring it back: commit it to one, or give "
            "--force"
        ) from error
    if changes:
        first = changes.splitlines()[0][3:]
        raise PortError(
            f"{path} has changes that no commit holds ({first}): commit or stash them, or give "
            "--force"
        )


def _write(result: PortResult, scanned: Sequence[ScannedFile]) -> None:
    paths = {one.found.name: one.found.path for one in scanned}
    for name in result.new:
        if why := why_not_new_file(paths[name]):
            raise PortError(f"{paths[name]} {why}: nothing was changed")
    write_all({paths[name]: text for name, text in result.new.items()})


def write_outputs(result: PortResult, out: Path, page: str) -> PortResult:
    """Write the patch, the document, the page and the HIP texts into a folder. Raises FileError."""
    make_folder(out)
    contents = {out / PATCH: result.patch, out / PAGE: page.encode()}
    for name, text in hip_texts(one for one in result.scanned if one.has_kernels):
        place = out / HIP / Path(name).with_suffix(".hip")
        make_folder(place.parent)
        contents[place] = text
    listed = (*(str(one) for one in contents), str(out / DOCUMENT))
    result = replace(result, outputs=listed)
    contents[out / DOCUMENT] = (json_text(result.as_json()) + "\n").encode()
    write_all(contents)
    return result
