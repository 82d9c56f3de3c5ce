"""The whole kernels of docs/reference/kernels.md, as a reader copies them: judged right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from answers import is_right_answer

from ratchet.base.errors import CompilerMissing
from ratchet.judge import abi
from ratchet.judge.court.calls import judge
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.trial import plan

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "kernels.md").read_text()
KERNELS = dict(re.findall(r"```cpp\n// (\w+)\.cpp: (.*?)```", PAGE, re.DOTALL))


@pytest.mark.compiler
@pytest.mark.usefixtures("one_judge")
@pytest.mark.parametrize("name", ["squared_relu", "softmax"])
def test_a_kernel_of_the_docs_is_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        cpp.find_compiler()
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    for setting, few in (("LAUNCHES", 2), ("MIN_ROUNDS", 2), ("MAX_ROUNDS", 2), ("LOOKS", 1)):
        monkeypatch.setattr(plan, setting, few)
    assert set(KERNELS) == {"squared_relu", "softmax"}
    path = tmp_path / f"{name}.cpp"
    path.write_text(f"// {KERNELS[name]}")
    verdict = judge(path, name, tier="ci")
    assert is_right_answer(verdict.status, verdict.reason), verdict.reason


def test_the_docs_name_the_fields_and_the_codes_of_the_interface() -> None:
    fields = re.findall(r"^\| `(?:void\*|int64_t) (\w+)(?:\[6\])?` \|", PAGE, re.MULTILINE)
    assert fields == [name for name, *_ in abi.RatchetTensor._fields_]
    assert f"at most {abi.MAX_DIMENSIONS}" in PAGE
    codes = dict(re.findall(r"\| (\d+) `RATCHET_\w+` \| (\w+) ", PAGE))
    assert {dtype: int(code) for code, dtype in codes.items()} == abi.DTYPE_CODES
