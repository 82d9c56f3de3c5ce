"""Which of several LLVMs is asked: the newest that knows the GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile import hip_compiler, tools
from ratchet.amd.compile.assembly import Instruction
from ratchet.base.errors import KernelError
from ratchet.judge.sandbox import rocm

STAND_IN = """#!/bin/sh
case " {known} " in *" ${{2#-mcpu=}} "*) echo '{{"CodeRegions": []}}' ;;
*) echo "'$2' is not a recognized processor for this target (ignoring processor)" >&2; exit 1 ;;
esac
"""
BODY = [Instruction(name="s_nop", operands="0")]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is searched for programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(rocm, "OPT", tmp_path)
    monkeypatch.delenv("ROCM_PATH", raising=False)
    tools._knows.cache_clear()
    return folder


def put(folder: Path, name: str, known: str) -> str:
    program = folder / name
    program.write_text(STAND_IN.format(known=known))
    program.chmod(0o755)
    return str(program)


def test_the_newest_that_knows_the_target_is_asked(path: Path, tmp_path: Path) -> None:
    plain = put(path, "llvm-mca", "gfx90a gfx950")
    middle = put(path, "llvm-mca-19", "gfx90a gfx942")
    newest = put(path, "llvm-mca-20", "gfx90a")
    found = {name: tools.find_mca(ARCHITECTURES[name]) for name in ("gfx90a", "gfx942", "gfx950")}
    assert found == {"gfx90a": newest, "gfx942": middle, "gfx950": plain}
    assert "json" in tools.run_mca(ARCHITECTURES["gfx942"], BODY, tmp_path)


def test_an_old_one_alone_says_what_it_does_not_know(path: Path, tmp_path: Path) -> None:
    put(path, "llvm-mca", "gfx90a")
    answer = tools.run_mca(ARCHITECTURES["gfx942"], BODY, tmp_path)
    assert answer == {"error": "llvm-mca: not one knows gfx942"}


def test_none_is_said_too(path: Path, tmp_path: Path) -> None:
    answer = tools.run_mca(ARCHITECTURES["gfx942"], BODY, tmp_path)
    assert answer == {"error": "llvm-mca is not installed"}


REAL = {name: shutil.which(name) for name in ("llvm-mca-14", "llvm-mca-19")}


@pytest.mark.skipif(None in REAL.values(), reason="llvm-mca 14 and 19 are not both installed")
@pytest.mark.parametrize(
    ("installed", "answer"),
    [
        ({"llvm-mca": "llvm-mca-14"}, "error"),
        ({"llvm-mca": "llvm-mca-14", "llvm-mca-19": "llvm-mca-19"}, "json"),
        ({"llvm-mca": "llvm-mca-19", "llvm-mca-14": "llvm-mca-14"}, "json"),
        ({}, "error"),
    ],
)
def test_the_real_ones(path: Path, tmp_path: Path, installed: dict[str, str], answer: str) -> None:
    for name, program in installed.items():
        (path / name).symlink_to(str(REAL[program]))
    assert answer in tools.run_mca(ARCHITECTURES["gfx942"], BODY, tmp_path)


def test_a_compiler_without_its_libraries_says_nothing_of_a_source(tmp_path: Path) -> None:
    """clang of a package manager may find its libraries by a variable that the sandbox lacks."""
    clang = tmp_path / "clang"
    said = f"{clang}: error while loading shared libraries: libLLVM.so.19: cannot open"
    clang.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 127\n")
    clang.chmod(0o755)
    with pytest.raises(KernelError, match=r"^clang cannot start in the sandbox \(error while"):
        hip_compiler.checked([str(clang)], None)
    clang.write_text("#!/bin/sh\necho 'a.cu:1:2: error: no' >&2\nexit 1\n")
    with pytest.raises(KernelError, match=r"the source does not compile: a\.cu:1:2: no"):
        hip_compiler.checked([str(clang)], None)
