"""The exceptions that a user may see, or that one wing raises and another catches.

An exception that only its own room knows stands beside the code that raises it, and extends one of
these if a user may see it.

RatchetError                 one line: the value, the rule, the remedy; the CLI exits with 2
├── WorkloadError            an unknown workload, a user's script that raises, a loss that is NaN
├── FileError                a file or folder that cannot be written: no room, no permission
├── DeviceError              a device that is not there, a batch that does not fit its memory
│   └── DeviceLost           a GPU that stops answering
├── MeasureError             too few samples, an arm that reported no time
├── KernelError              a kernel source that cannot be compiled or loaded
│   └── CompilerMissing      no C++ compiler on this machine
├── JudgeError               the judge itself could not do its work
│   └── ArmFailure           the process of an arm died, timed out or answered nonsense
├── OutOfTime                the time that was given is over; nothing is wrong with what ran
├── LedgerError              a ledger that is locked, read-only, full or from a newer schema
├── EndpointError            a language model that cannot be asked: its key, its endpoint
├── KnowledgeError           documents that cannot be indexed or searched
├── LearnError               a corpus, a model or a run of learning that cannot be used
├── GraphError               a pattern that cannot be installed in this graph
├── HistoryError             results over commits that cannot be read, written or found
├── RepositoryError          a git repository that lacks what was asked of it
├── WatchError               a suite for `ratchet watch` that cannot be run as written
├── TraceError               a profiler trace that cannot be read, or two that cannot be compared
├── PlanError                a model, a cluster or a price that no plan can be made of
├── RanksError               dumps of ranks that cannot be read, a check of ranks that fails
├── GuardError               two things that cannot be compared, a command that fails
├── PortError                a tree that cannot be ported: not read, or not to be written
├── PublishError             a recipe, a script or a step that cannot be exported as asked
└── RecipeError              a recipe that is damaged, or from another device or version
"""

from __future__ import annotations

import errno
import os
import re
from typing import Final

_LOST: Final = re.compile(
    r"fallen off the bus|is lost|uncorrectable (ECC|NVLink) error|busy or unavailable"
    r"|no (CUDA|ROCm|HIP)-capable device|hipErrorNoDevice|device(s)? unavailable",
    re.IGNORECASE,
)
"""Words of CUDA's and HIP's errors that blame the device, not what ran on it."""
_LOST_WORDS: Final = 120  # Characters of such an error that are shown

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OF_THE_WORLD = (
    *_NO_ROOM,
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST, errno.ENOTDIR),
    *(errno.EISDIR, errno.ENOTEMPTY, errno.ELOOP, errno.ENAMETOOLONG, errno.EIO, errno.ESTALE),
    *(errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, errno.EOPNOTSUPP),
)
"""Codes of an OSError that tell about files, disks and permissions, not about a fault of ours."""


LONGEST_LINE = 240  # Most characters taken of an exception that is not ours


class RatchetError(Exception):
    """A mistake that the user can fix. `str(error)` is one line."""

    def __str__(self) -> str:
        return " ".join(super().__str__().split())


def told(error: BaseException) -> str:
    """Return an exception's name and the first line of what it says, from its innermost cause.

    torch.compile keeps the error of its back end as `inner_exception`. An error of ours is a line
    already.
    """
    while not isinstance(error, RatchetError):
        cause = error.__cause__ or getattr(error, "inner_exception", None)
        if cause is None:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"{type(error).__name__}: {(lines or ['no message'])[0][:LONGEST_LINE]}"
        error = cause
    return str(error)


class FileError(RatchetError, OSError):
    """A file cannot be read or written: no room, no permission, nothing of that name.

    It is an OSError too: who can go on without the file catches that.
    """

    action = "used"

    @classmethod
    def of(
        cls, error: OSError, path: str | os.PathLike[str] | None = None, action: str = "used"
    ) -> FileError:
        """Return the system's error about a path as a line with its remedy."""
        found = cls(error.errno, error.strerror or str(error), path or error.filename)
        found.action = action
        return found

    def __str__(self) -> str:
        if self.filename is None:
            return " ".join(str(self.strerror or self.args[0]).split())
        room = "make room there, or name another" if self.errno in _NO_ROOM else "name another"
        return f"{self.filename} cannot be {self.action} ({self.strerror}): {room}"


class WorkloadError(RatchetError):
    """The workload cannot be built, or its step is not a training step."""

    @classmethod
    def of(cls, name: str, why: str) -> WorkloadError:
        """Return the error of the workload of a name: what is wrong with it, and the remedy."""
        return cls(f"workload {name!r}: {why}")


class DeviceError(RatchetError):
    """The device is missing or too small."""


class DeviceLost(DeviceError):
    """A GPU stopped answering, which says nothing about what ran on it."""

    @classmethod
    def told_by(cls, message: str, where: str) -> DeviceLost | None:
        """Return the error if an error of CUDA or HIP blames the device; else None.

        `where` names what ran, and the message may have several lines.
        """
        words = " ".join(message.split())
        if _LOST.search(words) is None:
            return None
        return cls(
            f"the GPU stopped answering in {where} ({words[:_LOST_WORDS]}): check it (dmesg, "
            "nvidia-smi or rocm-smi) and run again; what was measured is kept"
        )


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


class OutOfTime(RatchetError):
    """The time that was given for this is over, which says nothing about what was at work."""


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


class PlanError(RatchetError):
    """A model, a cluster, a layout or a price from which no plan can be made."""


class RanksError(RatchetError):
    """Dumps of ranks that cannot be read, or ranks that cannot be checked."""


class GuardError(RatchetError):
    """Two things cannot be compared, or the command to be timed fails."""


class PortError(RatchetError):
    """A tree cannot be ported: it cannot be read, or must not be written."""


class PublishError(RatchetError):
    """A recipe, a script or a workload's step that cannot be exported as asked."""


class RecipeError(RatchetError):
    """The recipe is damaged, or belongs to another model or optimizer."""


class ForeignRecipe(RecipeError):
    """The recipe was proven on another device or with other versions."""
