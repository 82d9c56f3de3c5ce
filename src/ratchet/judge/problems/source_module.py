"""The module of a problem's source text, for worker processes only: importing it runs the file."""

from __future__ import annotations

import functools
import linecache
import sys
import types

NAME = "ratchet_problem_file"


@functools.lru_cache(maxsize=2)
def source_module(text: str) -> types.ModuleType:
    """Run the text as a module, once; raise whatever it raises."""
    return run_source(text)


def run_source(text: str) -> types.ModuleType:
    """Run the text as a module, now."""
    filename = f"<{NAME}>"
    # Dataclasses look up their module; torch.compile and tracebacks look up the text of a line.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    module = types.ModuleType(NAME)
    module.__file__ = filename
    sys.modules[NAME] = module
    exec(compile(text, filename, "exec"), module.__dict__)
    return module
