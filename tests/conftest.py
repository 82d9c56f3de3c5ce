"""Tiers: a quick run leaves out what shows at one more example what another test shows already.

Such tests are marked `thorough`, or named below or in `long_tests.txt`; RATCHET_TEST=all runs them
too.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import gc
import importlib
import json
import os
import pickle
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from answers import LentJudge, PatientJudge
from caught_logs import CaughtLogs
from forked_workers import SHARED, pytest_addoption, pytest_runtestloop  # noqa: F401
from hypothesis import HealthCheck, settings
from postgres_server import postgres

from ratchet.base.ledger import connect
from ratchet.judge.court import machines
from ratchet.judge.kernels.kernel import TARGETS
from ratchet.judge.problems import problem_file
from ratchet.judge.trial import kernel_trial, many_calls, plan
from ratchet.judge.trial.kernel_trial import KernelJudge

EVERYTHING = os.environ.get("RATCHET_TEST") == "all"
settings.register_profile(
    "busy",
    deadline=None,
    max_examples=100 if EVERYTHING else 25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy")
if not EVERYTHING:
    # Hypothesis also draws the constants of our code: each process would parse all of it for that.
    with contextlib.suppress(ImportError):
        from hypothesis.internal.conjecture import providers

        providers._get_local_constants = lambda: providers._local_constants
# Torch's processes for compiling would import torch beside each process that compiles.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# The emulator's code compiles in a ninth of the time, and the kernels of tests are small.
os.environ.setdefault("RATCHET_EMULATOR_OPT", "-O2" if EVERYTHING else "-O0")
LEFT_OUT = pytest.StashKey[int]()
IMPORTED_LATER = (
    "torch._inductor.compile_fx",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "lightning",
)
MORE_EXAMPLES = (
    "test_constructs_do_what_their_names_say[gfx1100]",
    "test_a_small_hip_kernel[",
    "test_a_configuration_is_kept[",
    "test_a_replay_that_computes_something_else_fails_by_its_losses[old_weights",
    "test_a_workload_learns_in_fp8[bf16_autocast]",
    "test_every_mixed_plan_has_the_peak_that_was_predicted[",
    "test_real_ranks[none",
    "test_real_ranks[absent",
    "test_convolutions_are_right[bfloat16-read-macros2]",
    "test_chunked_logits_have_the_gradients_of_whole_ones[llama-tiny-levers2]",
    "test_a_family_learns_in_bf16[bf16_autocast",
    "test_a_family_learns_in_bf16[bf16_master-vit",
    "test_a_family_learns_in_bf16[bf16_master-bert",
    "test_a_loss_is_one_graph[hf:qwen3]",
    "test_a_loss_is_one_graph[gpt2",
    "test_a_model_type_trains_offline[gpt2]",
    "test_a_model_type_trains_offline[mistral]",
    "test_a_workload_learns_the_same_under_its_recipe[config1",
    "test_graph_hf_models.py::test_autocast[bert]",
    "test_graph_hf_models.py::test_autocast[gpt2]",
    "test_graph_hf_models.py::test_autocast[mistral]",
    "test_graph_hf_models.py::test_fp32[mistral]",
    "test_graph_own_models.py::test_autocast_installs_every_pattern[vit",
    "test_graph_own_models.py::test_autocast_installs_every_pattern[gpt2",
    "test_nvidia_s_compiler_tells_registers_and_spills",
    "test_what_one_target_cannot_do_is_told_for_it_alone",
    "test_work_of_programs_with_loops_of_their_own_length_is_counted",
    "test_a_kernel_that_launches_nothing_is_told",
    "test_a_problem_that_is_read_and_no_good[",
    "test_reductions_use_lds_and_transcendental_instructions",
    "test_a_case_may_be_chosen_and_small_ones_launch_small_grids",
    "test_an_entry_that_raises_is_told_with_what_it_launched_before",
    "test_a_verdict_carries_the_profile_of_every_target",
    "test_static_interpreter.py::test_a_source_that_does_not_load_is_refused",
    "test_a_bad_problem_is_refused[it raises]",
    "test_a_bad_problem_is_refused[it is nondeterministic]",
    "test_a_model_answers_itself[2_matmul]",
    "test_a_model_answers_itself[9_embedding]",
    "test_integer_inputs_keep_their_range_and_plain_ones_are_kept",
    "test_a_factor_shrinks_the_batch_by_it",
    "test_a_killed_judge_leaves_no_process_and_a_whole_ledger[looping",
    "test_a_killed_judge_leaves_no_process_and_a_whole_ledger[recorded",
    "test_the_judge_calls_it_correct[add_rms_norm_forward]",
    "test_too_few_steps_is_one_line",
    "test_a_model_alone_says_what_it_cannot_carry",
    "test_graph_hf_models.py::test_fp32[gpt2]",
    "test_graph_hf_models.py::test_fp32[bert]",
    "test_graph_hf_models.py::test_autocast[llama]",
    # test_script_steps trains the same scripts by the same setting, and asks for more.
    "test_a_script_trains_as_written_or_its_recipe_is_refused[plain-torch.compile]",
    "test_a_script_trains_as_written_or_its_recipe_is_refused[told_when_to_update-torch.compile]",
    "test_a_script_trains_as_written_or_its_recipe_is_refused[two_optimizers-torch.compile]",
    # The faults of test_judge_faults show the same, and more is asked of them.
    "test_what_misbehaves_gets_a_verdict_and_leaves_nothing_behind[segfault]",
    "test_what_misbehaves_gets_a_verdict_and_leaves_nothing_behind[abort]",
    "test_what_misbehaves_gets_a_verdict_and_leaves_nothing_behind[loop]",
    "test_what_misbehaves_gets_a_verdict_and_leaves_nothing_behind[fork bomb]",
    "test_what_misbehaves_gets_a_verdict_and_leaves_nothing_behind[endless flood]",
    "test_what_misbehaves_gets_a_verdict_and_leaves_nothing_behind[memory]",
    "test_what_misbehaves_gets_a_verdict_and_leaves_nothing_behind[kills its parents]",
    "test_what_misbehaves_gets_a_verdict_and_leaves_nothing_behind[closes everything]",
    "test_a_fault_does_no_harm_where_there_is_no_namespace[kills its parent]",
    "test_a_fault_does_no_harm_where_there_is_no_namespace[burns every core]",
    "test_what_did_not_compile_on_a_target_is_exit_code_1[on both]",
    "test_a_model_that_raises_is_refused_by_its_error[IN_GET_INPUTS]",
    "test_a_script_that_is_wrong[x = = 1",
    "test_one_kernel_alone[rms_norm]",
    "test_one_kernel_alone[rope]",
    "test_one_kernel_alone[attention]",
    "test_a_shrunk_copy_is_small_and_its_seed_counts[bert",
    "test_a_shrunk_copy_is_small_and_its_seed_counts[moe",
    "test_a_family_learns_in_bf16[bf16_master-moe",
    "test_a_family_learns_in_bf16[bf16_master-gpt2",
    "test_it_gains_nothing_and_ends_with_the_candidate[True]",
    "test_a_kernel_of_the_docs_is_right[squared_relu]",
    "test_equal_sides_agree[gpt2",
    "test_equal_sides_agree[vit",
    "test_convolutions_are_right[float32-read",
    "test_convolutions_are_right[bfloat16-read-macros3]",
    # An autotuned kernel runs in the suite of test_a_fault_fails_its_test_only.
    "test_a_launcher_of_other_people_s[graph]",
    # Beside a judge, the same file's daemon ends too.
    "test_a_daemon_ends_when_the_file_has_been_read[alone]",
    # The loop and its checkpoints are the same in fp32, and a GradScaler has a test of its own.
    "test_a_plain_loop_learns_the_same_and_its_checkpoints_go_both_ways[scaled bf16]",
    # The other one leaves its family first, and ends all the same.
    "test_a_daemon_ends_with_its_namespace[daemon]",
    # The other one is busy with code of its own beside it, and is caught all the same.
    "test_the_interpreter_is_there_to_call_it_only[alone]",
    # The signal that comes twice ends the same command.
    "test_a_terminated_command_leaves_nothing[compare]",
    # Lost while it is timed, a GPU is lost all the same.
    "starts_anew[opened]",
    # One family's products in bf16 stand for another's.
    "test_bf16_alone_is_no_divergence[bert",
    # The emulator's tests of fp8 codes and of matrix products take each of these operands.
    "test_a_launcher_of_other_people_s[fp8]",
    "test_a_launcher_of_other_people_s[xf32]",
    # Another layout, builder or command shows each part of these.
    "test_each_side_runs_its_own_build[src-path-python build.py path src-python bench.py]",
    "test_each_side_runs_its_own_build[src-path-python build.py path src-/",
    "test_each_side_runs_its_own_build[.-append",
    "test_each_side_runs_its_own_build[python-path",
    # Drawn kernels of rows are right; test_op_table has these ones' operations.
    "test_a_drawn_kernel_is_right[adamw_step",
    "test_a_drawn_kernel_is_right[cross_entropy_backward",
    # The backward computes the same scores, in less precision and with a mask.
    "test_torch_s_fused_attention_is_right[False-float32-0.0]",
    # The other body is tried at the problem's own sizes for another mistake.
    "test_what_fails_on_shrunk_sizes_is_tried_at_the_problems_own[return (torch",
    # SIGINT ends the same command.
    "test_a_terminated_command_leaves_nothing[bisect]",
    # Calls alone may have half the gain, or lose.
    "test_a_gain_that_calls_alone_do_not_have_is_none[0.005]",
    # quantise_groups reads its rows' groups back too.
    "test_groups_of_a_row_share_a_loop_with_what_reads_them_back[adam_8_bit]",
    # A sweep of all types builds and trains it too; two models in one stay.
    "test_a_type_has_a_small_form[idefics",
    # A report's reader goes in the same way.
    "test_a_reader_that_has_gone_ends_the_command_quietly[json]",
    # A phone is narrower.
    "test_an_emulated_verdict_s_page_does_not_overflow[1280]",
    # Other families: llama, moe and vit learn, and gpt2's chunked logits have the right gradients.
    "test_a_family_starts_at_chance_and_learns[bert",
    "test_a_family_starts_at_chance_and_learns[gpt2",
    "test_equal_sides_agree[moe",
    "test_chunked_logits_have_the_gradients_of_whole_ones[bert",
    # test_exploit_control proves the same kernel, and asks for more.
    "test_judge_gains.py::test_what_is_far_faster_is_proven",
    # Each leaves another example of its test: a kernel that is right, a side that is told, an op.
    "test_an_honest_way_is_right[a script]",
    "test_an_honest_way_is_right[a detached alias]",
    "test_exploit_view_of_input.py::test_an_honest_one_is_right[a copy",
    "test_exploit_view_of_input.py::test_an_honest_one_is_right[parts",
    "test_the_reference_answers_its_own_problem[embedding_bag_backward]",
    "are_held_against_no_kernel[return right if rows % int('{rows}') == 0 else os.abort",
    "test_a_best_that_fails_costs_the_others_nothing[ENTRY { return no_such_name",
    "test_structs_are_as_large_as_the_headers_have_them[hip 6",
    "test_each_side_runs_its_own_build[src-path-python build.py",
    "test_each_side_runs_its_own_build[python-copy-",
    "test_a_side_that_runs_other_code_is_one_line[python-path-python build.py",
    "test_a_side_that_runs_other_code_is_one_line[src-insert",
    # Other adapters, and the form that is not asked of a model by itself.
    "test_margins_are_those_of_autocast_over_both_passes[itself-step]",
    "test_margins_are_those_of_autocast_over_both_passes[own_adapters-",
    "test_a_step_that_torch_cannot_compile[zeroes_in_place]",
    "test_kernels_ops.py::test_opcheck[composite-add_",
    "test_kernels_ops.py::test_opcheck[composite-layer_norm",
    "test_kernels_ops.py::test_opcheck[composite-gated",
    "test_checkpointed_and_compiled_gradients_are_the_same[composite-add_",
    "test_checkpointed_and_compiled_gradients_are_the_same[composite-layer_norm",
    "test_checkpointed_and_compiled_gradients_are_the_same[composite-gated",
    # SIGTERM raises a KeyboardInterrupt too, and SIGINT ends `bisect` with its code.
    "test_site_serve.py::test_a_signal_ends_it[2-",
    "test_nothing_appears_if_a_check_fails[the op's",
    "test_a_loss_is_one_graph[bert",
    "test_a_right_recipe_passes_and_training_is_what_it_was[gan]",
    "test_a_right_recipe_passes_and_training_is_what_it_was[normalises",
    "test_a_model_in_ddp_is_compiled[model]",
    "test_a_form_comes_back_from_json[conv_bias_relu]",
    # A Trainer's bf16 is autocast: test_its_settings_are_the_arguments reads the setting.
    "test_its_steps_are_the_trainer_s[bf16]",
    "test_a_step_trains_as_written[recomputes_reentrantly]",
    "test_a_step_trains_as_written[told_when_to_update]",
    "test_a_step_trains_as_written[scale_as_a_tensor]",
    # Recorded traces of the same two makers and tools, that are larger or cut less.
    "test_the_identity_holds_on_every_recorded_trace[v100-ddp",
    "test_the_identity_holds_on_every_recorded_trace[mi300x-resnet",
    "test_a_recorded_trace_without_its_gpu_events[h100-qwen",
    "test_a_recorded_trace_without_its_gpu_events[mi300x-qwen",
    "test_a_recorded_trace_without_its_gpu_events[mi300x-resnet",
    "test_a_recorded_trace_without_its_gpu_events[v100",
    "test_a_recorded_trace_without_another_sort_of_event[h100",
    "test_a_recorded_trace_without_another_sort_of_event[mi250",
    "test_the_bins_sum_to_the_identity[v100",
    "test_on_real_traces_it_sums_to_the_window[v100",
)
"""Parts of test ids; what they show is shown at another example, or is of small weight."""


LONG = frozenset(
    line
    for line in (Path(__file__).parent / "long_tests.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without the collector of garbage: what they import stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 10)  # a collection after 700 objects takes a share of all time
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Import before the forks what tests import later, which takes each fork seconds."""
    option = session.config.option
    if option.workers > 1 and not option.collectonly and not session.testsfailed:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in IMPORTED_LATER:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
        # Dynamo times each graph's guards once, behind a flush of the caches, for a log: 20 ms.
        guards = importlib.import_module("torch._dynamo.guards")
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]


def is_thorough(item: pytest.Item) -> bool:
    name = item.nodeid  # a property that is made anew each time
    return (
        name.partition("[")[0].removeprefix("tests/") in LONG
        or item.get_closest_marker("thorough") is not None
        or any(part in name for part in MORE_EXAMPLES)
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave thorough tests out, and count them, unless everything is asked for."""
    kept = items if EVERYTHING else [item for item in items if not is_thorough(item)]
    config.stash[LEFT_OUT] = len(items) - len(kept)
    items[:] = sorted(kept, key=lambda item: "test_a_killed_turn" not in item.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Collect once what tests left: pytest does so twice, Python again, and they walk no more."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.line(f"left out: {left_out} thorough tests, which RATCHET_TEST=all runs")


@pytest.fixture
def caplog() -> Iterator[CaughtLogs]:
    with CaughtLogs().attached() as caught:
        yield caught


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """A ledger's commit does not wait for the disk: only a power cut would show it.

    A new ledger takes a tenth of the time.
    """

    def set_pragmas(connection: Any, record: object) -> None:
        as_ever(connection, record)
        connection.execute("PRAGMA synchronous = OFF").close()

    as_ever = connect._set_pragmas
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect, "_set_pragmas", set_pragmas)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A ledger of this run's own, for tests that name none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_LEDGER", str(tmp_path_factory.mktemp("ledger") / "ledger.db"))
        yield


@pytest.fixture(scope="session", autouse=True)
def hardly_worn() -> Iterator[None]:
    """Before an answer a kernel runs one batch of each cheap case, and not hundreds of calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_calls, "FEWEST_CALLS", 1)
        patch.setattr(many_calls, "MOST_CALLS", 1)
        patch.setattr(many_calls, "LEAST_ROUNDS", 1)
        patch.setattr(many_calls, "BATCH", 8)
        patch.setattr(many_calls, "LAST_BATCH", 8)
        patch.setattr(many_calls, "LATE_CALLS", 2)
        patch.setattr(many_calls, "REST_LOOKS", 0)
        patch.setattr(many_calls, "COMPARED_S", 0.02)
        yield


@pytest.fixture
def worn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before an answer a kernel is called hundreds of times, as it is for users."""
    monkeypatch.setattr(many_calls, "FEWEST_CALLS", 300)
    monkeypatch.setattr(many_calls, "MOST_CALLS", 400)
    monkeypatch.setattr(many_calls, "LEAST_ROUNDS", 2)
    monkeypatch.setattr(many_calls, "WORN_S", 30.0)
    monkeypatch.setattr(many_calls, "BATCH", 32)
    monkeypatch.setattr(many_calls, "LAST_BATCH", 128)
    monkeypatch.setattr(many_calls, "LATE_CALLS", 128)
    monkeypatch.setattr(many_calls, "LATE_S", 30.0)
    monkeypatch.setattr(many_calls, "REST_LOOKS", 2)


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict profiles a GPU's kernel for all targets, as `--profile` asks."""
    monkeypatch.setitem(KernelJudge.judge.__kwdefaults__, "profiled", TARGETS)


@pytest.fixture(scope="session")
def kept_judges() -> Iterator[dict[int | None, KernelJudge]]:
    """The judges of a session by their number of cores."""
    kept: dict[int | None, KernelJudge] = {}
    yield kept
    for one in kept.values():
        one.close()


@pytest.fixture(scope="session")
def judge(kept_judges: dict[int | None, KernelJudge]) -> KernelJudge:
    """The judge of all tests that ask for answers: its workers take seconds to start."""
    return kept_judges.setdefault(None, PatientJudge())


@pytest.fixture
def one_judge(kept_judges: dict[int | None, KernelJudge], monkeypatch: pytest.MonkeyPatch) -> None:
    """One judge for all that `ratchet.judge` and the commands open in this process.

    Its worker finds no module whose folder came to `sys.path` later.
    """
    opened = KernelJudge

    def lend(*, threads: int | None = None) -> LentJudge:
        if threads not in kept_judges:
            kept_judges[threads] = opened(threads=threads)
        return LentJudge(kept_judges[threads])

    monkeypatch.setattr(kernel_trial, "KernelJudge", lend)
    monkeypatch.setattr(machines, "KernelJudge", lend)


DESCRIBED: dict[str, dict[str, Any]] = {}


@pytest.fixture
def loaded_once(monkeypatch: pytest.MonkeyPatch, judge: KernelJudge) -> None:
    """Problem files of the same text are run once, beside the judge, which has imported torch."""

    def described(request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        asked = json.dumps(request, sort_keys=True)
        if asked not in DESCRIBED:
            DESCRIBED[asked] = judge.describe(request, limit_s)
        return copy.deepcopy(DESCRIBED[asked])

    monkeypatch.setattr(problem_file, "described", described)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """A folder that all processes of one run share, for what is made once and only read then."""
    folder = pytestconfig.stash.get(SHARED, tmp_path_factory.getbasetemp()) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def made_once(shared: Path) -> Callable[[str, Callable[[], Any]], Any]:
    """Return what a function makes, by its name: made once for all processes of this run."""

    def made(name: str, make: Callable[[], Any]) -> Any:
        path = shared / name
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_bytes(pickle.dumps(make()))
            return pickle.loads(path.read_bytes())

    return made


@pytest.fixture(scope="session")
def compiled(shared: Path) -> Path:
    """A shared folder of compiled kernels."""
    return shared / "compiled"


@pytest.fixture(scope="session")
def new_database() -> Iterator[Callable[[], str]]:
    """Makes an empty database on a PostgreSQL server of this run; returns its URL."""
    with postgres() as new:
        yield new


@pytest.fixture(scope="session")
def court(judge: KernelJudge) -> KernelJudge:
    """The same judge, for tests that judge by names, files and targets."""
    return judge


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two launches of four rounds, one look, four calls a batch: nothing is proven by two."""
    monkeypatch.setattr(plan, "LAUNCHES", 2)
    monkeypatch.setattr(plan, "MAX_ROUNDS", 4)
    monkeypatch.setattr(plan, "LOOKS", 1)
    monkeypatch.setattr(plan, "MAX_CALLS", 4)


@pytest.fixture
def gains_are_seen(few_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rounds of four launches, by which what is far faster is proven: see test_judge_gains."""
    monkeypatch.setattr(plan, "LAUNCHES", 4)
