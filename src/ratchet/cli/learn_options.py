"""The options of `ratchet learn`: those made of LearnConfig's fields, and other shared ones."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.base.show.words import parse_share
from ratchet.cli.app import finite
from ratchet.write.learn.config import LearnConfig, LearnSetting, settings

Out = Annotated[Path, typer.Option("--out", help="Folder of the run.")]
CorpusFolder = Annotated[
    Path | None,
    typer.Option("--corpus", help="The corpus. Default: the folder corpus beside --out."),
]
PolicyFolder = Annotated[Path, typer.Argument(metavar="POLICY", help="Folder of the policy.")]
Families = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Families of problems to train on, or all."),
]
Unseen = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Families that are never trained on.")
]
PerFamily = Annotated[
    int,
    typer.Option(
        "--per-family", min=1, help="Problems of each family, at most 6 of an unseen one."
    ),
]
Text = Annotated[
    list[Path] | None,
    typer.Option("--text", metavar="PATH", help="Pretraining text to replay; may be repeated."),
]
Dataset = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset", metavar="NAME[:COLUMN]",
        help="Hugging Face dataset whose text to replay; may be repeated.",
    ),
]  # fmt: skip
Minutes = Annotated[
    float | None, typer.Option(parser=finite(), metavar="NUMBER", help="Stop after this time.")
]
Fleet = Annotated[str, typer.Option(metavar="local|ray|ray://HOST:PORT", help="Where to judge.")]
Command = Callable[..., None]


def with_config(names: str, **defaults: object) -> Callable[[Command], Command]:
    """Give a command an option for each of these settings, in place of its parameter `config`.

    `defaults` replace the settings' own. A target's kernels are in Triton, and nothing is timed.
    """

    def decorate(command: Command) -> Command:
        own = [settings()[name] for name in names.split()]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {one.name: values.pop(one.name) for one in own}
            if "rival" in given and given["rival"] is None:
                given["rival"] = not given["target"]
            if "rival" in given:
                given["rival"] = "compile" if given["rival"] else "eager"
            if given.get("target"):
                given["language"] = "triton"
            command(**values, config=LearnConfig(**given))

        found: list[inspect.Parameter] = []
        for one in inspect.signature(command, eval_str=True).parameters.values():
            if one.name == "config":
                found += [_option(setting, defaults) for setting in own]
            else:
                found.append(one)
        run.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in found}
        return run

    return decorate


def _option(setting: LearnSetting, defaults: dict[str, object]) -> inspect.Parameter:
    """Return the parameter that typer reads a setting's option from."""
    default = defaults.get(setting.name, setting.default)
    kind: Any = type(setting.default)
    flag, more = f"--{setting.name.replace('_', '-')}", dict[str, object]()
    if setting.name == "rival":
        flag, kind, default = "--against-compile/--against-eager", bool | None, None
    elif setting.choices:
        more = {"metavar": "|".join(setting.choices)}
    elif setting.name == "replay":
        more, default = {"parser": _share}, f"{default:.0%}"
    elif kind is float:
        more = {"parser": finite(), "metavar": "NUMBER"}
    words = setting.meta.description or ""
    if setting.rule and not setting.choices:
        words = f"{words.removesuffix('.')} ({setting.rule})."
    option = typer.Option(flag, **{"help": words, **more, **(setting.meta.extra or {})})
    annotation = Annotated[kind, option]
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _share(text: str) -> float:
    return parse_share(text, "replay", below=0.9)
