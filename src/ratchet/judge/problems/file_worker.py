"""A process that runs a problem's file and reports the problem.

`file_keeper` starts and ends it. The answer goes as JSON into the file of a descriptor. The file's
own output goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from importlib import import_module

import torch

from ratchet.base.errors import RatchetError
from ratchet.base.process.channel import Message
from ratchet.judge.problems.long_sums import with_long_sum
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.source_module import source_module

DECLARED = "PROBLEM"


def describe(request: Message) -> Problem:
    """Return the problem of a file's text; raise a RatchetError, or whatever the file raises."""
    text, name = request["text"], request["name"]
    if not request["declared"]:
        from ratchet.judge.problems.model_problem import model_problem  # takes a while

        return model_problem(text, name, scale=request["scale"], threads=request["threads"])
    torch.set_num_threads(request["threads"])
    declared = getattr(source_module(text), DECLARED, None)
    if not isinstance(declared, Problem):
        raise RatchetError(f"{DECLARED} is {type(declared).__name__}: make it a ratchet.Problem")
    problem = replace(declared, text=text)
    if not problem.cases:
        raise RatchetError("it has no cases: give it at least one")
    if not problem.tiers:
        raise RatchetError("all of its cases are hidden: give it a visible one")
    problem.load_reference()
    return with_long_sum(problem)


def answer(request: Message) -> Message:
    """Return `problem`, with its `card` if requested; or `fault`, the reason why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if "by" in request:  # a higher room's work on the file
                torch.set_num_threads(request["threads"])
                found: Message = import_module(request["by"]).answer(request)
                return found
            problem = describe(request)
            if "entry" not in request:
                return {"problem": problem.as_json()}
            from ratchet.judge.problems.card import card_of

            card = card_of(problem, given=request["given"], entry=request["entry"])
            return {"problem": problem.as_json(), "card": card.as_json()}
    except RatchetError as error:
        return {"fault": str(error)}
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in sys.modules:
            return {"fault": _raised(error)}
        package = error.name.partition(".")[0]
        return {
            "fault": f"it imports {package!r}, which is not installed here: install it "
            "(pip install), or write the file without it"
        }
    except (Exception, SystemExit) as error:  # the process boundary: the file is untrusted code
        return {"fault": _raised(error)}


def _raised(error: BaseException) -> str:
    return f"it raises {type(error).__name__}: {' '.join(str(error).split()):.300}"


def main(descriptor: int, request: Message) -> None:
    """Answer a request in this descriptor's file."""
    os.dup2(2, 1)
    found = answer(request)
    with os.fdopen(os.dup(descriptor), "w", encoding="utf-8") as file:
        json.dump(found, file)
