"""Models by their sizes: `gpt:layers=96,hidden=12288,heads=96` and `llama:...`."""

from __future__ import annotations

from typing import Final

from ratchet.base.errors import PlanError
from ratchet.scale.plan.shape import Shape

FAMILIES: Final = ("gpt", "llama")
"""gpt: two products in an MLP of four times the hidden size, tied embeddings. llama: three, with
8 / 3 of it, rounded up to 256, and an output layer of its own."""
NEEDED: Final = ("layers", "hidden", "heads")
SIZES: Final = (
    *NEEDED, "kv_heads", "head_dim", "intermediate", "vocabulary", "sequence", "experts",
    "experts_per_token", "expert_intermediate", "window",
)  # fmt: skip


def described(name: str) -> Shape | None:
    """Return the shape whose sizes a name gives; None if it names no sizes.

    Raises PlanError for an unknown size, one that is no whole number above 0, and missing ones.
    """
    family, colon, text = name.partition(":")
    if not colon or family not in FAMILIES:
        return None
    sizes = _sizes(name, text)
    if missing := [one for one in NEEDED if one not in sizes]:
        raise PlanError(
            f"{name!r} lacks {', '.join(missing)}: write, for example, "
            f"{family}:layers=24,hidden=2048,heads=16"
        )
    if sizes["hidden"] % sizes["heads"] and "head_dim" not in sizes:
        raise PlanError(
            f"{sizes['heads']} heads do not divide a hidden size of {sizes['hidden']}: change one "
            "of them, or give head_dim"
        )
    return made(name, family == "llama", sizes)


def made(name: str, gated: bool, sizes: dict[str, int]) -> Shape:
    """Return a shape of some sizes; what is not given follows from the others."""
    hidden, heads = sizes["hidden"], sizes["heads"]
    inner = -(-8 * hidden // (3 * 256)) * 256 if gated else 4 * hidden
    experts = sizes.get("experts", 0)
    return Shape(
        name=name,
        layers=sizes["layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=sizes.get("kv_heads", heads),
        head_dim=sizes.get("head_dim", hidden // heads),
        intermediate=0 if experts else sizes.get("intermediate", inner),
        vocabulary=sizes.get("vocabulary", 51200),
        sequence=sizes.get("sequence", 2048),
        gated=gated,
        tied=not gated,
        experts=experts,
        experts_per_token=sizes.get("experts_per_token", 2 if experts else 0),
        expert_intermediate=sizes.get("expert_intermediate", inner) if experts else 0,
        window=sizes.get("window", 0),
        windowed=sizes["layers"] if "window" in sizes else 0,
    )


def _sizes(name: str, text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        word, _, number = part.strip().partition("=")
        if word not in SIZES or not (number.isascii() and number.isdigit()) or not int(number):
            raise PlanError(
                f"{part.strip()!r} in {name!r} is no size: give whole numbers above 0 for any of "
                f"{', '.join(SIZES)}"
            )
        if word in found:
            raise PlanError(f"{name!r} gives {word} twice: give it once")
        found[word] = int(number)
    return found
