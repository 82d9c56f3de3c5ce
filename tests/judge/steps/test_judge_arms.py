"""Arm processes: what they answer, how they fail, and that nothing of them stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.base.errors import ArmFailure, JudgeError, OutOfTime, WorkloadError
from ratchet.base.process import families
from ratchet.judge.steps.arms import ArmProcess, ArmSpec, TrialEvent, time_arms

HERE = Path(__file__).parents[1]


def spec(factory: str, name: str = "an-arm", **arguments: object) -> ArmSpec:
    return ArmSpec(name=name, factory=f"arm_factories:{factory}", arguments=arguments)


def gone(pid: int) -> bool:
    state = families.read_state(pid)
    return state is None or state.state in "ZX"


def wait_until_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if all(gone(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def test_an_arm_runs_describes_itself_and_answers_its_calls() -> None:
    with ArmProcess(spec("make_spinner", step_time_s=0.002, label="a")) as arm:
        timing = arm.run(5)
        assert timing.wall_time_s >= 0.010
        assert timing.cpu_time_s > 0
        assert arm.describe() == {"label": "a", "steps": 5}
        assert arm.call("echo", value={"x": [1, 2.5, None]}) == {"x": [1, 2.5, None]}
        assert arm.setup_time_s > 0


def test_a_message_names_an_arm_by_its_title() -> None:
    titled = ArmSpec(name="5f3a9c", title="torch.compile, fp32", factory="arm_factories:none")
    with pytest.raises(ArmFailure, match=r"^arm 'torch.compile, fp32' is not running") as error:
        ArmProcess(titled).run(1)
    assert "5f3a9c" not in str(error.value)


def test_a_factorys_own_error_keeps_its_class_and_its_line() -> None:
    with pytest.raises(WorkloadError) as caught:
        ArmProcess(spec("make_unknown")).start()
    assert str(caught.value) == "workload 'lama': unknown; known are llama-8m and llama-60m"


def test_a_calls_own_error_keeps_its_class_and_becomes_one_line() -> None:
    with (
        ArmProcess(spec("make_spinner")) as arm,
        pytest.raises(WorkloadError, match=r"the loss is NaN at step 3; lower the learning rate"),
    ):
        arm.call("refuse")


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("make_broken", "KeyError: 'weights'"),
        ("make_exit", "SystemExit"),
        ("no_such_function", "cannot be loaded as module:function"),
    ],
)
def test_a_factory_that_fails_is_an_arm_failure_with_the_arms_name(
    factory: str, words: str
) -> None:
    with pytest.raises(ArmFailure) as caught:
        ArmProcess(spec(factory, name="rival")).start()
    assert "rival" in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("segfault", r"died during 'run' \(SIGSEGV\): about to fall"),
        ("exit", r"died during 'run' \(exit code 7\)"),
        ("raise", r"ValueError: bad batch"),
    ],
)
def test_a_step_that_fails_is_named(fault: str, words: str) -> None:
    with ArmProcess(spec("make_faulty", fault=fault)) as arm:
        arm.run(1)
        with pytest.raises(ArmFailure, match=words):
            arm.run(1)


def test_at_its_deadline_an_arm_is_ended_whatever_it_does() -> None:
    begun = spec("make_spinner", step_time_s=0.01, label="a")
    with pytest.raises(OutOfTime, match="during 'start'"):
        ArmProcess(replace(begun, deadline_s=time.monotonic())).start()
    with ArmProcess(begun) as arm:
        pid = arm.pid
        arm.run(1)
        arm.deadline_s = time.monotonic()
        with pytest.raises(OutOfTime, match="during 'run'"):
            arm.run(1000)
        assert arm.pid is None
        assert pid is not None and wait_until_gone([pid])


def test_a_step_that_hangs_is_killed_at_its_timeout() -> None:
    slow = ArmSpec(
        name="slow",
        factory="arm_factories:make_faulty",
        arguments={"fault": "hang"},
        call_timeout_s=0.5,
    )
    with ArmProcess(slow) as arm:
        pid = arm.pid
        with pytest.raises(ArmFailure, match=r"did not answer 'run' within 0\.5 s"):
            arm.run(2)
        assert wait_until_gone([pid])
        with pytest.raises(ArmFailure, match="not running"):
            arm.run(1)


def test_a_flood_of_output_neither_blocks_nor_grows() -> None:
    with ArmProcess(spec("make_faulty", fault="flood")) as arm:
        arm.run(2)
        deadline = time.monotonic() + 20
        while not arm.output().rstrip().endswith("the last line"):
            assert time.monotonic() < deadline
        assert len(arm.output()) <= families.TAIL_BYTES


def test_an_answer_that_is_no_json_and_a_call_that_is_not_listed_are_refused() -> None:
    with ArmProcess(spec("make_spinner")) as arm:
        with pytest.raises(ArmFailure, match="TypeError"):
            arm.call("nonsense")
        with pytest.raises(ArmFailure, match="no call 'step'"):
            arm.call("step", iterations=1)
        assert arm.call("echo", value=1) == 1


def test_pause_stops_every_process_and_close_leaves_none() -> None:
    with ArmProcess(spec("make_spinner")) as arm:
        pids = [arm.call("pid"), *arm.call("children")]
        arm.pause()
        states = [families.read_state(pid) for pid in pids]
        assert [state.state for state in states if state] == ["T", "T", "T"]
        arm.resume()
        assert arm.call("echo", value=2) == 2
    assert wait_until_gone(pids)


def test_an_idle_arm_that_died_is_noticed_when_it_is_paused() -> None:
    with ArmProcess(spec("make_spinner")) as arm:
        pid = arm.call("pid")
        os.kill(pid, signal.SIGKILL)
        assert wait_until_gone([pid])
        with pytest.raises(ArmFailure, match=r"died while it was idle \(SIGKILL\)"):
            arm.pause()


def test_an_arm_dies_with_its_parent() -> None:
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from ratchet.judge.steps.arms import ArmProcess, ArmSpec\n"
        "arm = ArmProcess(ArmSpec(name='a', factory='arm_factories:make_spinner')).start()\n"
        "print(arm.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(HERE)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
    finally:
        parent.kill()
        parent.communicate()
    assert wait_until_gone([pid])


@pytest.mark.parametrize(("laid_over", "seen"), [("here", "'str'"), ("", "'NoneType'")])
def test_the_environment_overlay_reaches_the_arm(
    laid_over: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_OVERLAID", "outside")
    overlaid = ArmSpec(
        name="env",
        factory="os:getenv",
        arguments={"key": "RATCHET_OVERLAID"},
        environment={"RATCHET_OVERLAID": laid_over},
    )
    # `os.getenv` returns a str or None, neither of which has a `step`: the failure names which.
    with ArmProcess(overlaid) as arm, pytest.raises(ArmFailure, match=seen):
        arm.run(1)


def test_another_interpreter_imports_ratchet_whatever_is_taken_away() -> None:
    bare = ArmSpec(
        name="env",
        factory="os:getenv",
        arguments={"key": "PYTHONPATH"},
        environment={"PYTHONPATH": ""},
        python=sys.executable,
    )
    with ArmProcess(bare) as arm, pytest.raises(ArmFailure, match="'str'"):
        arm.run(1)


def test_a_trial_times_every_arm_in_every_round_of_every_launch() -> None:
    events: list[TrialEvent] = []
    specs = [
        spec("make_spinner", name="slow", step_time_s=0.004),
        spec("make_spinner", name="fast", step_time_s=0.001),
    ]
    for launch in (0, 1):
        trial = time_arms(specs, rounds=4, warmup=2, seed=1, launch=launch, on_event=events.append)
        assert len(trial.samples) == 4 * 2
        assert {(s.launch, s.round, s.arm) for s in trial.samples} == {
            (launch, index, arm) for index in range(4) for arm in ("slow", "fast")
        }
        assert trial.descriptions["slow"]["steps"] == 2 + 4
        assert set(trial.setup_time_s) == {"slow", "fast"}
    assert [e.kind for e in events].count("round") == 8
    assert {(e.launch, e.arm) for e in events if e.kind == "ready"} == {
        (launch, arm) for launch in (0, 1) for arm in ("slow", "fast")
    }


def test_a_trial_of_arms_that_do_not_fit_together_runs_them_apart() -> None:
    events: list[TrialEvent] = []
    trial = time_arms(
        [spec("make_spinner", name="a"), spec("make_spinner", name="b")],
        rounds=3,
        warmup=1,
        seed=2,
        concurrent=False,
        on_event=events.append,
    )
    seen = [e.arm for e in events]
    assert seen in (sorted(seen), sorted(seen, reverse=True)), "one arm after the other"
    assert len(trial.samples) == 6
    assert {one.position for one in trial.samples} == {0, 1}


def test_an_arm_that_dies_in_a_trial_is_named() -> None:
    with pytest.raises(ArmFailure, match="'rival' died"):
        time_arms(
            [spec("make_spinner", name="ours"), spec("make_faulty", name="rival", fault="exit")],
            rounds=3,
            warmup=1,
            seed=3,
        )


@pytest.mark.parametrize("names", [["one"], ["same", "same"]])
def test_a_trial_needs_two_arms_with_names_of_their_own(names: list[str]) -> None:
    with pytest.raises(JudgeError, match="two or more"):
        time_arms(
            [spec("make_spinner", name=name) for name in names],
            rounds=1,
            warmup=1,
            seed=0,
        )


@pytest.mark.parametrize("by_call", [False, True])
def test_a_library_that_a_kill_left_half_written_is_compiled_again(
    tmp_path: Path, by_call: bool
) -> None:
    library = tmp_path / "torchinductor_me" / "eo" / "ceoz.main.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    with ArmProcess(spec("make_from_library", path=str(library))) as arm:
        assert arm.call("loaded") == "yes" if by_call else arm.run(2).wall_time_s > 0
        assert arm.describe()["steps"] == (1 if by_call else 2)
        assert not library.exists()
        library.write_bytes(b"")  # after an answer the arm has a state: it does not start again
        with pytest.raises(ArmFailure, match="file too short"):
            arm.run(1)
        assert not library.exists()


def test_a_broken_library_that_is_not_of_torchs_cache_stays(tmp_path: Path) -> None:
    library = tmp_path / "mine.so"
    library.write_bytes(b"")
    with (
        ArmProcess(spec("make_from_library", path=str(library))) as arm,
        pytest.raises(ArmFailure, match="file too short"),
    ):
        arm.run(1)
    assert library.exists()
