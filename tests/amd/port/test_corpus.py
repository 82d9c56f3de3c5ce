"""The annotated corpus: each rule finds what it should, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_cuda", reason="tree-sitter is not installed")

from corpus_files import CORPUS, expected, scores

from ratchet.amd.port.compile import compile_clean, why_not
from ratchet.amd.port.patch import edited, new_text
from ratchet.amd.port.porting import PortSettings, port
from ratchet.amd.port.rules import all_rules
from ratchet.amd.port.scan import scan


def test_the_corpus_is_found_as_annotated() -> None:
    _, alone, missed = scores()
    assert (dict(alone), dict(missed)) == ({}, {})


def test_the_corpus_shows_every_rule() -> None:
    shown = {rule for _, _, rule in expected()}
    assert {rule.name for rule in all_rules()} - shown == set()
    assert sum(1 for path in CORPUS.rglob("*") if path.is_file()) >= 60


def test_a_second_port_finds_none_of_what_the_first_fixed(tmp_path: Path) -> None:
    for one in scan(CORPUS):
        path = tmp_path / one.found.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(edited(one))
    fixed = {(one.file, one.rule) for file in scan(CORPUS) for one in file.findings if one.fixable}
    unfixed = {
        (one.file, one.rule) for file in scan(CORPUS) for one in file.findings if not one.fixable
    }
    left = {
        (one.file, one.rule, one.line)
        for file in scan(tmp_path)
        for one in file.findings
        if (one.file, one.rule) in fixed - unfixed
    }
    assert left == set()


def test_what_is_rewritten_still_parses() -> None:
    for one in scan(CORPUS):
        if one.found.kind == "python":
            compile(new_text(one), one.found.name, "exec")


@pytest.mark.slow
def test_what_is_called_clean_compiles() -> None:
    if why := why_not():
        pytest.skip(why)
    compiled = compile_clean(scan(CORPUS), ("gfx942",))
    assert [(one.file, one.why) for one in compiled if one.status == "failed"] == []
    assert sum(one.status == "compiled" for one in compiled) >= 30
    assert all(one.why_not_executed for one in compiled if one.status == "compiled")


def test_without_a_compiler_nothing_is_called_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ratchet.amd.port.compile.find_tool", lambda name: None)
    (tmp_path / "k.cu").write_text("__global__ void k(float* x) { x[0] = 1; }\n")
    result = port(tmp_path, PortSettings(targets=("gfx942", "gfx1100")))
    assert [one.status for one in result.compiled] == ["not compiled"] * 2
    assert "install" in result.compiled[0].why


def test_the_compiler_reads_no_file_of_the_user(tmp_path: Path) -> None:
    if why := why_not():
        pytest.skip(why)
    secret, tree = tmp_path / "secret.h", tmp_path / "tree"
    secret.write_text("its_first_word();\n")
    tree.mkdir()
    kernel = "__global__ void k(float* x) { x[0] = 1; }\n"
    (tree / "names.cu").write_text(f'#include "{secret}"\n{kernel}')
    (tree / "asks.cu").write_text(f'#if __has_include("{secret}")\n#error there\n#endif\n{kernel}')
    result = port(tree, PortSettings(targets=("gfx942",)))
    found = {one.file: (one.status, one.why) for one in result.compiled}
    assert found["asks.cu"] == ("compiled", "")
    assert found["names.cu"] == ("not compiled", f"the header {secret} is not on this machine")


def test_a_tree_s_plain_headers_are_found_and_a_header_alone_may_fail(tmp_path: Path) -> None:
    if why := why_not():
        pytest.skip(why)
    (tmp_path / "sizes.h").write_text("#pragma once\nstruct Sizes { int n; };\n")
    body = (
        "__global__ void {}(float* x, Sizes s) {{ if (threadIdx.x < s.n) x[threadIdx.x] = 1; }}\n"
    )
    (tmp_path / "whole.cu").write_text('#include "sizes.h"\n' + body.format("whole"))
    (tmp_path / "part.cuh").write_text(body.format("part"))
    result = port(tmp_path, PortSettings(targets=("gfx942",)))
    found = {one.file: (one.status, one.why) for one in result.compiled}
    assert found["whole.cu"] == ("compiled", "")
    assert found["part.cuh"][0] == "not compiled" and "alone" in found["part.cuh"][1]
