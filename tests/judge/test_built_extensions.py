"""C++ that a kernel in torch builds as it is loaded: built once, private, and never believed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from answers import assert_right

from ratchet.errors import CompilerMissing
from ratchet.judge import isolation, kernel_timing
from ratchet.judge.built_extensions import NoFiles, keep
from ratchet.judge.kernel_trial import KernelJudge
from ratchet.judge.workers import extensions
from ratchet.judge.workers.extensions import FOLDER, SEEN
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages import cpp
from ratchet.kernels.problem import Problem
from ratchet.kernels.problem_file import load_problem

RELU = Path(__file__).parent / "kernelbench_like" / "level1" / "1_relu.py"
needs_bubblewrap = pytest.mark.skipif(
    isolation.bubblewrap() is None, reason="bubblewrap does not work here"
)


@pytest.fixture
def short(few_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two launches, so that one process follows another; answers are asked for, not speed."""
    monkeypatch.setattr(kernel_timing, "MIN_LAUNCHES", 2)
    monkeypatch.setattr(kernel_timing, "MIN_ROUNDS", 2)
    monkeypatch.setattr(kernel_timing, "MAX_ROUNDS", 2)


@pytest.fixture(scope="module")
def asked() -> Problem:
    return load_problem(RELU, scale=None)


def packed(folder: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    monkeypatch.setenv(FOLDER, str(folder))
    told, descriptor = extensions.packed()
    return [list(one) for one in told], descriptor


def test_what_was_built_is_kept_with_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"relu/relu.so": b"\x7fELF" * 999, "relu/.ninja_log": b"# ninja", "empty": b""}
    told, descriptor = packed(tmp_path, {**files, "relu/lock": b""}, monkeypatch)
    kept = keep(told, descriptor)
    assert kept is not None
    found = {one.relative_to(kept).as_posix(): one for one in kept.rglob("*") if one.is_file()}
    assert {name: one.read_bytes() for name, one in found.items()} == files
    assert all(
        one.stat().st_mtime_ns == (tmp_path / name).stat().st_mtime_ns
        for name, one in found.items()
    )
    assert kept.stat().st_mode & 0o777 == 0o755
    shutil.rmtree(kept)
    os.close(descriptor)
    assert keep([], os.memfd_create("nothing")) is None


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
    before = set(Path("/tmp").glob(f"{isolation.SCRATCH_PREFIX}{os.getpid()}-*"))
    with pytest.raises(NoFiles):
        keep(told, descriptor)
    assert set(Path("/tmp").glob(f"{isolation.SCRATCH_PREFIX}{os.getpid()}-*")) == before
    os.close(descriptor)


BUILDS = f"""
import os, pathlib, torch
# torch.utils.cpp_extension is not asked: this writes what it would
own, seen = pathlib.Path(os.environ[{FOLDER!r}]), pathlib.Path({SEEN!r})
FIRST = not seen.exists()
if FIRST:
    (own / "relu").mkdir(parents=True)
    (own / "relu" / "relu.so").write_text("built")

class ModelNew(torch.nn.Module):
    def forward(self, x):
        if (own / "relu" / "relu.so").read_text() != "built":
            raise RuntimeError("nothing is built")
        (own / "relu" / "seen").write_text(str(float(x.flatten()[0])))  # to be told to the next
        if not FIRST:
            if [one.name for one in seen.rglob("*")] != ["relu", "relu.so"]:
                raise RuntimeError("it has another's notes")
            for attempt in (seen / "new", seen / "relu" / "relu.so"):
                try:
                    attempt.write_text("poison")
                except OSError:
                    continue
                raise RuntimeError("it writes to what others read")
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
    assert not list(Path("/tmp").glob(f"{isolation.SCRATCH_PREFIX}{os.getpid()}-*/relu"))
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
began, found = time.monotonic(), os.path.exists("/ratchet-extensions")
built = load_inline(name="relu_ext", cpp_sources=source, functions=["relu_forward"])
if found and os.path.getmtime(built.__file__) > os.path.getmtime("/ratchet-extensions"):
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
