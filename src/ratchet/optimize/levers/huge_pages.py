"""Use transparent huge pages for large tensors."""

from pathlib import Path

from ratchet.optimize.levers.base import Situation, field_lever

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _applies(situation: Situation) -> str | None:
    if situation.device_kind != "cpu":
        return "it applies only to CPUs"
    try:
        setting = _SETTING.read_text()
    except OSError:
        return "the kernel has no transparent huge pages"
    if "[never]" in setting:
        return "transparent huge pages are switched off in the kernel"
    if "[always]" in setting:
        return "transparent huge pages are already on for every process"
    return None


LEVER = field_lever(
    "huge_pages",
    True,
    name="huge-pages",
    summary="madvise(MADV_HUGEPAGE) for tensors of 2 MiB and more (THP_MEM_ALLOC_ENABLE=1)",
    expected="one page fault and one TLB entry for 2 MiB instead of 4 KiB",
    source="PyTorch source, c10/core/impl/alloc_cpu.cpp; Linux admin guide, transhuge",
    applies=_applies,
    acts_on=("system",),
)
