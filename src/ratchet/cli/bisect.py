"""`ratchet bisect`: which commit made a command slower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import (
    COMMAND,
    AsJson,
    after_dashes,
    app,
    finite,
    seed_option,
    show,
)
from ratchet.cli.outputs import OutFolder


@app.command(cls=after_dashes("[OPTIONS] GOOD BAD -- COMMAND..."))
def bisect(
    context: typer.Context,
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A revision before the change.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A later revision, after it.")],
    metric: Annotated[
        str,
        typer.Option(
            metavar="REGEX",
            help="What COMMAND prints that counts: a regular expression around a number, or "
            "last-number. Default: COMMAND is timed whole.",
        ),
    ] = "",
    build: Annotated[
        str, typer.Option(metavar="CMD", help="Shell command that builds a checkout, once each.")
    ] = "",
    max_pairs: Annotated[int, typer.Option(min=1, help="Pairs in the search at most.")] = 400,
    at_least: Annotated[
        str, typer.Option("--at-least", metavar="SHARE", help="Smaller differences do not count.")
    ] = "0.5%",
    time_limit: Annotated[
        float,
        typer.Option(parser=finite(least=0.1), metavar="SECONDS", help="For one run of COMMAND."),
    ] = 600.0,
    repository: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The git repository. Default: here.")
    ] = Path("."),
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=OutFolder(),
            help="For checkouts and pairs. Default: your cache.",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an unfinished run has measured.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep checkouts and pairs.")] = False,
    seed: Annotated[int, seed_option("Of the order within pairs.")] = 0,
    as_json: AsJson = False,
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

    words = context.meta[COMMAND]
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
    show(as_json, lambda: result, lambda: bisect_report(result))
    raise typer.Exit({"found": 0, "narrowed": 1, "not reproduced": 3}[result.answer])
