"""Packages of kernels: installed and loaded without Ratchet, judged again, all or nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from own_recipes import MadeUpJudge, believe, kernels_of, recipe

from ratchet.base.errors import PublishError, RecipeError
from ratchet.judge.court import machines
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages.cpp import compile_kernel
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.train import publish
from ratchet.train.publish import export_kernels, run_export
from ratchet.train.publish.admitted import AdmittedKernel, AdmittedRecipe
from ratchet.train.publish.layouts import ExportLayout, hub_layout, wheel_layout
from ratchet.train.publish.package import KERNELS, KernelPackage
from ratchet.train.recipe.installed import InstalledKernel, RegionKernel

pytestmark = pytest.mark.compiler
KEY = "a1" * 32
REGION = '''"""A region of a compiled training step, key KEY."""

from __future__ import annotations

import torch

from ratchet import Case, Problem, TensorSpec

aten = torch.ops.aten


def reference(a0, scalars):
    return (aten.mul.Tensor(a0, 2),)
'''


TWICE = """
#include "ratchet_abi.h"

RATCHET_ENTRY twice(const ratchet_tensor* t, int64_t, const double*, int64_t) {
    const float* in = (const float*)t[0].data;
    float* out = (float*)t[1].data;
    for (int64_t i = 0; i < ratchet_numel(&t[0]); ++i) out[i] = 2.0f * in[i];
    return RATCHET_DONE;
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machines, "KernelJudge", MadeUpJudge())
    made = recipe()
    made.save(tmp_path / "recipe.json")
    believe(
        ledger(tmp_path), tuple(one for one in made.kernels if isinstance(one, InstalledKernel))
    )
    return tmp_path


def ledger(folder: Path) -> str:
    return f"sqlite:///{folder / 'ledger.db'}"


def package(*libraries: str, language: str = "") -> KernelPackage:
    """A package of kernels that nobody proved; a stand-in is what was built."""
    kernels = [(one, one.find()) for one in kernels_of(*libraries)]
    if language == "triton":
        kernels = [
            (InstalledKernel(library=name, entry=k.entry, hash=k.hash, isa="gfx942"), k)
            for name in libraries
            for k in LIBRARY[name].kernels("gfx942")
        ]
    admitted = tuple(
        AdmittedKernel(installed=one, kernel=kernel, built=Path(__file__), verdict=None)
        for one, kernel in kernels
    )
    made = AdmittedRecipe(
        recipe=recipe(), kernels=admitted, left_out={}, machine="a CPU", versions={"torch": "2"}
    )
    return KernelPackage(made, "own_kernels")


def variant(layout: ExportLayout) -> dict[str, bytes]:
    """The files of the build variant, relative to it."""
    found = [path for path in layout.files if path.parts[0] == "build"]
    return {"/".join(path.parts[2:]): layout.files[path] for path in found}


def test_a_wheel_project_is_loaded_and_judged_before_it_appears(folder: Path) -> None:
    out = folder / "out"
    result = export_kernels(
        folder / "recipe.json", "wheel", out, name="norm-kernels", ledger=ledger(folder)
    )
    assert {one.after for one in result.kernels} == {"correct"}
    assert {one.library for one in result.kernels} == {"adamw", "rms_norm"}
    assert result.checks[0].startswith("3 tests")
    assert set(result.files) == {
        one.relative_to(out).as_posix() for one in out.rglob("*") if one.is_file()
    }
    assert {one.name for one in folder.iterdir()} == {"out", "recipe.json", "ledger.db"}
    files = {path.relative_to(out / "src/norm_kernels"): path for path in out.rglob("src/*/*")}
    assert not any(path.suffix == ".so" for path in files)


@pytest.mark.parametrize("fault", ["the op's test fails", "the judge says wrong"])
def test_nothing_appears_if_a_check_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "the judge says wrong":
        judge = MadeUpJudge(right={"rms_norm_forward": "wrong"})
        monkeypatch.setattr(machines, "KernelJudge", judge)
        monkeypatch.setattr("ratchet.train.publish.tested", lambda *_: (0, {}))
    else:
        monkeypatch.setattr(KernelPackage, "tests", lambda *_: b"raise AssertionError('rope')\n")
    with pytest.raises(PublishError, match=r"is wrong after the export|nothing is written.*rope"):
        export_kernels(folder / "recipe.json", "wheel", folder / "out", ledger=ledger(folder))
    assert {one.name for one in folder.iterdir()} == {"recipe.json", "ledger.db"}


def test_a_kernel_that_is_not_proven_here_is_judged_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = MadeUpJudge(right=dict.fromkeys(("rms_norm_forward", "gradient_square_sum"), "wrong"))
    monkeypatch.setattr(machines, "KernelJudge", judge)
    recipe().save(tmp_path / "recipe.json")
    with pytest.raises(PublishError, match=r"no kernel of .* is proven on this machine"):
        export_kernels(tmp_path / "recipe.json", "wheel", tmp_path / "out", ledger=ledger(tmp_path))
    assert ("rms_norm_forward", False) in judge.asked
    assert not (tmp_path / "out").exists()


def test_a_call_that_cannot_be_answered_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, empty = folder / "full", folder / "empty.json"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    recipe(kernels=()).save(empty)

    def refused(why: str, subject: Path, out: Path, **more: Any) -> None:
        with pytest.raises((PublishError, RecipeError), match=why):
            run_export(str(subject), more.pop("form", "wheel"), out, ledger=ledger(folder), **more)

    good = folder / "recipe.json"
    refused("holds files already", good, full)
    refused("holds no kernels", empty, folder / "out")
    refused("cannot be read", folder / "none.json", folder / "out")
    refused("small letters", good, folder / "out", name="Not A Name")
    refused("--script goes with --to patch", good, folder / "out", script=good)
    monkeypatch.setattr(publish, "find_spec", lambda _: None)
    refused(r"torch-ratchet\[publish\]", good, folder / "out", form="kernels")
    assert not (folder / "out").exists() and (full / "mine.txt").read_text() == "mine"


def test_what_is_read_back_is_the_kernel_that_was_written(tmp_path: Path) -> None:
    made = package("rms_norm", "linear_cross_entropy")
    layout = wheel_layout(made)
    publish.write_files(tmp_path, layout.files)
    found = publish.read_back(tmp_path, layout)
    assert found == {one.kernel.hash: one.kernel for one in made.admitted.kernels}
    source = next((tmp_path / layout.package / "csrc").glob("rms_norm*.cpp"))
    source.write_text(source.read_text() + "// changed\n")
    changed = publish.read_back(tmp_path, layout)
    assert any(one.hash != hash for hash, one in changed.items())


def test_a_repository_of_kernels_has_its_layout(tmp_path: Path) -> None:
    layout = hub_layout(package("rms_norm"))
    files = variant(layout)
    metadata = json.loads(files.pop("metadata.json"))
    assert metadata["name"] == "own-kernels" and metadata["backend"] == {"type": "cpu"}
    digests = {
        path: base64.b64encode(hashlib.sha256(text).digest()).decode()
        for path, text in files.items()
    }
    assert metadata["digest"] == {"algorithm": "sha256", "files": digests}
    assert f"torch.ops.{metadata['id']}." in files["__init__.py"].decode()
    assert "own_kernels/__init__.py" in files and json.loads(files[KERNELS])["features"]
    assert any(path.startswith("native/") for path in files)
    folders = {path.parts[0] for path in layout.files}
    assert folders == {"README.md", "build", "build.toml", "tests", "torch-ext"}
    (name,) = {path.parts[1] for path in layout.files if path.parts[0] == "build"}
    assert name.startswith("torch2") and "-cpu-" in name
    card = layout.files[next(path for path in layout.files if path.name == "README.md")].decode()
    assert card.startswith("---\nlicense: apache-2.0") and "`rms_norm_forward` | cpp" in card


def test_kernels_in_triton_are_universal() -> None:
    layout = hub_layout(package("rms_norm", language="triton"))
    files = variant(layout)
    assert {path.parts[1] for path in layout.files if path.parts[0] == "build"} == {
        "torch-universal"
    }
    assert json.loads(files["metadata.json"])["backend"] == {"type": "rocm"}
    (row, *_) = json.loads(files[KERNELS])["kernels"]
    assert row["source"] in files and row["language"] == "triton" and not row["library"]
    assert "setup.py" not in map(str, wheel_layout(package("rope", language="triton")).files)


def test_a_region_becomes_an_op_with_its_kernel(tmp_path: Path) -> None:
    cases = (Case(name="c", inputs=(TensorSpec(shape=(2, 3), dtype="float32"),), timed=True),)
    problem = Problem(name="r", reference="reference", cases=cases, text=REGION.replace("KEY", KEY))
    kernel = Kernel(name="r", language="cpp", source=TWICE, entry="twice")
    region = RegionKernel(
        region=KEY, hash=kernel.hash, kernel=kernel.as_json(), problem=problem.as_json()
    )
    built = compile_kernel(kernel, cache=tmp_path / "cache")
    own = AdmittedKernel(installed=region, kernel=kernel, built=built, verdict=None)
    made = AdmittedRecipe(recipe=recipe(), kernels=(own,), left_out={}, machine="m", versions={})
    layout = wheel_layout(KernelPackage(made, "own_region"))
    publish.write_files(tmp_path, layout.files)
    assert publish.tested(tmp_path, layout) == (1, {})
    assert publish.read_back(tmp_path, layout) == {kernel.hash: kernel}


@pytest.mark.skipif(find_spec("kernels") is None, reason="the package kernels is not installed")
def test_kernels_loads_the_repository(folder: Path) -> None:
    result = export_kernels(
        folder / "recipe.json", "kernels", folder / "hub", ledger=ledger(folder)
    )
    assert "kernels.get_local_kernel" in result.checks[0]
    (older,) = (folder / "hub" / "build").glob("*/kernels_train_py_make/__init__.py")
    code = f"import runpy; assert callable(runpy.run_path({str(older)!r})['rms_norm'])"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_wheel_works_where_ratchet_is_not(folder: Path) -> None:
    """It is built by pip, installed into a folder, and runs inductor's code without Ratchet."""
    out, place = folder / "out", folder / "installed"
    export_kernels(folder / "recipe.json", "wheel", out, name="own", ledger=ledger(folder))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(out)]
    if find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed")
    subprocess.run(built, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    install = [*pip, "install", "-q", "--no-deps", "--target", str(place), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    (place / "use.py").write_text(USE)
    done = subprocess.run(
        [sys.executable, "-I", str(place / "use.py"), str(place)],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]


USE = """
import sys

sys.path.insert(0, sys.argv[1])
sys.modules["ratchet"] = None
import own
import torch

assert not own.LEFT_OUT, own.LEFT_OUT
x, w = (torch.randn(4, 64, requires_grad=True), torch.randn(64, requires_grad=True))
wanted = torch.nn.functional.rms_norm(x, (64,), w, 1e-6)
expected = torch.autograd.grad(wanted.square().sum(), (x, w))
for call in (own.rms_norm, torch.compile(lambda *given: own.rms_norm(*given), fullgraph=True)):
    found = call(x, w, 1e-6)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), (x, w)), expected)
assert not own.FALLBACKS, own.FALLBACKS
"""
