"""Try to install recipes; print what came of each and which kernels are active."""

import json
import logging
import sys

from own_model import make

import ratchet
from ratchet.judge.kernels import registry


class Lines(logging.Handler):
    """Keep each message."""

    def __init__(self):  # type: ignore[no-untyped-def]
        super().__init__()
        self.lines = []

    def emit(self, record):  # type: ignore[no-untyped-def]
        self.lines.append(record.getMessage())


def step(batch):  # type: ignore[no-untyped-def]
    return batch


def attempt(recipe, strict):  # type: ignore[no-untyped-def]
    model, optimizer = make()
    try:
        found = ratchet.compile(step, model, optimizer, recipe=recipe, strict=strict)
    except ratchet.RatchetError as caught:
        return str(caught), None
    return "", found


def answer(recipe):  # type: ignore[no-untyped-def]
    said = Lines()
    logging.getLogger("ratchet").addHandler(said)
    error, found = attempt(recipe, False)
    logging.getLogger("ratchet").removeHandler(said)
    return {
        "error": error,
        "as_written": found is step,
        "warnings": said.lines,
        "strict": attempt(recipe, True)[0],
        "active": sorted(registry.active()),
    }


if __name__ == "__main__":
    print(json.dumps({name: answer(name) for name in sys.argv[1:]}))
