"""Numbers of a kernel's file that follow the sizes of its problem."""

from __future__ import annotations

import pytest

from ratchet.judge.problems.assigned_sizes import Followed, rewritten, sizes
from ratchet.judge.problems.case import SizeChange

PROBLEM = "batch = 286\nwidth = 1024\ndepth = 512\n"
SHRUNK = Followed.of_shrunk(PROBLEM, [SizeChange(name="batch", old=8192, new=286)])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch = 8192", "batch = 286"),
        ("BATCH_SIZE: int = 8192", "BATCH_SIZE: int = 286"),
        ("B, W = 8192, 1024", "B, W = 286, 1024"),
        ("rows = 4096 * 2  # all", "rows = 286  # all"),
        ("shape = (8192, 1024)", "shape = (286, 1024)"),
        ("y = x.view(8192, -1)[:8192] / 8192", "y = x.view(286, -1)[:286] / 286"),
        ("def f(x, n=8192): ...", "def f(x, n=286): ..."),
        ("class C:\n    n: int = 8192", "class C:\n    n: int = 286"),
        (
            "S = '''\n#define N 8192\nint rows = 8192;'''",
            "S = '''\n#define N 286\nint rows = 286;'''",
        ),
        ("total = 8192 * 1024", "total = 292864"),
        ("total = 8388608", "total = 292864"),
        ("total = 8192 * 3", "total = 286 * 3"),
        ("é = 'é'; n = 8192", "é = 'é'; n = 286"),
    ],
)
def test_a_size_follows_by_its_name_or_its_value(old: str, new: str) -> None:
    assert SHRUNK.applied(old) == new


@pytest.mark.parametrize(
    "text",
    [
        "BLOCK = 8192",
        "launch(x, num_warps=8192)",
        "width = 8192",  # a size of the problem that stays
        "@triton.jit\ndef k(x):\n    return tl.arange(0, 8192)",
        "n = 81920",
        "words = '8192'",
    ],
)
def test_what_is_no_size_of_the_problem_stays(text: str) -> None:
    assert SHRUNK.applied(text) == text


def test_a_value_of_two_sizes_follows_by_its_name_alone() -> None:
    both = "batch = 16\nwidth = 512\n"
    rules = Followed.of_shrunk(both, [SizeChange(name="batch", old=512, new=16)])
    assert rules.applied("n = 512; bs = 512; width = 512") == "n = 512; bs = 16; width = 512"


def test_rows_follow_unless_another_dimension_has_as_many() -> None:
    text = "batch = 64\nwidth = 32\n"
    assert Followed.of_rows(text, 64, 33, {32}).applied("n = 64") == "n = 33"
    assert Followed.of_rows(text, 64, 33, {64}).applied("n = 64; B = 64") == "n = 64; B = 33"


def test_numbers_that_get_inputs_writes_out_are_sizes() -> None:
    text = "def get_inputs():\n    return [torch.rand(n, 3, 224, 32), torch.ones([n, 64], k=99)]\n"
    assert {size.name: size.value for size in sizes(text)} == {
        "get_inputs #1": 224,
        "get_inputs #2": 32,
        "get_inputs #3": 64,
    }
    assert "224, 16" in rewritten(text, {"get_inputs #2": 16})
