"""What is appended comes back: the newest of it, from the right device and software."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from ratchet.base.devices.probe import probe, software
from ratchet.base.errors import LedgerError, WorkloadError
from ratchet.base.files import default_ledger
from ratchet.base.ledger import SCHEMA_VERSION, Fingerprint, Ledger, connect, schema
from ratchet.base.ledger.connect import dumps, loads
from ratchet.base.measure import Sample

JUDGE = "judge-a"
HERE = Fingerprint(device="dev-a", software="soft-a")
ELSEWHERE = Fingerprint(device="dev-b", software="soft-a")


def _sample(round: int, arm: str = "ratchet") -> Sample:
    return Sample(
        arm=arm,
        launch=1,
        round=round,
        position=0,
        iterations=2,
        wall_time_s=0.1 + round * 1e-9,
        cpu_time_s=0.2,
    )


def _verdict(status: str, problem: str = "p", judge: str = JUDGE) -> dict[str, object]:
    said = {"status": status, "reason": "because", "environment": {"judge": judge}}
    return {"kernel_hash": "k", "problem_hash": problem, **said}


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """An empty ledger in a file, and one on a PostgreSQL server."""
    url = tmp_path / "deep" / "ledger.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("new_database")()
    with Ledger.open(url) as opened:
        yield opened


def test_the_newest_evidence_of_a_key_is_recalled(ledger: Ledger) -> None:
    ledger.remember("screen", "fused", {"ratio": 1.1}, fingerprint=HERE)
    ledger.remember("screen", "fused", {"ratio": 1.2}, fingerprint=HERE)
    ledger.remember("screen", "threads", {"ratio": 1.0}, fingerprint=HERE)
    assert ledger.recall("screen", "fused") == {"ratio": 1.2}
    assert ledger.recall("baseline", "fused") is None


def test_evidence_of_another_device_is_told_apart(ledger: Ledger) -> None:
    ledger.remember("screen", "fused", {"ratio": 1.1}, fingerprint=HERE)
    assert ledger.recall("screen", "fused", fingerprint=ELSEWHERE) is None
    assert ledger.recall("screen", "fused", fingerprint=HERE) == {"ratio": 1.1}


def test_nothing_is_ever_changed_or_deleted(ledger: Ledger) -> None:
    for ratio in (1.0, 2.0, 3.0):
        ledger.remember("screen", "fused", {"ratio": ratio}, fingerprint=HERE)
    turn = ledger.start_turn("llama-8m", fingerprint=HERE)
    ledger.finish_turn(turn, {"ratio": 1.5})
    counts = ledger.counts()
    assert counts["evidence"] == 3
    assert counts["turns"] == 2


def test_a_verdict_counts_only_on_its_own_device(ledger: Ledger) -> None:
    ledger.record_verdict(_verdict("proven"), fingerprint=HERE)
    assert ledger.verdict("k", "p", HERE, judge=JUDGE) == _verdict("proven")
    assert ledger.verdict("k", "p", ELSEWHERE, judge=JUDGE) is None
    assert ledger.proven("k", HERE, judge=JUDGE)
    assert not ledger.proven("k", ELSEWHERE, judge=JUDGE)


def test_what_another_judge_proved_proves_nothing(ledger: Ledger) -> None:
    ledger.record_verdict(_verdict("proven", judge="judge-b"), fingerprint=HERE)
    without = {
        name: value for name, value in _verdict("proven", "q").items() if name != "environment"
    }
    ledger.record_verdict(without, fingerprint=HERE)
    assert ledger.verdict("k", "p", HERE, judge=JUDGE) is None
    assert ledger.verdict("k", "q", HERE, judge=JUDGE) is None
    assert not ledger.proven("k", HERE, judge=JUDGE)
    ledger.record_verdict(_verdict("proven"), fingerprint=HERE)
    assert ledger.proven("k", HERE, judge=JUDGE)


def test_what_another_judge_disproved_stands_until_it_is_judged_again(ledger: Ledger) -> None:
    ledger.record_verdict(_verdict("wrong", judge="judge-b"), fingerprint=HERE)
    ledger.record_verdict(_verdict("proven", "q"), fingerprint=HERE)
    assert not ledger.proven("k", HERE, judge=JUDGE)
    ledger.record_verdict(_verdict("correct"), fingerprint=HERE)
    assert ledger.proven("k", HERE, judge=JUDGE)


@pytest.mark.parametrize("status", ["wrong", "cheating", "crashed", "timed_out", "refused"])
def test_a_kernel_disproven_on_one_problem_is_not_proven(ledger: Ledger, status: str) -> None:
    ledger.record_verdict(_verdict("proven", "p"), fingerprint=HERE)
    ledger.record_verdict(_verdict(status, "q"), fingerprint=HERE)
    assert not ledger.proven("k", HERE, judge=JUDGE)


def test_the_newest_verdict_on_a_problem_replaces_the_older(ledger: Ledger) -> None:
    ledger.record_verdict(_verdict("proven"), fingerprint=HERE)
    ledger.record_verdict(_verdict("wrong"), fingerprint=HERE)
    assert not ledger.proven("k", HERE, judge=JUDGE)
    ledger.record_verdict(_verdict("proven"), fingerprint=HERE)
    assert ledger.proven("k", HERE, judge=JUDGE)


def test_a_kernel_is_right_however_fast_if_no_problem_disproves_it(ledger: Ledger) -> None:
    ledger.record_verdict(_verdict("unmeasured"), fingerprint=HERE)
    assert not ledger.right("k", HERE, judge=JUDGE)
    ledger.record_verdict(_verdict("correct", "q"), fingerprint=HERE)
    assert ledger.right("k", HERE, judge=JUDGE) and not ledger.proven("k", HERE, judge=JUDGE)
    assert not ledger.right("k", ELSEWHERE, judge=JUDGE)
    ledger.record_verdict(_verdict("wrong", "r"), fingerprint=HERE)
    assert not ledger.right("k", HERE, judge=JUDGE)


def test_only_the_turn_that_ended_proven_proves_its_recipe(ledger: Ledger) -> None:
    for checksum, result in (("a", "proven"), ("b", "rival"), ("c", None)):
        turn = ledger.start_turn("llama-8m", fingerprint=HERE)
        ledger.record_recipe(turn, {"checksum": checksum})
        if result is not None:
            ledger.finish_turn(turn, {"recipe_is": result})
    assert ledger.proves_recipe("a", HERE)
    assert not any(ledger.proves_recipe(one, HERE) for one in ("b", "c", ""))
    assert not ledger.proves_recipe("a", ELSEWHERE)


@pytest.mark.parametrize("status", ["correct", "unmeasured"])
def test_a_kernel_is_not_proven_by_less_than_a_proof(ledger: Ledger, status: str) -> None:
    ledger.record_verdict(_verdict(status), fingerprint=HERE)
    assert not ledger.proven("k", HERE, judge=JUDGE)
    ledger.record_verdict(_verdict("proven", "q"), fingerprint=HERE)
    assert ledger.proven("k", HERE, judge=JUDGE)


def test_a_turn_is_unfinished_until_it_is_finished(ledger: Ledger) -> None:
    assert ledger.unfinished_turn("llama-8m") is None
    turn = ledger.start_turn("llama-8m", {"budget_s": 60}, fingerprint=HERE)
    found = ledger.unfinished_turn("llama-8m", fingerprint=HERE)
    assert found is not None
    assert found.turn == turn
    assert found.payload == {"budget_s": 60}
    assert found.fingerprint == HERE
    assert found.started_at.endswith("+00:00")
    assert ledger.unfinished_turn("llama-8m", fingerprint=ELSEWHERE) is None
    assert ledger.unfinished_turn("llama-8m", command="bench") is None
    ledger.finish_turn(turn)
    assert ledger.unfinished_turn("llama-8m") is None


def test_a_finished_turn_hides_the_killed_one_before_it(ledger: Ledger) -> None:
    ledger.start_turn("llama-8m", fingerprint=HERE)
    ledger.finish_turn(ledger.start_turn("llama-8m", fingerprint=HERE))
    assert ledger.unfinished_turn("llama-8m") is None


def test_samples_come_back_exactly_and_in_order(ledger: Ledger) -> None:
    turn = ledger.start_turn("llama-8m", fingerprint=HERE)
    samples = [_sample(round) for round in range(50)]
    ledger.record_measurements(turn, samples, purpose="proof")
    ledger.record_measurements(turn, [_sample(99, "other")], purpose="screen")
    ledger.record_measurements(turn, [])
    assert ledger.measurements(turn, purpose="proof") == samples
    assert len(ledger.measurements(turn)) == 51


def test_a_turn_that_was_never_started_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="no turn 'nothing'; start one first"):
        ledger.finish_turn("nothing")
    with pytest.raises(LedgerError, match="no turn 'nothing'"):
        ledger.record_measurements("nothing", [_sample(0)])


def test_the_newest_recipe_of_a_workload_is_found(ledger: Ledger) -> None:
    turn = ledger.start_turn("llama-8m", fingerprint=HERE)
    assert ledger.recipe("llama-8m") is None
    ledger.record_recipe(turn, {"levers": ["fused"]})
    ledger.record_recipe(turn, {"levers": ["fused", "threads"]})
    assert ledger.recipe("llama-8m", fingerprint=HERE) == {"levers": ["fused", "threads"]}
    assert ledger.recipe("llama-8m", fingerprint=ELSEWHERE) is None


def test_content_is_kept_once_under_its_hash(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.record_kernel("k", "rope", {"source": "int x;"}, fingerprint=HERE)
        ledger.record_problem("p", "rope", {"cases": []}, fingerprint=HERE)
    assert ledger.kernel("k") == {"source": "int x;"}
    assert ledger.problem("p") == {"cases": []}
    assert ledger.kernel("other") is None
    counts = ledger.counts()
    assert [counts[name] for name in ("kernels", "problems")] == [1] * 2


def test_a_fingerprint_from_here_is_described_once(ledger: Ledger) -> None:
    device = probe("cpu")
    found = [ledger.here(device) for _ in range(2)]
    other = ledger.here(replace(device, model="another"))
    assert found == [Fingerprint(device=device.fingerprint, software=software().fingerprint)] * 2
    assert other["device"] != found[0]["device"] and other["software"] == found[0]["software"]
    assert ledger.counts()["devices"] == 2 and ledger.counts()["software"] == 1
    with ledger.engine.connect() as connection:
        (row, _) = connection.execute(select(schema.devices)).all()
    assert (row.device, row.payload["model"]) == (device.fingerprint, device.model)


def test_a_turn_that_a_mistake_ended_is_not_resumed(ledger: Ledger) -> None:
    turn = ledger.start_turn("llama-8m", fingerprint=HERE)
    with pytest.raises(WorkloadError), ledger.failing(turn):
        raise WorkloadError("no such workload")
    assert ledger.unfinished_turn("llama-8m") is None
    assert ledger.counts()["turns"] == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, LedgerError, MemoryError])
def test_a_turn_that_something_else_ended_is(ledger: Ledger, error: type[BaseException]) -> None:
    turn = ledger.start_turn("llama-8m", fingerprint=HERE)
    with pytest.raises(error), ledger.failing(turn):
        raise error
    found = ledger.unfinished_turn("llama-8m")
    assert found is not None and found.turn == turn


def test_a_ledger_stays_between_openings(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.remember("screen", "fused", {"ratio": 1.1}, fingerprint=HERE)
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        assert ledger.recall("screen", "fused") == {"ratio": 1.1}
        assert ledger.counts()["schema_version"] == 1


def test_a_commit_waits_for_the_disk() -> None:
    said: list[str] = []
    with closing(sqlite3.connect(":memory:")) as raw:
        raw.set_trace_callback(said.append)
        connect._set_pragmas(raw, None)  # the tests' own adds a line, and leaves these
    assert "PRAGMA synchronous = FULL" in said


def test_the_file_is_plain_sqlite_with_write_ahead_logging(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db"):
        pass
    connection = sqlite3.connect(tmp_path / "ledger.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("SELECT version FROM schema_version").fetchall() == [
        (SCHEMA_VERSION,)
    ]
    connection.close()


def test_the_environment_names_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "mine.db"))
    with Ledger.open() as ledger:
        assert ledger.place == str(tmp_path / "mine.db")
    assert (tmp_path / "mine.db").exists()


def test_the_default_is_below_the_users_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RATCHET_LEDGER", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_ledger().name == "ledger.db"
    with Ledger.open() as ledger:
        assert ledger.place == str(default_ledger())


def test_numbers_that_json_lacks_survive(ledger: Ledger) -> None:
    ledger.remember("loss", "seed 0", {"values": [1.5, math.inf, -math.inf]}, fingerprint=HERE)
    ledger.remember("loss", "seed 1", {"value": math.nan}, fingerprint=HERE)
    assert ledger.recall("loss", "seed 0") == {"values": [1.5, math.inf, -math.inf]}
    recalled = ledger.recall("loss", "seed 1")
    assert recalled is not None
    assert math.isnan(recalled["value"])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(_JSON)
def test_any_payload_makes_the_round_trip(payload: object) -> None:
    text = dumps(payload)
    assert "Infinity" not in text.replace("\\", "") or "Infinity" in str(payload)
    assert loads(text) == payload


def test_an_older_ledger_gets_the_tables_that_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with Ledger.open(file) as ledger:
        ledger.remember("screen", "fused", {"ratio": 1.1}, fingerprint=HERE)
    connection = sqlite3.connect(file)
    connection.executescript(
        "DROP TABLE writing_runs; DROP TABLE writing_answers; UPDATE schema_version SET version = 1"
    )
    connection.close()
    with Ledger.open(file) as ledger:
        assert ledger.counts()["writing_answers"] == 0
        assert ledger.recall("screen", "fused") == {"ratio": 1.1}
    with Ledger.open(file) as ledger:
        assert ledger.counts()["schema_version"] == 2
