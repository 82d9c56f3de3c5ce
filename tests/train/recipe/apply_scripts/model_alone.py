"""`ratchet.compile(model, recipe=...)`: the loop keeps its own optimizer."""

import json
import logging
import sys

from own_model import batch, loss_of, make

import ratchet


def train(recipe, steps):  # type: ignore[no-untyped-def]
    model, optimizer = make()
    called = ratchet.compile(model, recipe=recipe) if recipe else model
    losses = []
    for index in range(steps):
        loss = loss_of(called, batch(index))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


if __name__ == "__main__":
    recipe, steps = sys.argv[1], int(sys.argv[2])
    lines = Lines()
    logging.getLogger("ratchet").addHandler(lines)
    without = train(None, steps)
    with_recipe = train(recipe, steps)
    print(json.dumps({"without": without, "with": with_recipe, "warnings": lines.said}))
