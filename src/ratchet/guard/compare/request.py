"""A request to compare, checked and made into a contest of two sides."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ratchet.base import scratch
from ratchet.base.errors import GuardError
from ratchet.base.files import why_not_file
from ratchet.base.git import has_changes, resolve, stamp
from ratchet.base.show.words import parse_share
from ratchet.guard.checkouts import Checkout, Checkouts
from ratchet.guard.compare.commands import CommandSide, run_command
from ratchet.train.turn.settings import check_seed, parse_budget_s, workload_options
from ratchet.train.workloads.names import is_user_spec, user_file, user_function

if TYPE_CHECKING:
    from ratchet.guard.compare.workloads import WorkloadSide

COMPILE: Final[Mapping[str, str | None]] = {
    "eager": None,
    "compile": "default",
    "max-autotune": "max-autotune",
}
PRECISIONS: Final = ("fp32", "bf16_autocast", "bf16_master")
SHORT: Final = {"bf16": "bf16_autocast"}
DEVICES: Final = ("cpu", "cuda")
RECIPE_SUFFIX: Final = ".json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """Changes to a step as written."""

    title: str
    changes: Mapping[str, object] = field(default_factory=dict)
    """Fields of `workloads.config.StepConfig`."""
    device: str | None = None
    recipe: str | None = None


def parse_mode(text: str) -> Mode:
    """Parse words separated by commas; GuardError lists the words that there are."""
    changes: dict[str, object] = {}
    device, recipe = None, None
    for word in filter(None, (one.strip() for one in text.split(","))):
        word = SHORT.get(word, word)
        if word in COMPILE:
            changes["compile_mode"] = COMPILE[word]
        elif word in PRECISIONS:
            changes["precision"] = word
        elif word in DEVICES:
            device = word
        elif word.endswith(RECIPE_SUFFIX):
            recipe = word
        elif word != "as_written":
            known = ", ".join((*COMPILE, *PRECISIONS, *DEVICES, "as_written"))
            raise GuardError(f"mode {word!r} is unknown: use {known} or a recipe's .json file")
    if recipe and changes:
        raise GuardError(f"mode {text!r}: a recipe sets compile mode and precision itself")
    return Mode(title=text or "as_written", changes=changes, device=device, recipe=recipe)


WORKING = "your files"


class CompareRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The words of the command line; pairs hold A's and B's."""

    workloads: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None
    modes: tuple[str, str] = ("", "")
    revisions: tuple[str | None, str | None] = (None, None)
    pythons: tuple[str | None, str | None] = (None, None)
    setup: str | None = None
    printed: bool = False
    higher: tuple[str, ...] = ()
    fail_if_slower: str = "0%"
    budget: str = "5m"
    instructions: bool = False
    batch_size: int | None = None
    sequence: int | None = None
    precision: str | None = None
    text: str | None = None
    seed: int = 0
    device: str = "auto"
    folder: Path = Path()
    commits: tuple[str | None, str | None] = (None, None)
    """Commits of the revisions, which are names that may move; known once it is kept."""
    commit: str = ""
    """The folder's, with a mark if its files have changes; empty outside of a repository."""

    @property
    def budget_s(self) -> float:
        return parse_budget_s(self.budget)

    @property
    def allowed(self) -> float:
        """Return the regression budget as a share: 0.02 for 2%."""
        return parse_share(self.fail_if_slower, "--fail-if-slower")

    def kept(self) -> dict[str, object]:
        """Return the request as the ledger keeps it, with the commits that its names stand for."""
        first, second = (one and resolve(self.folder, one) for one in self.revisions)
        made = msgspec.structs.replace(
            self,
            commits=(first, second),
            commit=stamp(self.folder).revision,
            folder=self.folder.absolute(),
        )
        document: dict[str, object] = msgspec.to_builtins(made, enc_hook=str)
        return document

    @classmethod
    def of(cls, kept: object) -> CompareRequest:
        """Return a request that the ledger kept; GuardError if another version kept it."""
        try:
            return msgspec.convert(kept, cls, dec_hook=lambda kind, value: kind(value))
        except msgspec.ValidationError as error:
            raise GuardError(
                f"another version of Ratchet kept this comparison ({error}): compare again"
            ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """Two sides of one kind, ready to be run."""

    a: Any
    b: Any
    warnings: tuple[str, ...] = ()

    @property
    def commands(self) -> bool:
        return isinstance(self.a, CommandSide)


@contextlib.contextmanager
def make_sides(request: CompareRequest) -> Iterator[Sides]:
    """Check a request and make its two sides; worktrees live as long as the context.

    Raises GuardError (the words name no two sides); WorkloadError (a workload is unknown).
    """
    check_seed(request.seed)
    _check(request)
    with contextlib.ExitStack() as stack:
        places = _places(request, stack)
        warnings = tuple(dict.fromkeys(one.warning for one in places if one.warning))
        make = _workload_sides if request.command is None else _command_sides
        a, b = make(request, places)
        yield Sides(a=a, b=b, warnings=warnings)


@dataclass(frozen=True, slots=True)
class _Place:
    title: str
    folder: Path
    checkout: Checkout | None
    environment: dict[str, str]
    python: str
    warning: str


def _check(request: CompareRequest) -> None:
    given, command = len(request.workloads), request.command
    differs = any((*request.modes, *request.revisions, *request.pythons))
    if command is None and not given:
        raise GuardError("compare needs two sides: give A and B, or -- 'COMMAND A' 'COMMAND B'")
    if command is not None and given:
        raise GuardError("compare takes workloads or commands after --, and both were given")
    if given > 2:
        raise GuardError(f"compare takes two workloads, and {given} were given")
    if given == 1 and not differs:
        raise GuardError(
            f"{request.workloads[0]!r} alone is one side: give a second workload, or say how the "
            "sides differ with --a and --b, --rev-a or --python-a"
        )
    if command is not None and any(request.modes):
        raise GuardError("--a and --b are modes of a workload: leave them out for a command")
    if command is None and (request.printed or request.higher or request.setup):
        raise GuardError("--printed, --higher and --setup are for commands after --")
    if command is not None and not any((*request.revisions, *request.pythons)):
        if len(command) != 2:
            raise GuardError(
                f"{len(command)} words after --: quote each of the two commands, as in "
                "-- 'python a.py' 'python b.py'"
            )
    elif command is not None and not command:
        raise GuardError("no command after --: give one, such as -- python bench.py")
    if request.instructions and shutil.which("valgrind") is None:
        raise GuardError("--instructions needs valgrind, which is not installed: install it")
    if request.instructions and any(request.modes):
        raise GuardError("--instructions counts workloads as written: leave --a and --b out")
    if request.higher and not request.printed:
        raise GuardError("--higher names a printed metric: add --printed")
    if request.setup and not any(request.revisions):
        raise GuardError("--setup prepares a revision: give --rev-a too")


def _places(request: CompareRequest, stack: contextlib.ExitStack) -> tuple[_Place, _Place]:
    checkouts = None
    commits = [one and resolve(request.folder, one) for one in request.revisions]
    if any(commits):
        place = stack.enter_context(scratch.folder("compare"))
        checkouts = Checkouts(
            request.folder, place, "", 0.0, environments=request.setup is not None
        )
    found = []
    for side in (0, 1):
        python, environment = _python(request.pythons[side])
        folder, title, warning = request.folder, "", ""
        revision, commit = request.revisions[side], commits[side]
        checkout = None
        if checkouts is not None and commit is not None:
            checkout = checkouts.get(commit, python)
            title = f"{revision} ({commit[:10]})"
            if checkout.folder != checkout.root / checkouts.below:
                raise GuardError(f"revision {revision!r} has no folder {checkouts.below}")
            if has_changes(checkouts.root):
                warning = "changes that are not committed are in no revision: they are not measured"
        elif checkouts is not None:
            checkout, title = checkouts.working(python), WORKING
        if checkout is not None:
            folder, environment = checkout.folder, dict(checkout.environment)
        if request.pythons[side]:
            title = f"{title} {request.pythons[side]}".strip()
        found.append(_Place(title, folder, checkout, environment, python, warning))
    return found[0], found[1]


def _python(named: str | None) -> tuple[str, dict[str, str]]:
    """Return an interpreter, and the environment that activating its folder would give."""
    if named is None:
        return "", {}
    path = Path(named).expanduser().absolute()
    path = path / "bin" / "python" if path.is_dir() else path
    if why := why_not_file(path):
        raise GuardError(f"interpreter {str(path)!r} {why}: name a python or its environment")
    folders = os.pathsep.join([str(path.parent), os.environ.get("PATH", os.defpath)])
    return str(path), {"PATH": folders, "VIRTUAL_ENV": str(path.parent.parent)}


def _command_sides(
    request: CompareRequest, places: tuple[_Place, _Place]
) -> tuple[CommandSide, CommandSide]:
    assert request.command is not None
    texts = request.command
    if any((*request.revisions, *request.pythons)):
        # One word is text for the shell; several are a command's words.
        same = texts[0] if len(texts) == 1 else shlex.join(texts)
        texts = (same, same)
    a, b = (
        CommandSide(
            title=place.title or text, command=text, folder=place.folder,
            environment=place.environment, checkout=place.checkout,
        )
        for text, place in zip(texts, places, strict=True)
    )  # fmt: skip
    if request.setup:
        alike = (a.folder, a.environment) == (b.folder, b.environment)
        for side in (a,) if alike else (a, b):
            once = replace(side, command=request.setup, title=f"{request.setup} in {side.title}")
            run_command(once, printed=False, limit_s=request.budget_s)
    return a, b


def _workload_sides(
    request: CompareRequest, places: tuple[_Place, _Place]
) -> tuple[WorkloadSide, WorkloadSide]:
    from ratchet.guard.compare.workloads import WorkloadSide  # imports numpy
    from ratchet.train.recipe import Recipe

    names = (request.workloads * 2)[:2]
    modes = [parse_mode(text) for text in request.modes]
    sides = []
    for name, mode, place, revision in zip(names, modes, places, request.revisions, strict=True):
        spec = _in_place(name, place, request, revision)
        options = workload_options(
            [spec],
            request.batch_size,
            request.sequence,
            request.precision,
            request.text,
            mode.device or request.device,
        )
        environment = dict(place.environment)
        if mode.recipe is not None:
            environment |= Recipe.load(mode.recipe).config.variables()
        sides.append(
            WorkloadSide(
                title=_title(name, mode, place, request),
                workload=spec,
                options={**options, "seed": request.seed},
                changes=mode.changes,
                recipe=mode.recipe and str(Path(mode.recipe).absolute()),
                environment=environment,
                python=place.python,
            )
        )
    return sides[0], sides[1]


def _title(name: str, mode: Mode, place: _Place, request: CompareRequest) -> str:
    same = len(request.workloads) == 1 or request.workloads[0] == request.workloads[1]
    parts = [name, place.title]
    if any(request.modes) and (same or mode.changes or mode.recipe or mode.device):
        parts.append(mode.title)
    return " ".join(filter(None, parts))


def _in_place(name: str, place: _Place, request: CompareRequest, revision: str | None) -> str:
    """Return a workload's name as it stands in its revision's worktree."""
    if place.checkout is None:
        return name
    if not is_user_spec(name):
        raise GuardError(
            f"workload {name!r} is in no revision of your repository: give your own "
            "file.py:function, or a command after --"
        )
    function, path = user_function(name), user_file(name)
    if revision is None:
        return name
    below = path.absolute().relative_to(request.folder.absolute())
    return f"{place.folder / below}:{function}"
