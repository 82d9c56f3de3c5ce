"""Names of the built-in workloads, and errors in a name that need no torch to find."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict
from urllib.parse import unquote

from ratchet.base.errors import WorkloadError
from ratchet.base.files import why_not_file

if TYPE_CHECKING:
    from ratchet.train.workloads.family import Family


class LoadOptions(TypedDict, total=False):
    """The keyword arguments of `workloads.load`, as they go to another process."""

    seed: int
    batch_size: int
    sequence: int
    precision: str
    text: str  # A path
    device: str


SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "llama": ("tiny", "8m", "60m", "1b", "8b"),
    "gpt2": ("tiny", "23m", "124m", "355m", "774m", "1558m"),
    "moe": ("tiny", "42m", "1b-7b", "8x7b"),
    "bert": ("tiny", "17m", "base", "large"),
    "vit": ("tiny", "11m", "b16", "l16", "h14"),
}
"""Sizes by family; a family's name alone means its middle size."""
OF_IMAGES: Final = ("vit",)  # Families without a sequence or a text
PREFIX: Final = "hf:"  # Prefix of a Hugging Face model's name
SAVED_SUFFIX: Final = ".workload"  # Suffix of a Workload object saved for other processes
WANTED: Final = (
    "a function without arguments that returns your script's (model, optimizer, step, batch), "
    "a transformers.Trainer or a ratchet.Workload"
)
"""The kind of function that `file.py:function` must name."""
NAME_MAKERS: Final = frozenset({"globals", "vars", "setattr", "exec", "__getattr__"})
"""Functions with which a file defines names that its text does not hold."""


def known() -> list[str]:
    """List the built-in workloads; `hf:NAME` and `file.py:function` are accepted as well."""
    return sorted([*SIZES, *(f"{family}-{size}" for family in SIZES for size in SIZES[family])])


def family_of(name: str) -> Family:
    """Import a family of SIZES, and torch with it."""
    if name == "llama":
        from ratchet.train.workloads.llama import FAMILY
    elif name == "gpt2":
        from ratchet.train.workloads.gpt2 import FAMILY
    elif name == "moe":
        from ratchet.train.workloads.moe import FAMILY
    elif name == "bert":
        from ratchet.train.workloads.bert import FAMILY
    else:
        from ratchet.train.workloads.vit import FAMILY
    assert name == FAMILY.name
    return FAMILY


def is_user_spec(spec: str) -> bool:
    """Return True if `spec` looks like `file.py:function`."""
    return ".py:" in spec or spec.endswith(".py")


MOST_SOURCE_BYTES: Final = 64 << 20


def user_file(spec: str) -> Path:
    """Return the file that `file.py:function` names."""
    return Path(spec.rpartition(":")[0] if ".py:" in spec else spec).expanduser()


def user_function(spec: str) -> str:
    """Return the function in `file.py:function`; WorkloadError if it or the file is missing."""
    path, name = user_file(spec), spec.rpartition(":")[2] if ".py:" in spec else ""
    if why := why_not_file(path):
        raise WorkloadError.of(spec, f"{str(path)!r} {why}; check the path")
    if (size := path.stat().st_size) > MOST_SOURCE_BYTES:
        raise WorkloadError.of(spec, f"{str(path)!r} has {size} bytes; give a Python file")
    if not name:
        raise WorkloadError(f"workload {spec!r} names no function; write {path}:FUNCTION, {WANTED}")
    return name


def is_saved_spec(spec: str) -> bool:
    return spec.endswith(SAVED_SUFFIX)


def title_of(spec: str) -> str:
    """Return the workload's name: a saved workload's own name, otherwise `spec`."""
    return unquote(Path(spec).name.removesuffix(SAVED_SUFFIX)) if is_saved_spec(spec) else spec


def check_name(spec: str) -> None:
    """Raise WorkloadError for a fault in a workload's name or in the text of its file.

    A name on the hub is checked when it is read from there.
    """
    if is_user_spec(spec):
        _check_text(user_file(spec), user_function(spec), spec)
    elif spec.startswith(PREFIX):
        from ratchet.train.workloads.hf_config import check_known

        check_known(spec.removeprefix(PREFIX))
    elif not (is_saved_spec(spec) or spec in known()):
        raise WorkloadError(_unknown(spec))


def fixes_batch_size(spec: str) -> bool:
    """Return True if a workload sets its batch size itself: the user's own."""
    return is_user_spec(spec) or is_saved_spec(spec)


def check_options(
    spec: str, *, batch_size: int | None, sequence: int | None, text: Path | None
) -> None:
    """Raise WorkloadError for options that this workload does not support."""
    if fixes_batch_size(spec):
        given = {"batch size": batch_size, "sequence": sequence, "text": text}
        for name, value in given.items():
            if value is not None:
                raise WorkloadError(
                    f"{name} {value} cannot be set for {title_of(spec)!r}; set it in the workload "
                    "itself"
                )
    family = spec.partition("-")[0]
    if family in OF_IMAGES and (sequence or text):
        raise WorkloadError(f"{family} is trained on images; leave out sequence and text")
    if text is not None and (why := why_not_file(text)):
        raise WorkloadError(f"text {str(text)!r} {why}; give the path of a text file")


def _check_text(path: Path, function: str, spec: str) -> None:
    """Raise WorkloadError if the file is not Python or never mentions the name `function`."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        raise WorkloadError(
            f"workload {spec!r} raised {type(error).__name__}: {error} "
            f"({path}:{error.lineno}); correct it there"
        ) from error
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise WorkloadError.of(
            spec, f"{path} cannot be read as Python ({error}); correct it there"
        ) from error
    if {function, "*"}.isdisjoint(_bound(tree)):
        own = sorted(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
        raise WorkloadError.of(
            spec, f"{path} has no function {function!r}; it has {', '.join(own) or 'none'}"
        )
    if taken := _arguments(tree, function):
        raise WorkloadError.of(
            spec,
            f"{function} takes {', '.join(taken)}, but Ratchet gives it nothing; name {WANTED}",
        )


def _arguments(tree: ast.Module, function: str) -> list[str]:
    """Return the arguments that a function needs; a decorator may give them, as hydra's does."""
    needed: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function and not node.decorator_list:
            given = node.args
            placed = [one.arg for one in (*given.posonlyargs, *given.args)]
            needed = placed[: len(placed) - len(given.defaults)]
            named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
            needed += [one.arg for one, default in named if default is None]
    return needed


def _bound(tree: ast.Module) -> set[str]:
    """Return every name that a file may define, and every string in it that may become one."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    # A file that makes names as it runs may define any.
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return found | {"*"} if used & NAME_MAKERS else found


def _unknown(spec: str) -> str:
    if ".ipynb" in spec:
        return (
            f"workload {spec!r} is a notebook: write its function into a Python file "
            f"(jupyter nbconvert --to script) and give FILE.py:FUNCTION, {WANTED}"
        )
    near = difflib.get_close_matches(spec, known(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"workload {spec!r} is unknown; {hint}use one of {', '.join(known())}, "
        "hf:NAME_OR_PATH or file.py:function"
    )
