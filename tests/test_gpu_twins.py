"""Every test that needs a GPU has a twin that shows the same rule on a GPU that is not here."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
DEVICE = "judge/trial/test_judge_device.py"
EVIDENCE = "judge/integrity/test_device_evidence.py"
SIMULATED = "optimize/test_simulated_gpu.py"
TWINS = {
    "devices/test_devices_ceilings.py": f"{SIMULATED}::test_a_process_meets_a_gpu",
    "devices/test_devices_probe.py": (
        "devices/test_devices_probe.py::test_rocm_and_cuda_are_read_alike"
    ),
    "kernels/test_library_triton.py": (
        "kernels/test_library_triton.py::test_an_entry_is_right_in_the_emulator"
    ),
    "workloads/test_workloads_load.py": f"{SIMULATED}::test_a_process_meets_a_gpu",
    "judge/trial/test_judge_gpu.py": f"{DEVICE}::test_an_honest_kernel_is_right_and_timed",
    # Their clocks and streams need a GPU; what catches them is tested on records of one.
    "exploits/test_exploit_empty_graph.py": f"{EVIDENCE}::test_other_streams_and_graphs_are_named",
    "exploits/test_exploit_event_swap.py": f"{EVIDENCE}::test_clocks_that_do_not_are_told",
    "exploits/test_exploit_gpu_background_thread.py": (
        f"{DEVICE}::test_work_that_goes_on_after_the_answer_is_not_right"
    ),
    "exploits/test_exploit_gpu_expected_overwritten.py": (
        f"{DEVICE}::test_the_reference_worker_holds_nothing_of_a_batch"
    ),
    "exploits/test_exploit_gpu_shared_memory.py": (
        f"{DEVICE}::test_memory_that_was_not_written_is_wrong"
    ),
    "exploits/test_exploit_gpu_stale_memory.py": (
        f"{DEVICE}::test_memory_that_was_not_written_is_wrong"
    ),
    "exploits/test_exploit_hidden_launches.py": (
        f"{EVIDENCE}::test_a_librarys_kernel_is_not_the_candidates_own"
    ),
    "exploits/test_exploit_named_softmax.py": (
        f"{EVIDENCE}::test_of_triton_only_what_the_source_declares_is_its_own"
    ),
    "exploits/test_exploit_persisting_l2.py": (
        "judge/workers/test_device_memory.py"
        "::test_persisting_lines_are_reset_where_there_is_such_a_thing"
    ),
    "exploits/test_exploit_pool_stream.py": f"{EVIDENCE}::test_other_streams_and_graphs_are_named",
    "exploits/test_exploit_side_stream.py": f"{EVIDENCE}::test_other_streams_and_graphs_are_named",
    "exploits/test_exploit_stale_graph.py": f"{DEVICE}::test_what_is_wrong_on_cores_is_wrong_here",
}
"""By a file whose tests need a GPU, the test that shows its rule without one."""
MARK = re.compile(r"^(?:pytestmark = .*|@|    )pytest\.mark\.gpu\b", re.MULTILINE)


def test_every_file_that_needs_a_gpu_has_a_twin() -> None:
    marked = {
        str(path.relative_to(HERE))
        for path in HERE.rglob("test_*.py")
        if path.name != "test_gpu_twins.py" and MARK.search(path.read_text())
    }
    assert marked == set(TWINS)


def test_every_twin_is_a_test_that_needs_none() -> None:
    for twin in TWINS.values():
        file, _, name = twin.partition("::")
        text = (HERE / file).read_text()
        found = re.search(rf"((?:^@.*\n|^\).*\n|^ .*\n)*)^def {name}\(", text, re.MULTILINE)
        assert found is not None, twin
        assert "mark.gpu" not in found[1].split("\n\n")[-1], twin
