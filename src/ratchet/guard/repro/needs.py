"""A reproduction's needs beside its script, and the environment that a finding was made in."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata

from ratchet.base import VERSION, Json
from ratchet.base.devices.probe import Device, describe_device, software
from ratchet.guard.compare.request import CompareRequest
from ratchet.train.workloads.names import is_user_spec

CHANGES = "+changes"
OPTIONS = ("batch_size", "sequence", "precision", "text", "seed", "device")
"""A request's options of workloads."""
RATCHET = f"torch-ratchet {VERSION} (pip install torch-ratchet)"


def comparison_needs(asked: CompareRequest, *, plain: bool, spent_s: float) -> list[str]:
    """Return what a comparison needs; `plain` needs no Ratchet."""
    first = "Python 3.9 or later, and a shell" if plain else RATCHET
    words = (f"the interpreter {one}" for one in dict.fromkeys(asked.pythons) if one is not None)
    return [first, *_folder(asked), *_commits(asked), *words, *_files(asked), *_time(spent_s)]


def numerics_needs(files: Sequence[str]) -> list[str]:
    """Return what the script of a divergence needs: the files beside it."""
    beside = [f"the files beside it: {', '.join(sorted(files))}"] if files else []
    return ["torch, in the version below", *beside]


def verdict_needs(kernel: Mapping[str, Json], trial: Mapping[str, Json]) -> list[str]:
    """Return what judging a kernel again needs."""
    where = trial.get("target") and f"no GPU: {trial['target']} is emulated"
    compiler = ["a C++ compiler"] if kernel["language"] == "cpp" else []
    device = where or f"the device below ({trial.get('device', 'auto')})"
    return [RATCHET, *compiler, device, *_time(trial.get("time_limit_s"))]


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


def _folder(asked: CompareRequest) -> list[str]:
    here, folder = asked.commit, f"the folder {asked.folder}"
    if not here:
        return [f"{folder}, as it was: it is in no repository"]
    if not here.endswith(CHANGES):
        return [f"{folder}, at commit {here}"]
    hash = here.removesuffix(CHANGES)
    return [f"{folder}, at commit {hash} with the changes that it had: no commit holds them"]


def _commits(asked: CompareRequest) -> list[str]:
    return [f"commit {one} in its repository" for one in dict.fromkeys(revisions(asked)) if one]


def _files(asked: CompareRequest) -> list[str]:
    recipes = [mode for mode in asked.modes if mode.endswith(".json")]
    own = [one.rpartition(":")[0] for one in asked.workloads if is_user_spec(one)]
    named = dict.fromkeys([*recipes, *own, *([asked.text] if asked.text else [])])
    return [
        *(f"the file {one}, as it was" for one in named),
        *(["valgrind"] if asked.instructions else []),
    ]


def _time(seconds: float | None) -> list[str]:
    return [] if seconds is None else [f"about {seconds:.0f} s, on a machine like the one below"]


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
