"""Kernels out of a ported tree: extensions as one text, their problems, and verdicts on them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("tree_sitter_cuda", reason="tree-sitter is not installed")

from corpus_files import CORPUS, write_problems

from ratchet.amd.compile.hip_compiler import find_hip
from ratchet.amd.port import proofs as port_proofs
from ratchet.amd.port.porting import PortSettings, port
from ratchet.amd.port.proofs import PortedKernel, merged, ported_kernels, problem_of, prove
from ratchet.amd.port.scan import scan
from ratchet.amd.port.show import render_port_page, verdicts
from ratchet.base.errors import RatchetError
from ratchet.cli import main
from ratchet.judge.court.court import Court
from ratchet.judge.sandbox.rocm import find_tool
from ratchet.judge.trial.kernel_trial import why_no_kernels

MODEL = "class ModelNew:\n    pass\n"
SOURCE = "SOURCE = r'''\n__global__ void k(float* x) { x[0] = 1; }\n'''\n"


@pytest.fixture(scope="module")
def offered() -> dict[str, PortedKernel]:
    """The kernels of the corpus's extensions and modules, by function or file."""
    found = {}
    for folder in ("extensions", "inline"):
        for one in ported_kernels(scan(CORPUS / folder)):
            entry = one.kernel.entry
            found[Path(one.file).stem if entry == "ModelNew" else entry] = one
    return found


def test_the_corpus_offers_ten_extensions_and_twenty_modules(
    offered: dict[str, PortedKernel], tmp_path: Path
) -> None:
    assert len([one for one in offered.values() if one.kernel.language == "torch"]) == 20
    assert len({Path(one.file).parent for one in offered.values() if "/" in one.file}) == 10
    assert write_problems(tmp_path, CORPUS / "inline") == 20
    write_problems(tmp_path)
    assert {name for name, one in offered.items() if problem_of(one, tmp_path) is None} == set()


def test_an_extension_is_one_text_with_its_headers_once(offered: dict[str, PortedKernel]) -> None:
    forward, backward = offered["conv_forward"], offered["conv_backward"]
    assert forward.kernel.source == backward.kernel.source
    assert forward.file.endswith("conv_forward.cu") and backward.file.endswith("conv_backward.cu")
    source = forward.kernel.source
    assert source.count("struct ConvParams {") == 1 and "pragma once" not in source
    assert '#include "conv.h"' not in source
    assert {Path(one).name for one in forward.sources} >= {"conv.cpp", "conv.h", "conv_forward.cu"}
    gate = offered["gate"].kernel.source
    assert "PORT_MASK64(0xffffffff)" in gate  # the patch is in it


def test_lines_keep_their_names() -> None:
    texts = {
        "a/k.cu": '// one\n#include "w.cuh"\nint three;\n',
        "a/w.cuh": "#pragma once\nint w;\n",
    }
    text, files = merged(["a/k.cu"], texts)
    assert files == ("a/k.cu", "a/w.cuh")
    lines = text.split("\n")
    at = lines.index("int three;")
    assert '#line 3 "a/k.cu"' in lines[at - 1]


def test_sources_that_do_not_mention_cuda_are_a_part_too(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(
        "from torch.utils.cpp_extension import CUDAExtension\n"
        "made = CUDAExtension('a', ['k.cu', 'bind.cpp'])\n"
    )
    (tmp_path / "shape.h").write_text("#pragma once\nstruct Shape { int rows; };\n")
    (tmp_path / "bind.cpp").write_text(
        '#include <torch/extension.h>\n#include "shape.h"\nat::Tensor f(at::Tensor x);\n'
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\n'
    )
    (tmp_path / "k.cu").write_text(
        '#include "shape.h"\n__global__ void k(Shape s) {}\n'
        "at::Tensor f(at::Tensor x) { return x; }\n"
    )
    (found,) = ported_kernels(scan(tmp_path))
    assert (found.file, found.kernel.entry) == ("k.cu", "f")
    assert found.kernel.source.count("struct Shape") == 1
    assert set(found.sources) == {"k.cu", "bind.cpp", "shape.h"}


def test_what_the_patch_leaves_is_not_executed(
    offered: dict[str, PortedKernel], tmp_path: Path
) -> None:
    write_problems(tmp_path)
    result = port(CORPUS / "inline" / "wmma_matmul.py", PortSettings(compiles=False))
    with Court("sqlite://", must_keep=False) as court:
        (proof,) = prove(result, court, targets=("gfx942",), problems=tmp_path).proofs
    assert proof.status == "not executed" and "wmma_matmul.py:12: library-header" in proof.why


def test_a_kernel_without_a_problem_is_told_which_file_to_write(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SOURCE + MODEL)
    result = port(tmp_path, PortSettings(compiles=False))
    with Court("sqlite://", must_keep=False) as court:
        result = prove(result, court, targets=("gfx942",))
        with pytest.raises(RatchetError, match="name a folder"):
            prove(result, court, targets=("gfx942",), problems=tmp_path / "nothing")
    (proof,) = result.proofs
    assert proof.why.endswith("write problems/net.py")
    assert "not executed on gfx942" in render_port_page(result)
    assert verdicts(result) == {}


def test_a_wrong_kernel_is_told_with_the_warnings_that_the_patch_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its code for tensor cores stands under __CUDA_ARCH__: on AMD nothing is computed."""
    result = port(CORPUS / "extensions" / "tensor_gemm", PortSettings(compiles=False))
    said = []
    for status in ("wrong", "correct"):
        decided = SimpleNamespace(verdict=SimpleNamespace(status=status, reason="error 11.5"))
        monkeypatch.setattr(port_proofs, "judge_named", lambda *_, one=decided: one)
        monkeypatch.setattr(port_proofs, "problem_of", lambda *_: "gemm")
        with Court("sqlite://", must_keep=False) as court:
            said += [one.why for one in prove(result, court, targets=("gfx1100",)).proofs]
    place = "gemm.cu:6: arch-switch (__CUDA_ARCH__ >= 800)"
    assert said == [f"error 11.5; the patch leaves {place}", ""]


def test_a_function_of_a_shipped_problem_has_it() -> None:
    (one,) = ported_kernels(scan(Path(__file__).parents[3] / "examples" / "cuda_softmax"))
    assert problem_of(one, Path("nowhere")) == "softmax"


@pytest.mark.skipif(
    find_tool("clang") is None
    or shutil.which("ld") is None
    or not find_hip().whole
    or why_no_kernels() is not None,
    reason="clang, HIP's headers (triton), rocm-device-libs or the sandbox are missing",
)
@pytest.mark.compiler
@pytest.mark.thorough
def test_one_command_goes_from_a_tree_to_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "moe_gate"
    shutil.copytree(CORPUS / "extensions" / "moe_gate", tree)
    (tree / "problems").mkdir()
    write_problems(tree / "problems", tree)
    words = ["port", str(tree), "--prove", "--target", "gfx942", "--time-limit", "15m", "--json"]
    words += ["--ledger", "sqlite://", "--out", str(tmp_path / "out")]
    assert main(words) == 1  # the tree itself still has its findings
    (proof,) = json.loads(capsys.readouterr().out)["proofs"]
    assert (proof["entry"], proof["status"]) == ("gate", "correct"), proof["why"]
    assert "executed right on gfx942" in (tmp_path / "out" / "report.html").read_text()


KERNEL = """#pragma once
#include <cstdio>
__global__ void total(const int* x, int* y) {
  int v = x[threadIdx.x];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
  if (threadIdx.x % 32 == 0) y[threadIdx.x / 32] = v;
}
int run(int count);
"""
RUN = """#include "total.cuh"
int run(int count) {
  int host[64], sums[2], *x, *y;
  for (int i = 0; i < 64; ++i) host[i] = i;
  cudaMalloc(&x, 256), cudaMalloc(&y, 8);
  cudaMemcpy(x, host, 256, cudaMemcpyHostToDevice);
  total<<<1, count>>>(x, y);
  if (cudaMemcpy(sums, y, 8, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
  return printf("sums %d and %d\\n", sums[0], sums[1]), sums[0] != 496 || sums[1] != 1520;
}
"""
PROGRAMS = {
    "sums/total.cuh": KERNEL,
    "sums/total.cu": RUN,
    "sums/main.cpp": """#include <fstream>
int run(int count);
int main() { int count = 0; std::ifstream("data/count.txt") >> count; return run(count); }""",
    "sums/data/count.txt": "64",
    "fault/fault.cu": KERNEL + RUN.partition("\n")[2] + "int main() { return run(1024); }",
    "asks/asks.cu": KERNEL + 'int main(int n, char**) { if (n < 2) return puts("a size?"), 2; }',
    "asks/peeks.cu": KERNEL
    + """
int main() { FILE* f = fopen("OUTSIDE", "r"); puts(f ? "open" : "closed"); return 3; }""",
}


@pytest.mark.skipif(
    find_tool("clang") is None or not find_hip().whole or why_no_kernels() is not None,
    reason="clang, HIP's headers (triton), rocm-device-libs or the sandbox are missing",
)
@pytest.mark.compiler
@pytest.mark.slow
def test_programs_of_a_tree_run(tmp_path: Path) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("x")
    for name, text in PROGRAMS.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text.replace("OUTSIDE", str(outside)))
    result = port(tmp_path / "tree", PortSettings(compiles=False))
    with Court("sqlite://", must_keep=False) as court:
        result = prove(result, court, targets=("gfx942",))
    found = {one.file: (one.status, one.why) for one in result.proofs}
    assert sorted(found) == ["asks/asks.cu", "asks/peeks.cu", "fault/fault.cu", "sums/main.cpp"]
    assert found["sums/main.cpp"] == (
        "ran",
        "1 launch of 1 kernel; none failed, exit code 0; it says last: sums 496 and 1520",
    ), found
    status, why = found["fault/fault.cu"]
    assert status == "failed" and "exit code 1; total: " in why and "fault.cu:4" in why
    before = "it ends before a launch: exit code {}; it says last: {}"
    assert found["asks/asks.cu"] == ("not executed", before.format(2, "a size?"))
    assert found["asks/peeks.cu"] == ("not executed", before.format(3, "closed"))
    assert "1 of 4 programs ran to the end" in render_port_page(result)
