"""Try to install a recipe; print why it was refused, if it was, and which kernels are active."""

import json
import sys

from own_model import make

import ratchet
from ratchet.kernels.library import registry

if __name__ == "__main__":
    model, optimizer = make()
    error = ""
    try:
        ratchet.compile(lambda x: x, model, optimizer, recipe=sys.argv[1])
    except ratchet.RatchetError as caught:
        error = str(caught)
    print(json.dumps({"error": error, "active": sorted(registry.active())}))
