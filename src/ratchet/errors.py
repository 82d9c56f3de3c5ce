"""All exceptions that Ratchet raises on purpose.

RatchetError                 one line: the value, the rule, the remedy; the CLI exits with 2
├── WorkloadError            an unknown workload, a user's script that raises, a loss that is NaN
├── DeviceError              a device that is not there, a batch that does not fit its memory
├── MeasureError             too few samples, an arm that reported no time
├── KernelError              a kernel source that cannot be compiled or loaded
│   └── CompilerMissing      no C++ compiler on this machine
├── JudgeError               the judge itself could not do its work
│   └── ArmFailure           the process of an arm died, timed out or answered nonsense
│       └── DeadlinePassed   an arm was stopped at its deadline
├── LedgerError              a ledger that is locked, read-only, full or from a newer schema
├── EndpointError            a language model that cannot be asked: its key, its endpoint
├── KnowledgeError           documents that cannot be indexed or searched
├── LearnError               a corpus, a model or a run of learning that cannot be used
├── GraphError               a pattern that cannot be installed in this graph
├── HistoryError             results over commits that cannot be read, written or found
├── RepositoryError          a git repository that lacks what was asked of it
├── WatchError               a suite for `ratchet watch` that cannot be run as written
├── TraceError               a profiler trace that cannot be read, or two that cannot be compared
├── GuardError               two things that cannot be compared, a command that fails
└── RecipeError              a recipe that is damaged, or from another device or version
"""

from __future__ import annotations


class RatchetError(Exception):
    """A mistake that the user can fix. `str(error)` is one line."""

    def __str__(self) -> str:
        return " ".join(super().__str__().split())


class WorkloadError(RatchetError):
    """The workload cannot be built, or its step is not a training step."""


class DeviceError(RatchetError):
    """The device is missing or too small."""


class MeasureError(RatchetError):
    """The samples do not suffice for the answer."""


class KernelError(RatchetError):
    """A kernel's source cannot be compiled, loaded or called."""


class CompilerMissing(KernelError):
    """There is no C++ compiler on this machine."""


class JudgeError(RatchetError):
    """The judge itself failed; this is never a verdict."""


class ArmFailure(JudgeError):
    """The process of an arm died, timed out or answered nonsense."""


class DeadlinePassed(ArmFailure):
    """An arm was stopped at its deadline, which says nothing about the arm."""


class LedgerError(RatchetError):
    """The ledger cannot be opened, read or written."""


class EndpointError(RatchetError):
    """A language model's endpoint cannot be asked."""


class KnowledgeError(RatchetError):
    """The documents' index cannot be opened, or holds no such document."""


class GraphError(RatchetError):
    """A pattern cannot be installed in this graph."""


class HistoryError(RatchetError):
    """Results over commits cannot be read, written or found."""


class RepositoryError(RatchetError):
    """A git repository is missing, shallow, or lacks a revision."""


class WatchError(RatchetError):
    """The suite of `ratchet watch` cannot be run as it is written."""


class LearnError(RatchetError):
    """A corpus, a model, a policy or a run's folder cannot be used for learning."""


class TraceError(RatchetError):
    """A profiler trace cannot be read, or lacks the requested data."""


class GuardError(RatchetError):
    """Two things cannot be compared, or the command to be timed fails."""


class RecipeError(RatchetError):
    """The recipe is damaged, or belongs to another model or optimizer."""


class ForeignRecipe(RecipeError):
    """The recipe was proven on another device or with other versions."""
