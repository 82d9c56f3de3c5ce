"""A package's modules: whole, relative, and without what only Ratchet needs."""

from __future__ import annotations

import ast

import pytest

from ratchet.judge.kernels.library import LIBRARY
from ratchet.train.publish.extract import ALL, Extract, OwnModule

TEXT = '''"""First words.

More words.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry
from ratchet.judge.problems.problem import Problem

LIMIT = 3
"""Of something."""


def used(path: Path) -> int:
    return LIMIT + len(json.dumps(str(path))) + len(registry.fallbacks)


def judged(problem: Problem) -> int:
    return used(Path(problem.name))


def above() -> int:
    return judged(None)


def raises() -> None:
    raise KernelError("torch.ops.ratchet.x")


print("imported")
'''
MODULE = OwnModule("ratchet.made_up", TEXT)


def test_what_is_asked_for_comes_with_what_it_needs() -> None:
    text = MODULE.written({"used"})
    assert text.startswith('"""First words."""')
    assert 'LIMIT = 3\n"""Of something."""' in text and 'print("imported")' in text
    assert "from . import _registry as registry" in text
    assert "import re" not in text and "raises" not in text and "judged" not in text
    assert MODULE.uses({"used"}) == {"ratchet.judge.kernels.registry": {"fallbacks"}}


def test_what_needs_a_module_that_stays_behind_is_dropped_with_its_callers() -> None:
    text = MODULE.written({ALL})
    assert "def used" in text and "def raises" in text
    assert "judged" not in text and "above" not in text and "Problem" not in text


def test_ops_move_to_the_package_s_namespace() -> None:
    extract = Extract()
    extract.add("ratchet.made_up", ["raises"], TEXT)
    assert 'KernelError("torch.ops.own.x")' in extract.texts("own")["_made_up.py"]


@pytest.mark.parametrize("library", LIBRARY)
def test_a_library_kernel_s_modules_need_no_ratchet(library: str) -> None:
    extract = Extract(frozenset(set(LIBRARY) - {library}))
    asked = ["step_adamw"] if library == "adamw" else []
    extract.add(LIBRARY[library].module, asked)
    texts = extract.texts("own")
    for file, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                names = [node.module] if node.module else [one.name for one in node.names]
                assert all(f"{name}.py" in texts for name in names), (file, names)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                assert "ratchet" not in ast.unparse(node), (file, ast.unparse(node))
    assert "Problem" not in "".join(texts.values())


def test_of_two_ops_in_a_file_the_other_stays_behind() -> None:
    extract = Extract(frozenset({"layer_norm"}))
    extract.add("ratchet.judge.kernels.library.norms")
    text = extract.texts("own")["_norms.py"]
    assert '_declare("rms_norm"' in text and '_declare("layer_norm"' not in text


def test_each_op_of_the_library_has_an_example() -> None:
    assert [one.name for one in LIBRARY.values() if not one.examples] == ["adamw"]
