"""`ratchet port`: exit codes, what it writes, and what it refuses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_cuda", reason="tree-sitter is not installed")

import commands

from ratchet.amd.port.compile import why_not
from ratchet.cli import main

CLEAN = "__global__ void k(float* x) { x[0] = 1.0f; }\n"
KERNEL = "__global__ void k(float* x) { x[0] = __shfl_sync(0xffffffff, x[1], 0); }\n"
BY_HAND = '__global__ void p(float* x) { asm("ex2.approx.f32 %0, %1;" : "=f"(*x) : "f"(*x)); }\n'


def git(folder: Path, *words: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "k.cu").write_text(KERNEL)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "kernel")
    return folder


def run(*words: str) -> int:
    return main(["port", *words, "--target", "none"])


def test_a_clean_tree_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.cu").write_text(CLEAN)
    assert run(str(tmp_path)) == 0
    assert "Nothing in" in capsys.readouterr().out


def test_a_file_that_does_not_compile_is_exit_code_1(tmp_path: Path, capsys) -> None:
    if why := why_not():
        pytest.skip(why)
    (tmp_path / "k.cu").write_text(CLEAN.replace("1.0f", "missing"))
    assert main(["port", str(tmp_path), "--target", "gfx942", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["failed"] == ["k.cu"]


def test_findings_are_exit_code_1_and_the_tree_stays(tree: Path, capsys) -> None:
    assert run(str(tree)) == 1
    said = capsys.readouterr().out
    assert "shuffle-width" in said and "--write" in said
    assert (tree / "k.cu").read_text() == KERNEL


def test_write_fixes_the_tree_and_tells_what_is_left(tree: Path, capsys) -> None:
    assert run(str(tree), "--write", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["written"] and document["left"] == 0
    assert "PORT_MASK64(0xffffffff), x[1], 0, 32" in (tree / "k.cu").read_text()
    git(tree, "commit", "-qam", "ported")
    assert run(str(tree)) == 0
    (tree / "p.cu").write_text(BY_HAND)
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "PTX")
    assert run(str(tree), "--write") == 1


def test_a_tree_with_changes_is_refused_unless_forced(tree: Path, capsys) -> None:
    (tree / "k.cu").write_text(KERNEL * 1 + "// changed\n")
    line = commands.mistake(capsys, "port", str(tree), "--write", "--target", "none")
    assert "k.cu" in line and "--force" in line
    assert (tree / "k.cu").read_text().endswith("// changed\n")
    assert run(str(tree), "--write", "--force") == 0


def test_a_tree_without_git_is_refused_unless_forced(tmp_path: Path, capsys) -> None:
    (tmp_path / "k.cu").write_text(KERNEL)
    line = commands.mistake(capsys, "port", str(tmp_path), "--write", "--target", "none")
    assert "--force" in line
    assert run(str(tmp_path), "--write", "--force") == 0


def test_nothing_is_half_written(tree: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "l.cu").write_text(KERNEL)
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "two")
    monkeypatch.setattr(
        "ratchet.amd.port.porting.why_not_new_file",
        lambda path: "cannot be written (Read-only file system)" if path.name == "l.cu" else "",
    )
    line = commands.mistake(capsys, "port", str(tree), "--write", "--target", "none")
    assert "l.cu" in line and "nothing was changed" in line
    assert (tree / "k.cu").read_text() == KERNEL


def test_mistakes_are_one_line(tmp_path: Path, capsys) -> None:
    assert "cannot be read" in commands.mistake(capsys, "port", str(tmp_path / "nothing"))
    (tmp_path / "k.cu").write_text(CLEAN)
    assert "gfx000" in commands.mistake(capsys, "port", str(tmp_path), "--target", "gfx000")
    (tmp_path / "file").write_text("x")
    out = str(tmp_path / "file" / "out")
    assert "file" in commands.mistake(capsys, "port", str(tmp_path), "--out", out)


def test_out_holds_the_patch_the_page_and_the_hip_code(tree: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    sarif = tmp_path / "port.sarif"
    assert run(str(tree), "--out", str(out), "--sarif", str(sarif)) == 1
    patch = (out / "port.patch").read_bytes()
    done = subprocess.run(["git", "apply", "--check"], cwd=tree, input=patch, check=False)
    assert done.returncode == 0
    page = (out / "report.html").read_text()
    assert "shuffle-width" in page and "<script" not in page
    assert "hip/hip_runtime.h" in (out / "hip" / "k.hip").read_text()
    document = json.loads((out / "port.json").read_text())
    assert document["files"][0]["readiness"] == "patched"
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert {one["ruleId"] for one in results} == {"shuffle-width", "mask-width"}
    assert results[0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 1


def test_the_page_escapes_what_a_tree_holds(tmp_path: Path, capsys) -> None:
    (tmp_path / "k.cu").write_text(KERNEL + "// <script>alert(1)</script>\n")
    run(str(tmp_path), "--out", str(tmp_path / "out"))
    assert "<script>alert" not in (tmp_path / "out" / "report.html").read_text()
