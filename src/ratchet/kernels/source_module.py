"""The module of a problem's source text, for worker processes: running it is running the file."""

from __future__ import annotations

import functools
import linecache
import sys
import types

NAME = "ratchet_problem_file"


@functools.lru_cache(maxsize=2)
def source_module(text: str) -> types.ModuleType:
    """Run the text as a module, once; raises what it raises."""
    return run_source(text)


def run_source(text: str) -> types.ModuleType:
    """Run the text as a module, now."""
    filename = f"<{NAME}>"
    # Dataclasses look their module up, and torch.compile and tracebacks the text of a line.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    module = types.ModuleType(NAME)
    module.__file__ = filename
    sys.modules[NAME] = module
    exec(compile(text, filename, "exec"), module.__dict__)
    return module
