"""Use one OpenMP thread for each core available to this process."""

from ratchet.optimize.levers.base import Lever, Situation
from ratchet.workloads.config import StepConfig


def _applies(situation: Situation) -> str | None:
    if situation.device_kind != "cpu":
        return "it applies only to CPUs"
    if situation.cores < 2:
        return "there is only one core"
    if situation.written.threads in (None, situation.cores):
        return f"the step already uses all {situation.cores} cores"
    return None


def _set(config: StepConfig, situation: Situation) -> StepConfig:
    return config.model_copy(update={"threads": situation.cores})


def _unset(config: StepConfig, situation: Situation) -> StepConfig:
    return config.model_copy(update={"threads": situation.written.threads})


LEVER = Lever(
    name="threads",
    summary="one thread on each core available to this process",
    expected="all cores are used where the script used fewer",
    source="PyTorch documentation, CPU threading and TorchScript inference",
    changes_arithmetic=False,
    applies=_applies,
    set=_set,
    unset=_unset,
    acts_on=("step",),
)
