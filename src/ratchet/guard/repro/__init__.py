"""A finding of the ledger as a script, with what it needs, its environment and an issue."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from ratchet.base import VERSION, Json, files
from ratchet.base.devices.probe import Device, describe_device, probe, software
from ratchet.base.errors import GuardError
from ratchet.base.ledger import Ledger, RecordedTurn
from ratchet.base.serialise import json_text
from ratchet.guard.compare.request import CompareRequest
from ratchet.guard.repro.scripts import CHECK, COMMAND_SCRIPT, RATCHET_SCRIPT, VERDICT_SCRIPT
from ratchet.train.workloads.names import is_user_spec

CHANGES = "+changes"
OPTIONS = ("batch_size", "sequence", "precision", "text", "seed", "device")
"""A request's options of workloads."""
RATCHET = f"torch-ratchet {VERSION} (pip install torch-ratchet)"


def comparison_needs(asked: CompareRequest, *, plain: bool, spent_s: float) -> list[str]:
    """Return what a comparison needs; `plain` needs no Ratchet."""
    here, folder = asked.commit, f"the folder {asked.folder}"
    if not here:
        folder += ", as it was: it is in no repository"
    elif here.endswith(CHANGES):
        folder += f", at commit {here.removesuffix(CHANGES)} with the changes that it had: no "
        folder += "commit holds them"
    else:
        folder += f", at commit {here}"
    recipes = [mode for mode in asked.modes if mode.endswith(".json")]
    own = [one.rpartition(":")[0] for one in asked.workloads if is_user_spec(one)]
    named = dict.fromkeys(filter(None, (*recipes, *own, asked.text)))
    return [
        "Python 3.9 or later, and a shell" if plain else RATCHET,
        folder,
        *(f"commit {one} in its repository" for one in dict.fromkeys(revisions(asked)) if one),
        *(f"the interpreter {one}" for one in dict.fromkeys(asked.pythons) if one is not None),
        *(f"the file {one}, as it was" for one in named),
        *(["valgrind"] if asked.instructions else []),
        _time(spent_s),
    ]


def pinned_words(asked: CompareRequest) -> list[str]:
    """Return the words of a comparison, with commits in place of names that move."""
    words = ["compare", *asked.workloads]
    pairs = (("", asked.modes), ("rev-", revisions(asked)), ("python-", asked.pythons))
    for start, both in pairs:
        for side, value in zip("ab", both, strict=True):
            words += [f"--{start}{side}", value] if value else []
    words += ["--setup", asked.setup] if asked.setup else []
    words += ["--printed"] if asked.printed else []
    words += ["--instructions"] if asked.instructions else []
    words += [word for name in asked.higher for word in ("--higher", name)]
    words += ["--fail-if-slower", asked.fail_if_slower]
    words += ["--budget", asked.budget] if asked.budget else []
    for name in OPTIONS:
        if (option := getattr(asked, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(option)]
    return words + (["--", *asked.command] if asked.command else [])


def revisions(asked: CompareRequest) -> list[str | None]:
    """Return the commit of each side; files without changes of their own are a commit too."""
    found = [commit or name for commit, name in zip(asked.commits, asked.revisions, strict=True)]
    here = asked.commit
    if any(found) and here and not here.endswith(CHANGES):
        found = [one or here for one in found]
    return found


def _time(seconds: float) -> str:
    return f"about {seconds:.0f} s, on a machine like the one below"


PACKAGES = ("torch", "triton", "pytorch-triton-rocm", "transformers", "numpy", "torch-ratchet")
VARIABLES = ("OMP_", "MKL_", "TORCH", "PYTORCH_", "HIP_", "HSA_", "ROCR_", "CUDA_", "NCCL_", "KMP_")
"""Beginnings of the variables that may change a result; others may hold secrets."""


def environment_report(device: Device) -> dict[str, object]:
    """Describe the machine, the versions, and the variables that may change a result."""
    return {
        "ratchet": VERSION,
        "platform": platform.platform(),
        "device": describe_device(device),
        "software": asdict(software()),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "variables": {
            name: os.environ[name] for name in sorted(os.environ) if name.startswith(VARIABLES)
        },
    }


def environment_lines(report: Mapping[str, Json]) -> list[str]:
    device = report["device"]
    lines = [
        f"- device: {device['model']} ({device['threads']} threads, {device['target']})",
        f"- platform: {report['platform']}",
        f"- Python {report['software']['python']}, compiler: {report['software']['compiler']}",
    ]
    lines += [f"- {name} {version}" for name, version in report["packages"].items()]
    return lines + [f"- `{name}={value}`" for name, value in report["variables"].items()]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


LEAST_ID = 6
SCRIPT, ISSUE, ENVIRONMENT = "reproduce.py", "issue.md", "environment.json"
LEAST_PAIRS = 30  # Pairs of a script whose comparison measured none
TERMS = ("time_limit_s", "against_compile", "device", "target")
"""Parts of a verdict's trial under which it is given again."""
NUMERICS_FILES = ("*.pt", "*.py", "*.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """The files that were written."""

    kind: str  # `comparison`, `numerics`, `verdict` or `sweep`
    title: str
    folder: str
    files: tuple[str, ...]
    needs: tuple[str, ...]  # The script's needs beside itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """A finding, as text for an issue and files to write."""

    kind: str
    title: str
    facts: Sequence[str]  # Lines of Markdown: what was expected and what happened
    texts: Mapping[str, str]
    needs: Sequence[str]  # Lines: what the script needs beside itself
    copied: Sequence[Path] = ()


def repro(named: str, out: Path, *, ledger: str | os.PathLike[str] | None = None) -> Reproduction:
    """Write a script, an environment report and an issue for a finding in the ledger.

    `named` is the start of a comparison's identity or of a kernel's hash. GuardError if the ledger
    holds none, or several.
    """
    if re.fullmatch(r"[0-9a-f]+", named) is None or len(named) < LEAST_ID:
        raise GuardError(
            f"{named!r} is no identity: give at least {LEAST_ID} hex digits of one that "
            "`ratchet compare` printed, or of a kernel's hash"
        )
    files.check_new_folder(out)
    with Ledger.open_to_read(ledger) as book:
        found = _find(book, named)
    return write_finding(found, out)


def write_finding(found: Reported, out: Path) -> Reproduction:
    """Write a finding's script, with the environment of this process and an issue."""
    environment = environment_report(probe("cpu"))
    texts = {
        **found.texts,
        ENVIRONMENT: f"{json_text(environment)}\n",
        ISSUE: _issue(found, environment_lines(environment)),
    }
    files.make_folder(out)
    for path in found.copied:
        if path.resolve() != (out / path.name).resolve():
            files.copy_whole(path, out / path.name)
    encoded = {name: text.encode(errors="backslashreplace") for name, text in texts.items()}
    files.write_all({out / name: content for name, content in encoded.items()})
    return Reproduction(
        kind=found.kind,
        title=found.title,
        folder=str(out),
        files=tuple(sorted({*texts, *(path.name for path in found.copied)})),
        needs=tuple(found.needs),
    )


def _find(book: Ledger, named: str) -> Reported:
    turns = [one for one in book.turns_named(named) if one.command in ("compare", "numerics")]
    verdicts = book.verdicts_named(named)
    hashes = {one["kernel_hash"] for one in verdicts}
    if len(turns) + len(hashes) > 1:
        raise GuardError(f"{named!r} names {len(turns) + len(hashes)} findings: give more digits")
    if turns:
        result = book.result_of(turns[0].turn)
        if result is None:
            raise GuardError(f"comparison {named} did not finish: there is nothing to reproduce")
        return _numerics(result) if turns[0].command == "numerics" else _timed(turns[0], result)
    if not verdicts:
        raise GuardError(
            f"the ledger {book.place} holds no comparison and no kernel {named!r}: use the "
            "ledger that it was made with (--ledger)"
        )
    return _judged(book, verdicts[-1])


def _timed(turn: RecordedTurn, result: Mapping[str, Json]) -> Reported:
    asked = CompareRequest.of(turn.payload)
    facts = [f"- A (baseline): `{result['baseline']}`", f"- B (new): `{result['new']}`"]
    for one in result["metrics"]:
        facts.append(
            f"- {one['metric']['name']}: {one['answer']}, A / B {one['ratio']:.4f} "
            f"({one['low']:.4f} to {one['high']:.4f} at {one['confidence']:.1%}; A/A floor "
            f"{one['floor']['low']:.4f} to {one['floor']['high']:.4f}), {one['pairs']} pairs in "
            f"{one['launches']} launches"
        )
    for row in (result.get("traces") or {}).get("slower", [])[:5]:
        facts.append(
            f"- `{row['op']}` in `{row['module']}`: {row['baseline_s'] * 1e3:.3f} ms, then "
            f"{row['new_s'] * 1e3:.3f} ms a step"
        )
    plain = asked.command and not any((*asked.revisions, *asked.pythons))
    alone = bool(plain and not asked.printed)
    needs = comparison_needs(asked, plain=alone, spent_s=result["spent_s"])
    where = {
        "folder": str(asked.folder),
        "commit": asked.commit.removesuffix(CHANGES),
        "needs": quoted(needs),
        "check": CHECK,
    }
    if alone:
        pairs = max((one["pairs"] for one in result["metrics"]), default=LEAST_PAIRS)
        text = COMMAND_SCRIPT.format(commands=list(asked.command or ()), pairs=pairs, **where)
    else:
        commits = [one for one in dict.fromkeys(revisions(asked)) if one]
        text = RATCHET_SCRIPT.format(words=pinned_words(asked), commits=commits, **where)
    percent = (1 / result["metrics"][0]["ratio"] - 1) if result["metrics"] else 0.0
    title = f"{result['answer']}: {result['new']} against {result['baseline']} ({percent:+.1%})"
    return Reported(kind="comparison", title=title, facts=facts, texts={SCRIPT: text}, needs=needs)


def quoted(lines: Sequence[str]) -> str:
    """Return a list for a script's docstring, whatever a path holds."""
    return _listed(lines).replace("\\", "\\\\").replace('"', '\\"')


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {one}" for one in lines)


def _numerics(result: Mapping[str, Json]) -> Reported:
    found, broken = result["divergence"], result["not_finite"]
    if found is None and broken is None:
        raise GuardError("this comparison found no divergence: there is nothing to reproduce")
    if broken is not None:
        title = f"{broken['op'] or 'compiled code'} makes {broken['kind']} in {broken['module']}"
        facts = [f"- inputs: {'; '.join(broken['inputs'])}", f"- at: {broken['place'] or '-'}"]
    else:
        kind = f" ({found['kind']})" if found["kind"] else ""
        part = "backward" if found["part"] == "loss" else found["part"]
        title = f"{found['module']}{kind} diverges in its {part}"
        facts = [
            f"- error against {result['oracle']}: {found['error']:.3e}",
            f"- explained by the dtype: {found['allowed_error']:.3e} (baseline "
            f"{found['baseline_error']:.3e})",
            f"- scale: {found['scale']:+.3e}",
        ]
        if between := found.get("between"):
            facts.append(f"- between: {' and '.join(between)}")
        if found["op"] is not None:
            op = found["op"]
            facts.append(f"- first op: `{op['op']}`, number {op['index']} of the module")
    facts = [f"- A: `{result['titles'][0]}`", f"- B: `{result['titles'][1]}`", *facts]
    folder = Path(result["folder"]) if result["folder"] else None
    copied = [p for pattern in NUMERICS_FILES for p in folder.glob(pattern)] if folder else []
    names = sorted(path.name for path in copied)
    texts = {} if SCRIPT in names else {"numerics.json": json_text(result)}
    beside = ", ".join(one for one in names if one != SCRIPT)
    needs = ["torch, in the version below"]
    needs += [f"the files beside it: {beside}"] if beside else []
    return Reported(
        kind="numerics", title=title, facts=facts, texts=texts, needs=needs, copied=copied
    )


def _judged(book: Ledger, verdict: Mapping[str, Json]) -> Reported:
    kernel, problem = book.kernel(verdict["kernel_hash"]), book.problem(verdict["problem_hash"])
    if kernel is None or problem is None:
        raise GuardError(f"the ledger lacks the source of kernel {verdict['kernel_hash'][:12]}")
    document = {"kernel": kernel, "problem": problem}
    trial = verdict.get("trial") or {}
    target, limit_s = trial.get("target"), trial.get("time_limit_s")
    needs = [
        RATCHET,
        *(["a C++ compiler"] if kernel["language"] == "cpp" else []),
        f"no GPU: {target} is emulated"
        if target
        else f"the device below ({trial.get('device', 'auto')})",
        *([] if limit_s is None else [_time(limit_s)]),
    ]
    text = VERDICT_SCRIPT.format(
        needs=quoted(needs),
        terms={name: trial[name] for name in TERMS if trial.get(name) is not None},
        title=f"{kernel['name']} for {problem['name']}",
        status=verdict["status"],
        document=json.dumps(document),
    )
    facts = [
        f"- kernel: `{kernel['name']}` ({kernel['language']}, {verdict['kernel_hash'][:12]})",
        f"- problem: `{problem['name']}`",
        f"- verdict: `{verdict['status']}`",
        *([f"- why: {verdict['reason']}"] if verdict.get("reason") else []),
    ]
    title = f"{kernel['name']} is {verdict['status']} for {problem['name']}"
    return Reported(kind="verdict", title=title, facts=facts, texts={SCRIPT: text}, needs=needs)


def _issue(found: Reported, environment: list[str]) -> str:
    script = [f"`python {SCRIPT}` shows it."] if SCRIPT in found.texts or found.copied else []
    source = found.texts.get(SCRIPT) if found.kind == "comparison" else None
    code = ["", "```python", source.rstrip(), "```"] if source else []
    parts = [
        f"# {found.title}", "", "## What was measured", *found.facts, "", "## To reproduce",
        *(script or ["The report lies beside this file."]), *code, "", "## What it needs",
        _listed(found.needs), "", "## Environment",
        *environment, "",
    ]  # fmt: skip
    return "\n".join(parts)
