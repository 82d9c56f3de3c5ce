"""The names of `ratchet.judge.targets.Targets`, for AMD GPUs that are not here."""

from ratchet.amd.architectures import TARGETS
from ratchet.amd.emulator.estimates.references import CompiledReferences as references
from ratchet.amd.emulator.estimates.references import said
from ratchet.amd.emulator.hip_build import toolchain
from ratchet.amd.emulator.without_gpu import (
    INTERPRETER,
    RIGHT,
    builder_for,
    emulated,
    estimates,
    interpreted,
    make_ready,
    right_on,
    runs,
    sealed_machine,
    without_blame,
)
from ratchet.amd.port.kernel import ported
from ratchet.amd.profile.inspection import profile_in_verdict

DECIDING = ("amd/architectures.py", "amd/compile/**/*", "amd/emulator/**/*")

__all__ = [
    "DECIDING",
    "INTERPRETER",
    "RIGHT",
    "TARGETS",
    "builder_for",
    "emulated",
    "estimates",
    "interpreted",
    "make_ready",
    "ported",
    "profile_in_verdict",
    "references",
    "right_on",
    "runs",
    "said",
    "sealed_machine",
    "toolchain",
    "without_blame",
]
