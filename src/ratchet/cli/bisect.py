"""`ratchet bisect`: which commit made a command slower."""

from __future__ import annotations

from pathlib import Path

import typer

from ratchet.cli import app as cli
from ratchet.cli.app import app, argument, option
from ratchet.cli.outputs import OutFolder


@app.command(cls=cli.after_dashes("[OPTIONS] GOOD BAD -- COMMAND..."))
def bisect(
    context: typer.Context,
    good: str = argument("A revision before the change.", "GOOD"),
    bad: str = argument("A later revision, after it.", "BAD"),
    metric: str = option(
        "",
        "What COMMAND prints that counts: a regular expression around a number, or "
        "last-number. Default: COMMAND is timed whole.",
        "REGEX",
    ),
    build: str = option("", "Shell command that builds a checkout, once each.", "CMD"),
    max_pairs: int = option(400, "Pairs in the search at most.", min=1),
    at_least: str = option("0.5%", "Smaller differences do not count.", "SHARE"),
    time_limit: float = option(600.0, "For one run of COMMAND.", "SECONDS", min=0.1),
    repository: Path = option(Path("."), "The git repository. Default: here.", "FOLDER"),
    state: Path | None = option(
        None, "For checkouts and pairs. Default: your cache.", "FOLDER", parser=OutFolder()
    ),
    fresh: bool = option(False, "Forget what an unfinished run has measured."),
    keep: bool = option(False, "Keep checkouts and pairs."),
    seed: int = cli.seed_option("Of the order within pairs."),
    as_json: cli.AsJson = False,
) -> None:
    """Find the commit that changed how fast COMMAND is, with noisy measurements.

    COMMAND runs in checkouts and environments of their own; your working tree is not touched. The
    same call continues a killed run.

    Exit code 0: found. 1: narrowed to several commits. 3: GOOD and BAD do not differ clearly.
    2: a commit ran other code than its own, or a mistake in the call.
    """
    from ratchet.base.errors import RepositoryError
    from ratchet.base.show.words import parse_share
    from ratchet.guard.bisect import commit_range
    from ratchet.guard.command import MeasuredCommand

    words = context.meta[cli.COMMAND]
    if not words:
        raise RepositoryError("no COMMAND: write ratchet bisect GOOD BAD -- COMMAND")
    least = parse_share(at_least, "--at-least")
    command = MeasuredCommand(words=tuple(words), metric=metric, time_limit_s=time_limit)
    command.check()
    commits = commit_range(repository, good, bad)

    import shutil

    from ratchet.base.files import cache_folder
    from ratchet.guard.bisect import (
        BisectOptions,
        PairProgress,
        bisect_commits,
        bisect_report,
        state_folder,
    )

    options = BisectOptions(
        command=command, build=build, most_pairs=max_pairs, at_least=least, seed=seed
    )
    cache = cache_folder("bisect") if state is None else state
    place = state_folder(cache.absolute(), commits, options)
    if fresh:
        shutil.rmtree(place, ignore_errors=True)
    with PairProgress(len(commits.after)) as progress:
        result = bisect_commits(
            repository,
            commits,
            options,
            place=place,
            on_pair=progress.measured,
            on_work=progress.working,
        )
    if not keep:
        shutil.rmtree(place, ignore_errors=True)
    cli.show(as_json, lambda: result, lambda: bisect_report(result))
    raise typer.Exit({"found": 0, "narrowed": 1, "not reproduced": 3}[result.answer])
