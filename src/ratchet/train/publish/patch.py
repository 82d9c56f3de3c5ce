"""A diff of a training script that puts a recipe into it: an import, and one line after the
optimizer or the Trainer. `git apply` and `patch -p1` take it."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratchet.base.errors import PublishError
from ratchet.base.files import check_new_file, why_not_file, write_whole
from ratchet.base.git import diff_of
from ratchet.train.publish.export_result import ExportResult
from ratchet.train.recipe import Recipe
from ratchet.train.workloads.config import StepConfig

LIGHTNING: Final = ("lightning", "pytorch_lightning")
OPTIMIZER: Final = re.compile(
    "optim|adam|adagrad|adadelta|adafactor|sgd|rprop|rmsprop|lbfgs|lion|muon|lamb|lars|shampoo",
    re.IGNORECASE,
)
"""Names of classes and functions that make an optimizer: torch's, and usual others."""
INSTALLS: Final = ("ratchet.compile", "ratchet.trainer_callback", "ratchet.lightning_callback")
PASTE: Final = "step = ratchet.compile(step, model, optimizer, recipe=...)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Insertion:
    """A line for a script, and the line of the script after which it stands."""

    after: int
    text: str


def recipe_of(path: Path) -> Recipe:
    """Read a recipe; raises PublishError if it changes nothing, RecipeError if it is damaged."""
    recipe = Recipe.load(path)
    if recipe.config == StepConfig() and not recipe.kernels:
        raise PublishError(
            f"recipe {path} keeps the step as it is written: there is nothing to export; run "
            "`ratchet optimize` with a larger --budget"
        )
    return recipe


def export_patch(recipe: Path, script: Path | None, out: Path) -> ExportResult:
    """Write a diff of a script that applies a recipe.

    Raises RecipeError (a recipe that is missing or damaged); PublishError (no script, one that
    cannot be read, or no place for the line in it).
    """
    if script is None:
        raise PublishError("--to patch changes a script: name it with --script train.py")
    check_new_file(out)
    loaded = recipe_of(recipe)
    text = _read(script)
    new = patched(text, str(recipe), str(script), loaded.config.variables())
    name = Path(os.path.relpath(script)).as_posix()
    name = script.name if name.startswith("../") else name
    write_whole(out, diff_of({name: text.encode()}, {name: new.encode()}))
    lines = set(text.splitlines())
    return ExportResult(
        subject=str(recipe),
        to="patch",
        out=str(out),
        files=(str(out),),
        checks=(f"{script} with the patch is a Python file",),
        lines=tuple(one.strip() for one in new.splitlines() if one not in lines),
    )


def patched(text: str, recipe: str, script: str, variables: dict[str, str]) -> str:
    """Return a script's text with a recipe in it.

    Raises PublishError: it does not parse, has a recipe already, or trains in an unknown way.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise PublishError(f"{script} is not a Python file ({error}): name the script") from error
    named = (ast.unparse(one) for one in ast.walk(tree) if isinstance(one, ast.Attribute))
    if not {*INSTALLS}.isdisjoint(named):
        raise PublishError(f"{script} has a recipe in it already: change its path there")
    quoted = json.dumps(recipe, ensure_ascii=False)
    found = _of_trainer(tree, quoted) or _of_loop(tree, quoted)
    if found is None:
        raise PublishError(
            f"{script} makes no Trainer, and no optimizer from `model.parameters()` in an "
            f"assignment: paste `{PASTE}` yourself"
        )
    lines, end = text.splitlines(keepends=True), "\r\n" if "\r\n" in text else "\n"
    if found.after == len(lines) and not lines[-1].endswith("\n"):
        lines[-1] += end
    lines.insert(found.after, found.text + end)
    imports = (one for one in tree.body if isinstance(one, ast.Import))
    if not any(each.name == "ratchet" for one in imports for each in one.names):
        prefix = " ".join(f"{name}={value}" for name, value in variables.items())
        note = [f"# Start this script with {prefix}{end}"] if variables else []
        at = _after_imports(tree)
        lines[at:at] = [f"import ratchet{end}", *note]
    new = "".join(lines)
    ast.parse(new)
    return new


def _of_trainer(tree: ast.Module, quoted: str) -> Insertion | None:
    """Return the line after a Trainer of transformers or Lightning is made."""
    homes = dict(_imported(tree))
    for body in _bodies(tree):
        for node in body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            called, target = ast.unparse(node.value.func), node.targets[0]
            if not called.endswith("Trainer") or not isinstance(target, ast.Name | ast.Attribute):
                continue
            home = homes.get(called.partition(".")[0], "")
            known = {home, *homes.values()} if home in ("", called) else {home}
            trainer = ast.unparse(target)
            if known & {*LIGHTNING}:
                line = f"{trainer}.callbacks.append(ratchet.lightning_callback(recipe={quoted}))"
            elif "transformers" in known or home == "trl":
                line = f"{trainer}.add_callback(ratchet.trainer_callback(recipe={quoted}))"
            else:
                continue
            return _line_after(node, line)
    return None


def _of_loop(tree: ast.Module, quoted: str) -> Insertion | None:
    """Return the line after the optimizers of one model are made."""
    for body in _bodies(tree):
        made = [(node, *found) for node in body if (found := _optimizer(node)) is not None]
        models = {model for _, _, model in made}
        if len(models) != 1:
            continue
        model, names = models.pop(), [name for _, name, _ in made]
        given = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
        last = max([*(node for node, _, _ in made), *_prepared(body, names)], key=_line)
        step = next((one for one in body if _is_step(one, names)), None)
        if isinstance(step, ast.FunctionDef):
            arguments = f"{step.name}, {model}, {given}"
            line = f"{step.name} = ratchet.compile({arguments}, recipe={quoted})"
            return _line_after(max(last, step, key=_line), line)
        return _line_after(last, f"ratchet.compile({model}, optimizer={given}, recipe={quoted})")
    return None


def _optimizer(node: ast.stmt) -> tuple[str, str] | None:
    """Return the names of an optimizer and its model, if a statement makes one."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return None
    target, made = node.targets[0], ast.unparse(node.value.func).rpartition(".")[2]
    if len(node.targets) != 1 or not isinstance(target, ast.Name | ast.Attribute):
        return None
    if not OPTIMIZER.search(made):
        return None
    for given in (*node.value.args, *(one.value for one in node.value.keywords)):
        called = given.func if isinstance(given, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "parameters":
            return ast.unparse(target), ast.unparse(called.value)
    return None


def _prepared(body: list[ast.stmt], names: list[str]) -> Iterator[ast.stmt]:
    """Yield accelerate's `model, optimizer = accelerator.prepare(model, optimizer)`."""
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func)
            given = {ast.unparse(one) for one in node.value.args}
            if called.endswith(".prepare") and given & {*names}:
                yield node


def _is_step(node: ast.stmt, names: list[str]) -> bool:
    """Return whether a statement defines a function that runs backward and the update."""
    if not isinstance(node, ast.FunctionDef):
        return False
    called = {ast.unparse(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    return any(one.endswith(".backward") for one in called) and any(
        f"{name}.step" in called for name in names
    )


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                yield body


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield (one.asname or one.name).partition(".")[0], one.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                yield one.asname or one.name, node.module.partition(".")[0]


def _after_imports(tree: ast.Module) -> int:
    """Return the last line of the first imports, else of the docstring, else 0."""
    last = 0
    for index, node in enumerate(tree.body):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom) or (index == 0 and is_text):
            last = _line(node)
        else:
            break
    return last


def _line_after(node: ast.stmt, text: str) -> Insertion:
    return Insertion(after=_line(node), text=f"{' ' * node.col_offset}{text}")


def _line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _read(script: Path) -> str:
    if why := why_not_file(script):
        raise PublishError(f"--script {script} {why}: name the training script")
    try:
        return script.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise PublishError(f"--script {script} is not UTF-8: name the training script") from error
