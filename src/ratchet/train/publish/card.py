"""The README of an exported package: what is in it, what was proven, where, and how to call it."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.judge.kernels.library import LIBRARY
from ratchet.train.publish.admitted import AdmittedKernel, AdmittedRecipe


def card(admitted: AdmittedRecipe, name: str, how: Sequence[str]) -> bytes:
    """Return a README in Markdown; `how` are the lines that import the package as `kernels`."""
    recipe = admitted.recipe
    versions = ", ".join(f"{key} {value}" for key, value in admitted.versions.items() if value)
    summaries = [
        f"- `{one}`: {LIBRARY[one].summary} ({LIBRARY[one].source_of_idea})."
        for one in admitted.libraries
        if one in LIBRARY
    ]
    lines = [
        f"# {name}",
        "",
        f"Kernels of the training step of `{recipe.workload}`, as `torch.library` ops with a fake",
        "and a derivative. Without a kernel for your machine, an op runs plain torch.",
        "",
        *summaries,
        "",
        "```python",
        *how,
        "",
        "help(kernels)",
        "```",
        "",
        "## What was proven",
        "",
        "Each kernel was right in a sandbox on several shapes and distributions, against fp64, and",
        f"faster than plain torch. Machine: {admitted.machine}. Versions:",
        f"{versions}.",
        "",
        *_table(admitted.kernels),
        "",
        *_whole_step(admitted),
        "Speed-ups are plain torch's time over the kernel's, with the interval of the paired",
        "measurement, at the sizes of the kernel's problem. They hold for that machine. A dash:",
        "not measured there.",
        "",
    ]
    return "\n".join(lines).encode()


def figure(one: AdmittedKernel) -> str:
    """Return a kernel's measured speed-up with its interval; a dash without one."""
    ratio = one.verdict.verdict.speedup.vs_reference if one.verdict else None
    return "-" if ratio is None else f"{ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _table(kernels: Sequence[AdmittedKernel]) -> list[str]:
    rows = [
        f"| `{one.entry}` | {one.language} | {figure(own)} | `{one.hash[:12]}` |"
        for own in kernels
        for one in (own.kernel,)
    ]
    return ["| kernel | language | speed-up | hash |", "|---|---|---|---|", *rows]


def _whole_step(admitted: AdmittedRecipe) -> list[str]:
    found = admitted.recipe.speedup.get("vs_compile")
    if not found or "ratio" not in found:
        return []
    low, high = found.get("low"), found.get("high")
    interval = f" ({low:.2f} to {high:.2f})" if low and high else ""
    return [
        f"The whole step with its recipe is {found['ratio']:.2f}{interval} times as fast as the",
        f"best of `torch.compile` on {admitted.recipe.device_name}; that includes settings which",
        "are not in this package.",
        "",
    ]
