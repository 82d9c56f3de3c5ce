"""C++ that a kernel in torch builds as it is loaded: built once, private, and never believed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from answers import assert_right

from ratchet.base.errors import CompilerMissing
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import load_problem
from ratchet.judge.sandbox import bubblewrap
from ratchet.judge.sandbox.confine import EXTENSIONS
from ratchet.judge.sandbox.shared_memory import PackedFiles
from ratchet.judge.trial import plan
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.trial.sources import NoFiles, checked

RELU = Path(__file__).parents[1] / "kernelbench_like" / "level1" / "1_relu.py"
needs_bubblewrap = pytest.mark.skipif(
    bubblewrap.program() is None, reason="bubblewrap does not work here"
)


@pytest.fixture
def short(few_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two launches, so that one process follows another; answers are asked for, not speed."""
    monkeypatch.setattr(plan, "MIN_LAUNCHES", 2)
    monkeypatch.setattr(plan, "MIN_ROUNDS", 2)
    monkeypatch.setattr(plan, "MAX_ROUNDS", 2)


@pytest.fixture(scope="module")
def asked() -> Problem:
    return load_problem(RELU, scale=None)


def test_what_was_built_is_kept_with_its_times(tmp_path: Path) -> None:
    files = {"relu/relu.so": b"\x7fELF" * 999, "relu/.ninja_log": b"# ninja", "empty": b""}
    own, other = tmp_path / "own", tmp_path / "other"
    for name, content in {**files, "relu/lock": b""}.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_bytes(content)
    packed = PackedFiles.of(own)
    kept = checked([list(one) for one in packed.files], packed.descriptor)
    assert kept is not None
    kept.unpack(other)
    found = {one.relative_to(other).as_posix(): one for one in other.rglob("*") if one.is_file()}
    assert {name: one.read_bytes() for name, one in found.items()} == files
    assert all(
        one.stat().st_mtime_ns == (own / name).stat().st_mtime_ns for name, one in found.items()
    )
    with pytest.raises(PermissionError):
        os.pwrite(kept.descriptor, b"poison", 0)
    kept.close()
    assert checked([], os.memfd_create("nothing")) is None


@pytest.mark.parametrize(
    "told",
    [
        None,
        "text",
        [["../outside", 0, 3]],
        [["/etc/passwd", 0, 3]],
        [["a/./b", 0, 3]],
        [["a//b", 0, 3]],
        [["new\nline", 0, 3]],
        [["a/b/c/d/e", 0, 3]],
        [["a", 0, 2]],
        [["a", 0, 3], ["a", 0, 0]],
        [["a", 0, 3], ["a/b", 0, 0]],
        [["a", -1, 3]],
        [["a", 0, True]],
        [["a", 0, 1 << 70]],
        [["a", 0, 4], ["b", 0, -1]],
        [["a", 1 << 80, 3]],
        [["a", 0]],
        [["a", 0, 3]] + [[f"b{at}", 0, 0] for at in range(300)],
    ],
)
def test_a_list_of_files_is_not_believed(told: Any) -> None:
    descriptor = os.memfd_create("three")
    os.write(descriptor, b"abc")
    with pytest.raises(NoFiles):
        checked(told, descriptor)
    os.close(descriptor)


BUILDS = f"""
import os, pathlib, torch
# torch.utils.cpp_extension is not asked: this writes what it would
own = pathlib.Path(os.environ[{EXTENSIONS!r}])
FIRST = not own.exists()
if FIRST:
    (own / "relu").mkdir(parents=True)
    (own / "relu" / "relu.so").write_text("built")
elif [one.name for one in own.rglob("*")] != ["relu", "relu.so"]:
    raise RuntimeError("it has another's notes")
if any(os.readlink(f"/proc/self/fd/{{n}}").startswith("/memfd:") for n in range(3, 64)
       if os.path.islink(f"/proc/self/fd/{{n}}")):
    raise RuntimeError("it holds what others read")

class ModelNew(torch.nn.Module):
    def forward(self, x):
        if (own / "relu" / "relu.so").read_text() != "built":
            raise RuntimeError("nothing is built")
        (own / "relu" / "seen").write_text(str(float(x.flatten()[0])))  # to be told to the next
        return torch.relu(x){{extra}}
"""


@needs_bubblewrap
def test_later_processes_have_what_the_first_built_and_no_notes(
    judge: KernelJudge, asked: Problem, short: None
) -> None:
    source = BUILDS.replace("{extra}", "")
    verdict = judge.judge(
        Kernel(name="builds", language="torch", source=source, entry="ModelNew"), asked
    )
    assert_right(verdict)
    assert "extensions" in {one.check for one in verdict.evidence}
    # The second process did run: one that is wrong from then on is found out.
    source = BUILDS.replace("{extra}", " + (not FIRST)")
    verdict = judge.judge(
        Kernel(name="differs", language="torch", source=source, entry="ModelNew"), asked
    )
    assert verdict.status == "wrong", verdict.reason


INLINE = """
import os, time
import torch
from torch.utils.cpp_extension import load_inline
{before}
source = '''
torch::Tensor relu_forward(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const float* a = x.data_ptr<float>();
    float* b = y.data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); ++i) b[i] = a[i] > 0 ? a[i] : 0;
    return y;
}
'''
own = os.environ["TORCH_EXTENSIONS_DIR"]
found, began = os.path.exists(own), time.time()
built = load_inline(name="relu_ext", cpp_sources=source, functions=["relu_forward"])
if found and os.path.getmtime(built.__file__) > began:
    raise RuntimeError("it was built again")

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return built.relu_forward(x.contiguous())
"""


def inline(before: str = "") -> Kernel:
    source = INLINE.replace("{before}", before)
    return Kernel(name="inline", language="torch", source=source, entry="ModelNew")


def test_what_cannot_be_built_says_what_to_do(judge: KernelJudge, asked: Problem) -> None:
    verdict = judge.judge(inline("os.environ['PATH'] = '/nowhere'"), asked)
    assert verdict.status == "refused"
    assert "Ninja is required" in verdict.reason
    assert "give the C++ source as a .cpp kernel" in verdict.reason
    assert "\n" not in verdict.reason


def _can_build() -> bool:
    try:
        cpp.find_compiler()
    except CompilerMissing:
        return False
    return shutil.which("ninja") is not None


@needs_bubblewrap
@pytest.mark.compiler
@pytest.mark.thorough
@pytest.mark.skipif(not _can_build(), reason="load_inline needs ninja and a C++ compiler")
def test_load_inline_is_built_once(judge: KernelJudge, asked: Problem, short: None) -> None:
    verdict = judge.judge(inline(), asked, time_limit_s=400)
    assert_right(verdict)
    assert "extensions" in {one.check for one in verdict.evidence}
