"""A hand-written loop with a schedule, as written and under a recipe."""

import json
import sys

import torch
from own_model import batch, loss_of, make

import ratchet


def train(recipe, steps):  # type: ignore[no-untyped-def]
    model, optimizer = make()
    weights, held = dict(model.named_parameters()), optimizer
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x):  # type: ignore[no-untyped-def]
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    if recipe:
        step = ratchet.compile(step, model, optimizer, recipe=recipe)
    losses, rates = [], []
    for index in range(steps):
        losses.append(float(step(batch(index))))
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    now = dict(model.named_parameters())
    state = next(iter(optimizer.state_dict()["state"].values()))
    return losses, {
        "same_model": all(now[name] is value for name, value in weights.items()),
        "same_optimizer": held is optimizer,
        "learning_rates": rates,
        "state_steps": int(state["step"]),
    }


if __name__ == "__main__":
    recipe, steps = sys.argv[1], int(sys.argv[2])
    without, _ = train(None, steps)
    with_recipe, about = train(recipe, steps)
    print(json.dumps({"without": without, "with": with_recipe, **about}))
