"""Mistakes at the door: an option that does nothing, a number out of range, a ledger only read."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from commands import mistake

from ratchet.base.ledger import Ledger
from ratchet.base.show.words import device_words
from ratchet.cli import main

KERNEL = "class ModelNew:\n    pass\n\ndef other(x):\n    return x\n"
PROBLEM = """
class Model:
    pass

def get_inputs():
    return []

def get_init_inputs():
    return []
"""

UNUSED = {
    "judge --list --entry x": "--entry",
    "judge --show silu --tier ci": "--tier",
    "judge --suite training --entry x": "--entry",
    "judge --suite training --scale 0.5": "--scale",
    "judge silu kernel.py --level 2": "--level",
    "trace report trace.json --rank 1": "--rank",
    "trace diff trace.json trace.json --rank 1": "--rank",
    "trace record --device cpu -- true": "--device",
    "plan --savings recipe.json --out out": "--out",
    "plan --savings recipe.json --days 3": "--days",
    "plan --days 3 --cluster h100:8 --tokens 1e9": "--tokens",
    "plan llama-tiny --cluster h100:8 --fleet h100:8": "--fleet",
    "plan llama-tiny --measured --stack torch": "--stack",
    "export recipe.json --to patch --out out.patch --name x": "--name",
    "export recipe.json --to wheel --out out --batch-size 2": "--batch-size",
    "write silu --precision fp32": "--precision",
    "port kernel.py --time-limit 3s": "--time-limit",
    "compare --batch-size 3 -- true true": "--batch-size",
    "compare a b --out out": "--out",
    "compare a b --numerics --instructions": "--instructions",
}
OUT_OF_RANGE = (
    "bench llama-tiny --steps 100000000000000000000",
    "trace record llama-tiny --steps 1000000000",
    "trace report trace.json --top 99999999999",
    "plan --cluster h100:8 --days 1e300",
    "plan llama-tiny --cluster h100:8 --tokens 1e300",
    "preflight --time-limit 1e300",
    "bisect a b --seed -1 -- true",
    "compare a b --seed 4294967296",
    "write silu --seed -1",
    "write silu --budget 999999999h",
    "judge silu kernel.py --time-limit 9999999h",
    "bench llama-tiny --parallel dp=99999 --device cpu",
    "preflight --device zz",
)


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "none" / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    Path("kernel.py").write_text(KERNEL)
    Path("problem.py").write_text(PROBLEM)
    Path("trace.json").write_text('{"traceEvents": []}')
    return tmp_path


@pytest.mark.parametrize("words", UNUSED)
def test_an_option_that_does_nothing(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = mistake(capsys, *words.split())
    assert f"{UNUSED[words]} " in line and "leave" in line


@pytest.mark.parametrize("words", OUT_OF_RANGE)
def test_a_number_that_nobody_means(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = mistake(capsys, *words.split())
    assert "internal" not in line
    assert not Path("none").exists()


@pytest.mark.parametrize("command", ["judge", "inspect"])
def test_an_entry_that_the_file_lacks(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = mistake(capsys, command, "problem.py", "kernel.py", "--entry", "nothing")
    assert "no 'nothing'" in line and "ModelNew, other" in line


DUMPS = {
    "empty": (b"", "it is empty"),
    "without a call": (pickle.dumps({"version": "2", "entries": []}), "without a call"),
    "without entries": (pickle.dumps({}), "holds no entries"),
    "of other entries": (pickle.dumps({"entries": [3]}), "is damaged (an entry"),
}


@pytest.mark.parametrize("name", DUMPS)
def test_dumps_that_say_nothing_do_not_agree(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    content, words = DUMPS[name]
    for rank in range(2):
        Path(f"dump_{rank}").write_bytes(content)
    assert words in mistake(capsys, "debug", "dump_0", "dump_1")


def test_a_dump_that_is_no_file_is_not_opened(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("dump_0")
    assert "is a FIFO" in mistake(capsys, "debug", "dump_0")


@pytest.mark.parametrize("command", ["corpus", "loop"])
def test_replay_text_that_is_none(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("nothing").mkdir()
    Path("empty.txt").touch()
    for text in ("nothing", "empty.txt"):
        line = mistake(capsys, "learn", command, "--out", "new", "--text", text)
        assert f"{text} holds no text" in line


READING = (
    "history show",
    "history export x.csv",
    "history acknowledge abc",
    "history resolve abc",
    "repro abcdef12",
    "plan llama-tiny --measured",
)


@pytest.mark.parametrize("words", READING)
def test_what_reads_makes_no_ledger(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(words.split())
    assert "internal" not in capsys.readouterr().err
    assert not Path("none").exists()
    Path("empty.db").touch()
    for ledger in ("empty.db", "there/new.db"):
        main([*words.split(), "--ledger", ledger])
        assert "internal" not in capsys.readouterr().err
    assert Path("empty.db").read_bytes() == b"" and not Path("there").exists()


@pytest.mark.parametrize("words", READING)
def test_a_ledger_to_read_is_a_file(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("fifo.db")
    assert "is a FIFO" in mistake(capsys, *words.split(), "--ledger", "fifo.db")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("watch --base HEAD --suite fifo", "is a FIFO"),
        ("watch --base HEAD --suite none.toml", "(No such file or directory): give a TOML file"),
        ("watch --base HEAD --suite latin.toml", "is not UTF-8"),
        ("optimize huge.py:make --device cpu", "has 8589934592 bytes"),
    ],
)
def test_a_file_of_another_kind(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("fifo")
    Path("latin.toml").write_bytes(b"a = 'caf\xe9'")
    Path("huge.py").touch()
    os.truncate("huge.py", 8 << 30)
    assert said in mistake(capsys, *words.split())


NO_TEXT = ("history import latin.csv", "watch --against latin.csv", "debug latin.csv")


@pytest.mark.parametrize("words", NO_TEXT)
def test_a_text_that_is_not_utf8(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("latin.csv").write_bytes("café,value\n".encode("latin-1"))
    line = mistake(capsys, *words.split())
    assert "codec" not in line and "latin.csv" in line


def test_a_trace_to_calibrate_by_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("fifo.json")
    words = ("plan", "llama-tiny", "--cluster", "h100:8", "--calibrate", "fifo.json")
    assert "is a FIFO" in mistake(capsys, *words)


def test_results_that_cannot_be_read_make_no_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    assert "missing.csv" in mistake(capsys, "history", "import", "missing.csv")
    assert not Path("none").exists()


def test_a_ledger_is_empty_before_anything_is_stored(place: Path) -> None:
    with Ledger.open_to_read() as ledger:
        assert ledger.place == str(place / "none" / "ledger.db")
        assert ledger.verdicts_named("abcdef12") == []


CRASHES = "import os\n\ndef make_workload():\n    os.kill(os.getpid(), 11)\n"


def test_a_workload_that_crashes_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("crash.py").write_text(CRASHES)
    line = mistake(capsys, "bench", "crash.py:make_workload", "--device", "cpu")
    assert "(SIGSEGV): it runs" in line and "crash.py:make_workload; call that function" in line


def ran(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ratchet", *words],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_python_m_ratchet_is_the_command() -> None:
    assert ran("--version").stdout.startswith("ratchet ")


def test_the_shell_completes_commands() -> None:
    done = ran(_RATCHET_COMPLETE="complete_bash", COMP_WORDS="ratchet tra", COMP_CWORD="1")
    assert done.stdout.split() == ["trace"]


def test_a_name_that_the_locale_lacks_is_not_the_files_fault() -> None:
    plain = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    line = ran("trace", "report", "café.json", **plain).stderr
    assert "this locale lacks" in line and "PYTHONUTF8=1" in line
    raw = os.fsdecode(b"caf\xe9.json")
    for environment in (plain, {}):
        assert "is not UTF-8: rename" in ran("trace", "report", raw, **environment).stderr


def test_one_core_is_no_cores() -> None:
    assert device_words({"model": "x", "cores": 1}) == "x, 1 core"
    assert device_words({"model": "x", "cores": 2}) == "x, 2 cores"
