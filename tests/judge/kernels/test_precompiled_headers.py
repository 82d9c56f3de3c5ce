"""The headers at the head of a source, precompiled: which, when, and that nothing changes by it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.base.errors import CompilerMissing
from ratchet.judge import abi
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.kernels.languages.cpp import KNOWN, NAME, PrecompiledHeaders, leading_headers

SOURCE = """// doubles
#include <cmath>
#include <cstdint>  // words
/* two
   lines */
# include <vector>

extern "C" int64_t doubled(void*, int64_t, const double* s, int64_t) {
    std::vector<double> two{s[0], s[0]};
    return (int64_t)std::floor(two[0] + two[1]);
}
"""


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (SOURCE, ("cmath", "cstdint", "vector")),
        ("", ()),
        ("int x;\n#include <vector>\n", ()),
        ("#define N 3\n#include <vector>\n", ()),
        ('#include "own.h"\n#include <vector>\n', ()),
        ("#include <vector>\n#include <sys/mman.h>\n#include <cmath>\n", ("vector",)),
        ("#include <vector>\n#include <vector>\n", ("vector",)),
        ("#include </etc/passwd>\n", ()),
        ("#if 0\n#include <vector>\n#endif\n", ()),
        ("/* #include <cmath> */\n#include <vector>\n", ("vector",)),
        ("#include <vector> int x;\n", ()),
        ("// \\\n#include <vector>\n", ()),
        ("#include <cmath> // \\\n#include <vector>\n", ()),
    ],
)
def test_only_the_head_counts(source: str, names: tuple[str, ...]) -> None:
    assert leading_headers(source) == names


@given(st.text(max_size=200))
def test_any_text_can_be_asked_for(text: str) -> None:
    assert set(leading_headers(text)) <= KNOWN


@pytest.fixture
def headers(tmp_path: Path) -> PrecompiledHeaders:
    try:
        if not cpp.is_gcc(cpp.find_compiler()):
            pytest.skip("the compiler is not GCC")
    except CompilerMissing as error:
        pytest.skip(str(error))
    return PrecompiledHeaders(tmp_path / "headers")


@pytest.mark.compiler
def test_the_second_time_they_are_there_and_nothing_changes(
    headers: PrecompiledHeaders, tmp_path: Path
) -> None:
    assert headers.folder_for(SOURCE) is None
    folder = headers.folder_for(SOURCE)
    assert folder is not None
    assert sorted(one.name for one in folder.iterdir()) == [NAME, f"{NAME}.gch"]
    assert PrecompiledHeaders(tmp_path / "headers").folder_for(SOURCE) == folder
    kernel = Kernel(name="doubled", language="cpp", source=SOURCE, entry="doubled")
    plain = cpp.compile_kernel(kernel, cache=tmp_path / "plain")
    made = cpp.compile_kernel(kernel, cache=tmp_path / "made", included=folder / NAME)
    assert plain.name == made.name  # the same key: it is the same code
    for path in (plain, made):
        entry = cpp.load(path, "doubled")
        assert entry(abi.pack_tensors([]), 0, abi.pack_scalars((2.6,)), 1) == 5
    assert plain.read_bytes() == made.read_bytes()
    assert ctypes.CDLL(str(made)) is not None


@pytest.mark.compiler
def test_the_oldest_go(headers: PrecompiledHeaders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp, "MOST_KEPT", 1)
    monkeypatch.setattr(cpp, "ENOUGH", 1)
    first = headers.folder_for("#include <cstdint>\n")
    second = headers.folder_for("#include <cstddef>\n")
    assert first is not None and second is not None
    assert not first.exists()
    assert second.exists()


def test_a_folder_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpp, "ENOUGH", 1)
    (tmp_path / "file").write_text("")
    assert PrecompiledHeaders(tmp_path / "file").folder_for(SOURCE) is None


@pytest.mark.compiler
def test_what_does_not_compile_is_not_tried_again(
    headers: PrecompiledHeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpp, "FLAGS", (*cpp.FLAGS, "--no-such-option"))
    assert [headers.folder_for(SOURCE) for _ in range(3)] == [None] * 3
    monkeypatch.undo()
    assert headers.folder_for(SOURCE) is None  # asked once under this key
