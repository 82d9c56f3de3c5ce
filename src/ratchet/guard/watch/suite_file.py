"""The suite of `ratchet watch`: a small TOML file, or the smoke workloads."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ratchet.base.errors import WatchError
from ratchet.base.ledger.books import Better
from ratchet.base.show.words import parse_share
from ratchet.guard.command import MeasuredCommand

SUITE_FILE = "ratchet-watch.toml"
_BENCH = (sys.executable, "-m", "ratchet.cli", "bench")
_STEP_TIME = r'"step_time_s": ([-+.\deE]+)'


class WatchedCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One benchmark: a command or a workload."""

    name: Annotated[str, Meta(min_length=1)]
    command: str | list[str] = ""
    """Run in the root of a checkout; text is split as a shell would, without a shell."""
    workload: str = ""
    """A workload as `ratchet bench` takes it; its median step time counts."""
    arguments: list[str] = []
    """More words for `ratchet bench`."""
    metric: str = ""
    """As in `ratchet bisect`; without it the command is timed whole."""
    unit: str = "s"
    better: Better = "lower"
    pairs: Annotated[int, Meta(ge=3)] | None = None
    time_limit_s: Annotated[float, Meta(gt=0, le=sys.float_info.max)] = 600.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.workload):
            raise ValueError(f"benchmark {self.name!r} needs a command or a workload, one of them")

    def measured(self) -> MeasuredCommand:
        """Return what is run."""
        if self.workload:
            # Its rows go to no ledger that anybody reads.
            words = [*_BENCH, self.workload, *self.arguments, "--json", "--ledger", "sqlite://"]
            return MeasuredCommand(
                words=tuple(words), metric=_STEP_TIME, time_limit_s=self.time_limit_s
            )
        given = self.command
        words = shlex.split(given) if isinstance(given, str) else given
        return MeasuredCommand(
            words=tuple(words), metric=self.metric, time_limit_s=self.time_limit_s
        )


class WatchSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: what to run, how often, and what is too slow."""

    build: str = ""
    """Shell command that builds a checkout."""
    build_time_limit_s: Annotated[float, Meta(gt=0, le=sys.float_info.max)] = 3600.0
    pairs: Annotated[int, Meta(ge=3)] = 20
    fail_if_slower: str = "2%"
    benchmark: Annotated[list[WatchedCommand], Meta(min_length=1)]

    def __post_init__(self) -> None:
        names = [one.name for one in self.benchmark]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"two benchmarks are called {min(twice)!r}: give each its own name")

    @property
    def margin(self) -> float:
        return parse_share(self.fail_if_slower, "fail_if_slower")


SMOKE = WatchSuite(
    pairs=5,
    benchmark=[
        WatchedCommand(name=f"{name} step", workload=name, arguments=["--steps", "5"])
        for name in ("llama-tiny",)
    ],
)
"""The suite that runs without a file."""


def read_suite(path: Path | None, folder: Path) -> WatchSuite:
    """Return the suite of a file, of `ratchet-watch.toml` in the folder, or the smoke workloads.

    Raises:
        WatchError: the file cannot be read, or a setting is not as it must be.
    """
    if path is None:
        path = folder / SUITE_FILE
        if not path.exists():
            return SMOKE
    try:
        suite = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), WatchSuite)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WatchError(f"the suite {path} cannot be read: {error}") from error
    except msgspec.ValidationError as error:
        raise WatchError(f"the suite {path}: {error}") from error
    suite.margin  # noqa: B018 - a share that is none is told now
    for one in suite.benchmark:
        one.measured().check()
    return suite
