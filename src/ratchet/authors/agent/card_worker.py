"""A process that runs a problem's own file and writes the problem's card as JSON."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

from ratchet.errors import RatchetError


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the `card`, or `fault`: why there is none."""
    from ratchet.kernels.problem import Problem
    from ratchet.kernels.problem_card import card_of

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = Problem.from_json(request["problem"])
            card = card_of(problem, given=problem.name, entry=request["entry"])
            return {"card": card.as_json()}
    except RatchetError as error:
        return {"fault": str(error)}
    except (Exception, SystemExit) as error:  # the process boundary: the file is untrusted code
        return {"fault": f"it raises {type(error).__name__}: {' '.join(str(error).split()):.300}"}


def main(descriptor: int) -> None:
    """Answer the request on standard input into a descriptor."""
    request = json.load(sys.stdin)
    found = answer(request)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(found, file)
        file.flush()
        os._exit(0)  # threads that the file started must not delay the exit


if __name__ == "__main__":
    main(int(sys.argv[1]))
