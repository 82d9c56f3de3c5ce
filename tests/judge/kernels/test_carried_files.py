"""Files beside a kernel: found by its includes and names, kept behind its text, written again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel_file import load_kernel
from ratchet.judge.kernels.source_files import files_beside, split_files, with_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    home = tmp_path / "project" / "csrc"
    (home / "inc").mkdir(parents=True)
    (tmp_path / "project" / "shared.h").write_text("int shared;\n")
    (home / "inc" / "rows.cuh").write_text('#pragma once\n#include "../width.h"\nint rows;')
    (home / "width.h").write_text("#include <cuda_runtime.h>\nint width;\n")
    (home / "soft.hip").write_text(
        '#include "inc/rows.cuh"\n#include "../shared.h"\n#include "absent.h"\n'
        '#include <torch/extension.h>\nPYBIND11_MODULE(x, m) {\n  m.def("forward", &f);\n}\n'
    )
    (tmp_path / "project" / "kernel.py").write_text(
        "import os\nfrom torch.utils import cpp_extension\n"
        'at = os.path.join(os.path.dirname(__file__), "csrc", "soft.hip")\n'
        'lib = cpp_extension.load("lib", [at])\n\n\ndef run(x, scalars):\n    return lib.f(x)\n'
    )
    return home


def test_headers_follow_a_source_and_its_lines_stay(tree: Path, tmp_path: Path) -> None:
    kernel = load_kernel(tree / "soft.hip", entry="anything", or_only_one=True)
    assert kernel.entry == "forward"
    text, carried = split_files(kernel.source)
    assert text == (tree / "soft.hip").read_text()
    assert carried.place == "csrc"
    assert set(carried.texts) == {"shared.h", "csrc/inc/rows.cuh", "csrc/width.h"}
    home = carried.write(tmp_path / "again")
    assert (home / "inc" / "rows.cuh").read_text() == (tree / "inc" / "rows.cuh").read_text()
    assert (home / ".." / "shared.h").exists()


def test_sources_that_python_names_are_carried_with_their_headers(tree: Path) -> None:
    kernel = load_kernel(tree.parent / "kernel.py", entry="run")
    text, carried = split_files(kernel.source)
    assert text == (tree.parent / "kernel.py").read_text()
    assert carried.place == ""
    assert "csrc/soft.hip" in carried.texts and "csrc/width.h" in carried.texts
    compile(kernel.source, "kernel.py", "exec")


def test_headers_that_strings_include_are_carried(tree: Path) -> None:
    path = tree.parent / "inline.py"
    path.write_text('source = """\n#include "csrc/width.h"\nint f();\n"""\n# cpp_extension\n')
    assert set(files_beside(path, path.read_text()).texts) == {"csrc/width.h"}


def test_only_sources_and_headers_are_carried(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("word")
    path = tmp_path / "a.hip"
    path.write_text('#include "secret"\n#include "/etc/hostname"\n#include "../../../../x.h"\n')
    assert files_beside(path, path.read_text()).texts == {}


def test_a_file_that_includes_too_much_is_told(tmp_path: Path) -> None:
    for at in range(130):
        (tmp_path / f"h{at}.h").write_text("")
    path = tmp_path / "a.hip"
    path.write_text("".join(f'#include "h{at}.h"\n' for at in range(130)))
    with pytest.raises(KernelError, match="more than 128 files"):
        files_beside(path, path.read_text())


@pytest.mark.parametrize("name", ["../up.h", "/etc/x.h", "a/../../b.h", ".."])
def test_a_forged_name_cannot_leave_its_folder(name: str) -> None:
    with pytest.raises(KernelError, match="leaves its folder"):
        split_files(f"int f;\n// ratchet: place .\n// ratchet: file {name}\n// |int x;\n")
    with pytest.raises(KernelError, match="is none"):
        split_files("// ratchet: place .\nint f;\n")


def test_a_source_without_files_is_itself() -> None:
    source = "int main() {}"
    text, carried = split_files(source)
    assert with_files(text, carried, "//") == source


def test_a_function_with_the_problem_s_name_does_not_answer_for_the_class(tmp_path: Path) -> None:
    path = tmp_path / "answer.py"
    helper = "import torch\ndef softmax(x):\n    return x.softmax(-1)\n"
    path.write_text(f"{helper}class ModelNew(torch.nn.Module):\n    forward = softmax\n")
    assert load_kernel(path, entry="softmax", of_model=True).entry == "ModelNew"
    told = r"softmax is a function, and .* write class ModelNew"
    with pytest.raises(KernelError, match=told):
        load_kernel(path, entry="softmax", of_model=True, named=True)
    path.write_text(helper)
    with pytest.raises(KernelError, match=told):
        load_kernel(path, entry="softmax", of_model=True)
