"""Try to install recipes; print why each was refused, if it was, and which kernels are active."""

import json
import sys

from own_model import make

import ratchet
from ratchet.kernels.library import registry


def refused(recipe):  # type: ignore[no-untyped-def]
    model, optimizer = make()
    try:
        ratchet.compile(lambda x: x, model, optimizer, recipe=recipe)
    except ratchet.RatchetError as caught:
        return {"error": str(caught), "active": sorted(registry.active())}
    return {"error": "", "active": sorted(registry.active())}


if __name__ == "__main__":
    print(json.dumps({name: refused(name) for name in sys.argv[1:]}))
