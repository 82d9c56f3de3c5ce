"""Commands on GPUs that cannot be used as asked: each answers in a line, with a remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SIMULATION = Path(__file__).parents[1] / "simulated_gpu"
SCRIPT = """
import contextlib, io, json, sys
from ratchet.cli import main
said = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    said.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(said))
"""
ON_GPU = ("--device", "cuda")
KERNEL = "import torch\ndef silu(x, s):\n    return (torch.nn.functional.silu(x),)\n"
OLD, HIDDEN = "mend this: The NVIDIA driver on your system is too old", "unset CUDA_VISIBLE_DEVICES"


def answers(
    folder: Path, *commands: tuple[str, ...], target: str = "sm_90", **variables: str
) -> list[tuple[int, str, str]]:
    """Run commands in one process on a simulated GPU; return exit codes, output and errors."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("a GPU is here: nothing is to be simulated")
    others = filter(None, [os.environ.get("PYTHONPATH")])
    given = {
        "PYTHONPATH": os.pathsep.join([str(SIMULATION), *others, *sys.path]),
        "SIMULATED_GPU": target,
        "RATCHET_LEDGER": str(folder / "ledger.db"),
    }
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        env={**os.environ, **given, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return [tuple(one) for one in json.loads(found.stdout.splitlines()[-1])]


@pytest.mark.parametrize(
    ("variables", "said"),
    [({"SIMULATED_FAULTS": "old driver"}, OLD), ({"CUDA_VISIBLE_DEVICES": ""}, HIDDEN)],
)
def test_a_gpu_that_torch_does_not_see_is_answered_with_the_cause(
    variables: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "silu.py").write_text(KERNEL)
    mistakes = [
        ("bench", "llama-tiny", *ON_GPU),
        ("optimize", "llama-tiny", *ON_GPU, "--budget", "30s"),
        ("write", "silu", *ON_GPU, "--budget", "20s"),
    ]
    judged = ("judge", "silu", "silu.py", *ON_GPU, "--tier", "ci", "--json")
    *others, verdict = answers(tmp_path, *mistakes, judged, **variables)
    for code, out, err in others:
        assert code == 2 and not out
        assert err.startswith("ratchet: ") and err.count("\n") == 1 and said in err
    code, out, _ = verdict
    reason = json.loads(out)["reason"]
    assert code == 1 and said in reason and "\n" not in reason


def test_a_slice_of_a_gpu_that_others_use_beside_one_of_another_kind(tmp_path: Path) -> None:
    ((code, out, _),) = answers(
        tmp_path,
        ("bench", "llama-tiny", *ON_GPU, "--steps", "3", "--json"),
        SIMULATED_FAULTS="busy,slice,two kinds",
    )
    assert code == 0
    (result,) = json.loads(out)["results"]
    differ, busy = result["warnings"]
    assert "MIG 1g.10gb, is taken" in differ and "--device cuda:1" in differ
    assert "other processes hold 5 GB of cuda:0" in busy


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no memory", "does not fit in the memory of cuda; use a smaller batch"),
        ("lost", "run again"),
    ],
)
def test_a_step_that_breaks_on_the_gpu_ends_in_a_line(
    fault: str, said: str, tmp_path: Path
) -> None:
    words = ("bench", "llama-tiny", *ON_GPU, "--steps", "3")
    ((code, out, err),) = answers(tmp_path, words, target="gfx942", SIMULATED_FAULTS=fault)
    assert code == 2 and not out
    assert said in err and err.count("\n") == 1, err
