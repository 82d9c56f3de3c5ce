"""What is read out of an answer: the last code block that is a kernel, or why there is none."""

from __future__ import annotations

import re

import pytest

from ratchet.judge.kernels.kernel import Language
from ratchet.write.agent.prompt import Usable, code_blocks, read_answer

CPP = """#include "ratchet_abi.h"
RATCHET_ENTRY f(const ratchet_tensor* t, int64_t, const double*, int64_t) { return %d; }"""
PYTHON = "import torch\n\ndef f(x, scalars):\n    return (x + %d,)"
TRITON = "import torch\nimport triton\n\ndef f(x, scalars):\n    return (x,)"


def block(text: str, tag: str = "cpp", mark: str = "```") -> str:
    return f"{mark}{tag}\n{text}\n{mark}\n"


def read(text: str, language: Language = "cpp", entry: str = "f") -> Usable | str:
    return read_answer(text, language=language, entry=entry, name="f-t0s0")


def test_the_last_block_with_the_entry_counts() -> None:
    first, last = CPP % 1, CPP % 2
    text = f"An idea.\n{block(first)}Better:\n{block(last)}Run it:\n{block('make', 'sh')}"
    found = read(text + block("int helper();", "cpp"))
    assert isinstance(found, Usable)
    assert (found.kernel.source, found.kernel.entry) == (last + "\n", "f")
    assert (found.kernel.language, found.kernel.name) == ("cpp", "f-t0s0")


@pytest.mark.parametrize("tag", ["cpp", "c++", "C++", "", "cc", "c", "{.cpp}"])
@pytest.mark.parametrize("mark", ["```", "~~~", "````"])
def test_fences_come_in_many_forms(tag: str, mark: str) -> None:
    assert isinstance(read(block(CPP % 1, tag, mark)), Usable)


def test_an_inner_fence_of_another_length_is_part_of_the_code() -> None:
    text = block("/*\n```\n*/\n" + CPP % 1, "cpp", "````")
    found = read(text)
    assert isinstance(found, Usable) and "```" in found.kernel.source


def test_thoughts_are_left_out() -> None:
    text = f"<think>Perhaps\n{block(CPP % 1)}</think>\n{block(CPP % 2)}"
    found = read(text)
    assert isinstance(found, Usable) and "return 2" in found.kernel.source
    assert isinstance(read(f"<think>Perhaps\n{block(CPP % 1)}"), str)


def test_the_change_is_a_line_of_the_prose() -> None:
    code = block("// Change: no\n" + CPP % 1)
    text = f"Memory-bound.\n\n**Change:** two rows  at once\n\n{code}"
    found = read(text)
    assert isinstance(found, Usable) and found.note == "two rows at once"
    bare = read(block("// Change: no\n" + CPP % 1))
    assert isinstance(bare, Usable) and bare.note == ""


@pytest.mark.parametrize(
    ("text", "language", "words"),
    [
        ("", "cpp", "no fenced code block"),
        ("I cannot help with that.", "cpp", "no fenced code block"),
        (
            block(PYTHON % 1, "python"),
            "cpp",
            "no code block is in cpp: its opening fence says 'python'",
        ),
        (block("int g() { return 1; }"), "cpp", r"defines the entry: RATCHET_ENTRY f"),
        (block("// RATCHET_ENTRY f(x)\nint g();"), "cpp", "defines the entry"),
        ("```cpp\n" + CPP % 1, "cpp", "not closed"),
        (block("def f(:", "python"), "torch", r"not Python: .*\(line 1\)"),
        (block("def g(): pass", "python"), "torch", r"defines the entry: def f"),
        (block(PYTHON % 1, "python"), "triton", "does not import triton"),
        (block("x" * 300_000 + CPP % 1), "cpp", "more than 256 KiB"),
        (block("void f(float*);", "hip"), "hip", "RATCHET_ENTRY f"),
        (block("RATCHET_ENTRY f(int);", "hip"), "hip", "__global__ void NAME"),
        (block("\0", "python"), "torch", "not Python"),
        (block("(" * 5000, "python"), "torch", "not Python"),
    ],
)
def test_what_is_no_kernel_says_why(text: str, language: Language, words: str) -> None:
    found = read(text, language)
    assert isinstance(found, str)
    assert re.search(words, found), found
    assert len(found) < 200


def test_every_language_has_its_form() -> None:
    assert isinstance(read(block(PYTHON % 1, "python"), "torch"), Usable)
    assert isinstance(read(block(TRITON, "python"), "triton"), Usable)
    hip = "#include <hip/hip_runtime.h>\n__global__ void k() {}\nRATCHET_ENTRY f(int) { return 0; }"
    assert isinstance(read(block(hip, "cpp"), "hip"), Usable)
    model = "import torch\nclass ModelNew(torch.nn.Module):\n    pass"
    assert isinstance(read(block(model, "py"), "torch", "ModelNew"), Usable)
    made = "import torch\nf = torch.compile(lambda x, s: (x,))"
    assert isinstance(read(block(made, ""), "torch"), Usable)


def test_blocks_are_found_in_order_and_an_open_one_is_marked() -> None:
    found = list(code_blocks("a\n```py\n1\n```\nb\n~~~\n2\n```\n~~~\n```c\n3"))
    assert [(one.tag, one.text, one.closed) for one in found] == [
        ("py", "1", True),
        ("", "2\n```", True),
        ("c", "3", False),
    ]
