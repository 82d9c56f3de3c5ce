"""All layouts of a plan as a table in a file: CSV, or JSON by the file's ending."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np

from ratchet.base import files
from ratchet.base.errors import PlanError
from ratchet.base.serialise import json_text
from ratchet.scale.plan.ask import Answered
from ratchet.scale.plan.layout import CHECKPOINTINGS, PRECISIONS, SHARDINGS, Layouts
from ratchet.scale.plan.search import MEMORY_PARTS, TIME_PARTS, room_bytes

WORDS = {"sharding": SHARDINGS, "checkpointing": CHECKPOINTINGS, "precision": PRECISIONS}
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
            row[field.name] = WORDS[field.name][value] if field.name in WORDS else value
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
