"""Compile a step with a recipe from elsewhere; print what runs and what was said."""

import json
import logging
import sys

from own_model import make

import ratchet
from ratchet.kernels.library import registry


class Lines(logging.Handler):
    """Keep each message."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def step(batch):
    return batch


if __name__ == "__main__":
    model, optimizer = make()
    said = Lines()
    logging.getLogger("ratchet").addHandler(said)
    compiled = ratchet.compile(step, model, optimizer, recipe=sys.argv[1])
    strict = ""
    try:
        ratchet.compile(step, model, optimizer, recipe=sys.argv[1], strict=True)
    except ratchet.RatchetError as error:
        strict = str(error)
    print(
        json.dumps(
            {
                "as_written": compiled is step,
                "warnings": said.lines,
                "strict": strict,
                "active": sorted(registry.active()),
            }
        )
    )
