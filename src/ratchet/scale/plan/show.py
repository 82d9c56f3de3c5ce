"""Plans, what a recipe saves, layouts and models: terminal, page, JSON, CSV and scripts."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from markupsafe import Markup

from ratchet.base import files
from ratchet.base.errors import PlanError
from ratchet.base.serialise import json_text
from ratchet.base.show import model as m
from ratchet.base.show.figures import Plot, Series, TrackRow, around, dots, from_zero, stacked_bar
from ratchet.base.show.page import render_page
from ratchet.base.show.words import show_bandwidth, show_bytes, show_flops, show_share, show_time
from ratchet.scale.plan import POWER_SHARE, Answered, SavedBy, Trainable, Trainables
from ratchet.scale.plan.cluster import PlannedCluster, Rate
from ratchet.scale.plan.commands import jobset, slurm, torchrun, torchrun_lines
from ratchet.scale.plan.layout import CHOICES, Layouts
from ratchet.scale.plan.search import MEMORY_PARTS, TIME_PARTS, LayoutPlan, room_bytes
from ratchet.scale.plan.shape import Shape

if TYPE_CHECKING:  # its module imports torch, for which a plan would wait
    from ratchet.scale.plan.calibrate import CheckedPlan

MOST_ROWS: Final = 12  # Plans on the terminal; the page and --json have all
MOST_BARS: Final = 6
TIME_WORDS: Final = {
    "compute": "compute", "recompute": "recomputation", "tensor": "tensor parallel",
    "context": "context parallel", "experts": "experts' exchange", "bubble": "pipeline bubble",
    "pipeline": "pipeline sends", "data": "data parallel", "optimizer": "optimizer",
}  # fmt: skip
MEMORY_WORDS: Final = {
    "weights": "weights", "gradients": "gradients", "optimizer": "optimizer state",
    "activations": "activations", "gathered": "gathered weights", "logits": "logits",
}  # fmt: skip
COLUMNS: Final = (
    m.name("layout", lambda one: one.layout.words()),
    m.number("batch", lambda one: one.layout.micro_batch, note="sequences of a micro-batch"),
    m.Column("sharding", lambda one: one.layout.sharding, on="page"),
    m.Column("checkpointing", lambda one: one.layout.checkpointing, on="page"),
    m.Column("recomputes", lambda one: one.layout.checkpointing, on="terminal"),
    m.Column("precision", lambda one: one.layout.precision, on="page"),
    m.number("step", "step_s", show_time),
    m.number("tokens/s", "tokens_per_s", lambda value: f"{value:,.0f}", on="page"),
    m.number("MFU", "mfu", show_share),
    m.number("memory", "memory_bytes", show_bytes),
    m.Column("binds", lambda one: TIME_WORDS[one.binds]),
)


def plan_report(answer: Answered, written: Sequence[str] = ()) -> m.ResultReport:
    """Return a plan's report for the terminal and the page."""
    found, asked = answer.planned, answer.planned.asked
    rows = found.front
    rest = len(rows) - MOST_ROWS
    title = f"{asked.shape.name} on {asked.cluster.name}"
    return m.ResultReport(
        title=title,
        heading=f"plan of {title}",
        headline=_headline(answer),
        sections=m.blocks(
            m.section(
                "Plans",
                m.note("No other layout is both faster and smaller than one of these."),
                m.ResultTable(COLUMNS, rows[:MOST_ROWS], on="terminal"),
                m.Words(f"{rest} more are in --json and on the page.", on="terminal")
                if rest > 0
                else None,
                m.Figure("plot", _pareto(rows), "Step time and memory of the plans", "dots"),
                m.ResultTable(COLUMNS, rows, on="page"),
            ),
            m.section("Where the time goes", *_bars(rows, TIME_WORDS, time=True), on="page"),
            m.section("Where the memory goes", *_bars(rows, MEMORY_WORDS, time=False), on="page"),
            _what_if(answer),
            m.section("The run", m.Facts(_cost_facts(answer))) if answer.cost else None,
            m.section("Run it", m.Lines(torchrun_lines(asked, found.best))),
            m.section("What this stands on", m.Facts(_rates(asked.cluster))),
            m.written(written) if written else None,
        ),
        extras=_script(),
    )


def _headline(answer: Answered) -> str:
    found, best = answer.planned, answer.best
    asked = found.asked
    tried = f"{found.fitting:,} of {found.counted:,} layouts fit"
    if not found.fitting:
        tried = f"it does not fit into the {show_bytes(room_bytes(asked.cluster))} of a device"
    elif found.counted == 1:
        tried = "one layout was asked for"
    return (
        f"{asked.shape.name} ({_parameters(asked.shape)}) on "
        f"{asked.cluster.world} {asked.cluster.device}: {show_time(best.step_s)} a step of "
        f"{asked.batch * asked.shape.sequence:,} tokens, {show_bytes(best.memory_bytes)} a device, "
        f"MFU {best.mfu:.0%} with {best.layout.words()}; {tried}. Estimated, not measured."
    )


def _parameters(shape: Shape) -> str:
    count = shape.parameters
    return f"{count / 1e9:.1f} B parameters" if count >= 1e9 else f"{count / 1e6:.1f} M parameters"


def _pareto(rows: Sequence[LayoutPlan]) -> Plot:
    """Draw each plan's memory over its step time."""
    times_s, sizes = [one.step_s for one in rows], [one.memory_bytes / 2**30 for one in rows]
    across, up = around(times_s, log=True), around(sizes, log=True)
    points = [
        (across.percent(time_s), 100 - up.percent(size))
        for time_s, size in zip(times_s, sizes, strict=True)
    ]
    return Plot(
        series=(Series(key="ratchet", title="a plan", path=dots(points)),),
        x_ticks=across.ticks(show_time),
        y_ticks=up.ticks(lambda value: f"{value:.3g}"),
        x_title="step time",
        y_title="memory of the fullest rank, GiB",
    )


def _bars(rows: Sequence[LayoutPlan], words: dict[str, str], *, time: bool) -> list[m.ReportBlock]:
    shown = rows[:MOST_BARS]
    totals = [one.step_s if time else one.memory_bytes for one in shown]
    scale = from_zero(totals)
    show = show_time if time else show_bytes
    bars: list[TrackRow] = []
    used: set[str] = set()
    for one, total in zip(shown, totals, strict=True):
        parts = one.time_s if time else one.memory_by_part
        drawn = []
        for place, (name, title) in enumerate(words.items()):
            if parts[name] > 0.002 * total:
                used.add(name)
                share = show_share(parts[name] / total)
                drawn.append((f"hue{place}", title, parts[name], show(parts[name]), share))
        bars.append(stacked_bar(one.layout.words(), show(total), drawn, scale))
    legend = [
        (f"hue{place}", title, "")
        for place, (name, title) in enumerate(words.items())
        if name in used
    ]
    label = "Time of the fastest plans by part" if time else "Memory of the fastest plans by part"
    return [m.Figure("tracks", bars, label, "stack"), m.Figure("legend", legend)]


def _what_if(answer: Answered) -> m.ReportSection:
    """Return sliders that compute the plans again in the page."""
    cluster = answer.planned.asked.cluster
    data = {
        "world": cluster.world,
        "tokens": answer.planned.asked.batch * answer.planned.asked.shape.sequence,
        "plans": [
            {"layout": one.layout.words(), "parts": one.time_s} for one in answer.planned.front
        ],
    }
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    tokens = min(max(answer.tokens or 1e12, 10e9), 20000e9)  # within the slider's range
    sliders = Markup("").join(
        Markup(
            '<label class="slider">{title} <input type="range" id="x-{id}" min="{low}" '
            'max="{high}" step="{step}" value="{value}"> <output for="x-{id}"></output></label>'
        ).format(title=title, id=name, low=low, high=high, step=step, value=value)
        for title, name, low, high, step, value in (
            ("speed of products and memory, x", "compute", 0.5, 2, 0.05, 1),
            ("links inside a node, x", "fabric", 0.25, 4, 0.05, 1),
            ("network between nodes, x", "network", 0.25, 4, 0.05, 1),
            ("price of a device-hour", "price", 0, 10, 0.1, answer.price or 2),
            ("tokens of the run, 1e9", "tokens", 10, 20000, 10, round(tokens / 1e9)),
        )
    )
    table = Markup(
        '<table><thead><tr><th scope="col">layout</th><th scope="col" class="n">step</th>'
        '<th scope="col" class="n">tokens/s</th><th scope="col" class="n">days</th>'
        '<th scope="col" class="n">money</th></tr></thead><tbody id="plan-rows"></tbody></table>'
    )
    held = Markup('<script type="application/json" id="plan-data">{}</script>').format(Markup(text))
    box = Markup('<div class="scroll" tabindex="0" role="region" aria-label="What if">{}</div>')
    return m.section(
        "What if",
        m.note(
            "The sliders scale the parts of each plan: products, recomputation and the optimizer; "
            "exchanges inside a node (tensor, context and expert parallel); sends and reductions "
            "between nodes. The bubble follows the first two."
        ),
        m.Figure("raw", sliders + box.format(table) + held),
        on="page",
    )


def _script() -> dict[str, object]:
    text = resources.files("ratchet.scale.plan").joinpath("plan.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {
        "policy": f"script-src 'sha256-{digest}'",
        "tail": Markup("<script>{}</script>").format(Markup(text)),
    }


def _cost_facts(answer: Answered) -> list[tuple[str, m.Inline]]:
    cost = answer.cost
    assert cost is not None
    facts: list[tuple[str, m.Inline]] = [
        ("steps", f"{cost.steps:,}"),
        ("time", f"{cost.hours / 24:,.1f} days"),
        ("device-hours", f"{cost.device_hours:,.0f}"),
        ("energy", f"{cost.energy_kwh:,.0f} kWh, at {POWER_SHARE:.0%} of the boards' power"),
    ]
    if cost.money is not None:
        facts.insert(3, ("money", f"{cost.money:,.0f} at {answer.price:g} a device-hour"))
    return facts


def _rates(cluster: PlannedCluster) -> list[tuple[str, m.Inline]]:
    def told(rate: Rate, shown: str) -> str:
        return f"{shown} ({rate.source})"

    products = [
        (f"{name} products", told(rate, show_flops(rate.per_s)))
        for name, rate in cluster.products.items()
    ]
    links = "full mesh" if cluster.mesh else "switch"
    return [
        *products,
        ("memory", told(cluster.memory, show_bandwidth(cluster.memory.per_s))),
        (
            "links in a node",
            told(cluster.fabric, f"{show_bandwidth(cluster.fabric.per_s)}, {links}"),
        ),
        ("network", told(cluster.network, f"{show_bandwidth(cluster.network.per_s)} a device")),
        ("room of a device", show_bytes(room_bytes(cluster))),
    ]


def plan_document(answer: Answered) -> dict[str, object]:
    found = answer.planned
    asked = found.asked
    return {
        "model": {
            **asdict(asked.shape),
            "parameters": asked.shape.parameters,
            "active_parameters": asked.shape.active_parameters,
            "flops_per_token": asked.shape.flops_per_token,
        },
        "cluster": asdict(asked.cluster) | {"world": asked.cluster.world},
        "stack": asked.stack.name,
        "batch": asked.batch,
        "layouts": found.counted,
        "fitting": found.fitting,
        "room_bytes": room_bytes(asked.cluster),
        "fits": found.fitting > 0,
        "front": [
            {"words": one.layout.words(), "binds": one.binds, **asdict(one)} for one in found.front
        ],
        "cost": asdict(answer.cost) if answer.cost else None,
        "command": torchrun(asked, found.best),
        "measured": False,
    }


FILES: Final = ("plan.html", "plan.json", "run.sh", "job.sbatch", "jobset.yaml")


def files_of(out: Path | None) -> list[str]:
    """Return the paths that `write_plan` writes into a folder; none without one."""
    return [] if out is None else [str(out / one) for one in FILES]


def write_plan(answer: Answered, out: Path) -> None:
    """Write the page, the document and the scripts of the fastest plan into a folder."""
    asked, best = answer.planned.asked, answer.best
    texts = {
        "plan.html": render_page(plan_report(answer)),
        "plan.json": json_text(plan_document(answer)) + "\n",
        "run.sh": f"#!/usr/bin/env bash\nset -euo pipefail\n{torchrun(asked, best)}\n",
        "job.sbatch": slurm(asked, best),
        "jobset.yaml": jobset(asked, best),
    }
    files.make_folder(out)
    for name, text in texts.items():
        files.write_whole(out / name, text.encode())


def saved_report(found: SavedBy) -> m.ResultReport:
    """Describe what a recipe saves a fleet in a year."""
    saved = found.saved
    low, ratio, high = saved.ratio
    return m.ResultReport(
        headline=f"{found.workload}'s recipe, {ratio:.2f}x ({low:.2f} to {high:.2f}) on "
        f"{found.proven_on}: what it saves {found.cluster.world:,} {found.cluster.device} that "
        "train this all year.",
        sections=m.blocks(
            m.Facts(
                [
                    ("device-hours", _three(saved.device_hours)),
                    ("money", _three(saved.money)),
                    ("energy, kWh", _three(saved.energy_kwh)),
                    ("the search has paid after", _paid(saved.paid_after_s)),
                ]
            ),
            "The ratio was proven on one workload and one device: it holds for the share of a "
            "fleet that runs them.",
        ),
    )


def _three(values: tuple[float, float, float]) -> str:
    low, middle, high = values
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def _paid(values: tuple[float, float, float]) -> str:
    slowest, middle, fastest = (show_time(one) if math.isfinite(one) else "never" for one in values)
    return f"{middle} of the fleet's training ({fastest} to {slowest})"


def saved_document(found: SavedBy) -> dict[str, object]:
    """Return the JSON document of `ratchet plan --savings`; inf is null."""
    saved = asdict(found.saved)
    saved["paid_after_s"] = [one if math.isfinite(one) else None for one in saved["paid_after_s"]]
    return {
        "recipe": found.recipe,
        "workload": found.workload,
        "proven_on": found.proven_on,
        "device": found.cluster.device,
        "devices": found.cluster.world,
        "price": found.price,
        "a_year": saved,
    }


CHECKED_COLUMNS: Final = (
    m.name("layout"),
    m.number("step", "step_s", show_time),
    m.number("planned", "predicted_s", show_time),
    m.number("error", "step_error", lambda value: f"{value:+.0%}"),
    m.number("exposed", "exposed_s", show_time, note="communication that nothing hides"),
    m.number("planned", "predicted_exposed_s", show_time),
    m.number("memory", "memory_bytes", show_bytes),
    m.number("error", "memory_error", lambda value: f"{value:+.0%}"),
    m.Column("sets", "sets"),
)


def checked_plan_report(found: CheckedPlan) -> m.ResultReport:
    """Describe each measured layout beside its plan, and the median errors."""
    count = sum(not one.sets for one in found.rows)
    planned = f"{count} layout{'' if count == 1 else 's'} planned"
    left = [f"{layout}: {why}." for layout, why in found.left_out.items()]
    return m.ResultReport(
        headline=(
            f"{found.model} on {found.device}: {planned}, with a median error of "
            f"{show_share(found.step_error)} in time and {show_share(found.memory_error)} in "
            "memory."
        ),
        sections=m.blocks(
            m.section(
                "Layouts",
                m.ResultTable(CHECKED_COLUMNS, found.rows),
                "The rows that set the rates of products and links are not counted.",
            ),
            m.section("Left out", *left) if left else None,
        ),
    )


def checked_plan_document(found: CheckedPlan) -> dict[str, object]:
    """Return the JSON document of a plan that was checked here."""
    rows = [
        {**asdict(one), "step_error": one.step_error, "memory_error": one.memory_error}
        for one in found.rows
    ]
    errors = {"step_error": found.step_error, "memory_error": found.memory_error}
    return {**asdict(found), "rows": rows, **errors}


TRAINABLE_COLUMNS: Final = (
    m.name("model", lambda one: f"{one.shape.layers} x {one.shape.hidden}"),
    m.number("parameters", lambda one: f"{one.shape.parameters / 1e9:,.2f} B"),
    m.number("tokens", lambda one: f"{one.tokens / 1e9:,.0f} B"),
    m.number("days", lambda one: f"{one.days:,.1f}"),
    m.number("step", lambda one: show_time(one.plan.step_s)),
    m.number("MFU", lambda one: show_share(one.plan.mfu)),
    m.number("memory", lambda one: show_bytes(one.plan.memory_bytes)),
    m.Column("layout", lambda one: one.plan.layout.words()),
)


def trainables_report(found: Trainables) -> m.ResultReport:
    """Describe the largest model, its run and the models that were planned to find it."""
    best = found.largest
    facts: list[tuple[str, m.Inline]] = [
        ("model", best.shape.name),
        ("time", f"{best.days:,.1f} of {found.days:g} days"),
        ("device-hours", f"{best.cost.device_hours:,.0f}"),
        ("energy", f"{best.cost.energy_kwh:,.0f} kWh"),
    ]
    if best.cost.money is not None:
        facts.append(("money", f"{best.cost.money:,.0f} at {found.price:g} a device-hour"))
    return m.ResultReport(
        headline=f"In {found.days:g} days, {found.cluster.world} {found.cluster.device} train a "
        f"model of {_parameters(best.shape)} on {best.tokens / 1e9:,.0f} B "
        f"tokens, {found.tokens_per_parameter:g} a parameter. Estimated, not measured.",
        sections=m.blocks(
            m.section(
                "Models",
                m.note("Those that were planned to find it: layers x hidden size."),
                m.ResultTable(TRAINABLE_COLUMNS, found.tried),
            ),
            m.section("The run", m.Facts(facts)),
        ),
    )


def trainables_document(found: Trainables) -> dict[str, object]:
    """Return the JSON document of `ratchet plan --days`."""
    return {
        "cluster": asdict(found.cluster) | {"world": found.cluster.world},
        "stack": found.stack.name,
        "days": found.days,
        "tokens_per_parameter": found.tokens_per_parameter,
        "largest": _trainable(found.largest),
        "tried": [_trainable(one) for one in found.tried],
        "measured": False,
    }


def _trainable(one: Trainable) -> dict[str, object]:
    return {
        "model": asdict(one.shape) | {"parameters": one.shape.parameters},
        "tokens": one.tokens,
        "days": one.days,
        "layout": asdict(one.plan.layout),
        "step_s": one.plan.step_s,
        "mfu": one.plan.mfu,
        "memory_bytes": one.plan.memory_bytes,
        "cost": asdict(one.cost),
    }


ENDINGS = (".csv", ".json")


def check_layouts_file(path: Path) -> None:
    """Raise PlanError for a file that is neither CSV nor JSON by its name."""
    if path.suffix not in ENDINGS:
        raise PlanError(f"{path} ends in none of {', '.join(ENDINGS)}: give such a file")


def write_layouts(answer: Answered, path: Path) -> int:
    """Write every layout that was planned, fastest first, and return how many there are."""
    check_layouts_file(path)
    rows = list(layout_rows(answer))
    if path.suffix == ".json":
        text = json_text(rows) + "\n"
    else:
        out = io.StringIO()
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = out.getvalue()
    files.write_whole(path, text.encode())
    return len(rows)


def layout_rows(answer: Answered) -> Iterator[dict[str, object]]:
    """Yield each layout with its step, memory, parts and, if tokens were given, days and money."""
    found, asked, tokens = answer.planned.every, answer.planned.asked, answer.tokens
    step_s, memory = found.times.total, found.memory.total
    step_tokens = asked.batch * asked.shape.sequence
    ideal_s = asked.shape.flops_per_token * step_tokens
    ideal_s /= asked.cluster.peak["bf16"] * asked.cluster.world
    for place in np.argsort(step_s, kind="stable"):
        row: dict[str, object] = {}
        for field in fields(Layouts):
            value = int(getattr(found.layouts, field.name)[place])
            row[field.name] = CHOICES[field.name][value] if field.name in CHOICES else value
        seconds = float(step_s[place])
        row |= {
            "micro_batches": int(found.micro_batches[place]),
            "fits": bool(memory[place] <= room_bytes(asked.cluster)),
            "step_s": round(seconds, 6),
            "tokens_per_s": round(step_tokens / seconds, 1),
            "mfu": round(ideal_s / seconds, 4),
            "memory_bytes": int(memory[place]),
        }
        if tokens is not None:
            hours = tokens / step_tokens * seconds / 3600
            row["days"] = round(hours / 24, 3)
            row["device_hours"] = round(hours * asked.cluster.world, 1)
            if answer.price is not None:
                row["money"] = round(hours * asked.cluster.world * answer.price, 2)
        for name in TIME_PARTS:
            row[f"{name}_s"] = round(float(getattr(found.times, name)[place]), 6)
        for name in MEMORY_PARTS:
            row[f"{name}_bytes"] = int(getattr(found.memory, name)[place])
        yield row
