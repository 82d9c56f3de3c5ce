"""pytest's plugin: `pytest --ratchet-target gfx942` runs a suite's Triton kernels emulated.

A launch that fails is an exception in its test, with the kernel's source line; the suite goes on.
The summary says what was launched. Where the entry point is not known, load it with
`-p ratchet.amd.emulator.pytest_plugin`. Tests run unconfined, as they always do under pytest.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

FOLDER = "ratchet_folder"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ratchet", "Triton kernels on an emulated AMD GPU")
    group.addoption("--ratchet-target", metavar="NAME", help="the GPU's code, such as gfx942")
    group.addoption(
        "--ratchet-autotune",
        metavar="HOW",
        default="first",
        help="configuration of autotuned kernels: first or bound",
    )


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin before any file of the suite is imported."""
    target = early_config.known_args_namespace.ratchet_target
    if target is None:
        return
    import pytest

    from ratchet.amd.emulator.program import VARIABLE, check_autotune, settings_for
    from ratchet.base.errors import RatchetError

    try:
        autotune = check_autotune(early_config.known_args_namespace.ratchet_autotune)
        if VARIABLE not in os.environ:  # a worker of pytest-xdist has its controller's
            folder = tempfile.mkdtemp(prefix="ratchet-emulate-")
            setattr(early_config, FOLDER, folder)
            os.environ[VARIABLE] = settings_for(target, folder, autotune).text()
        from ratchet.amd.emulator.start import begin_from_environment

        begin_from_environment()
    except RatchetError as error:
        raise pytest.UsageError(f"ratchet: {error}") from None


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print what was launched."""
    folder = getattr(config, FOLDER, None)
    if folder is None:
        return
    from io import StringIO

    from rich.console import Console

    from ratchet.amd.emulator.program import emulate_report, read_records, read_result
    from ratchet.amd.emulator.start import write_now
    from ratchet.base.show.terminal import print_report

    write_now()
    target = config.getoption("--ratchet-target")
    records = read_records(Path(folder))
    result = read_result(records, target=target, command=(), exit_code=int(exitstatus))
    terminalreporter.section(f"emulated on {target}")
    text = StringIO()
    console = Console(file=text, markup=False, emoji=False, highlight=False, width=100)
    print_report(emulate_report(result), console)
    terminalreporter.write(text.getvalue())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder of the counts."""
    folder = getattr(config, FOLDER, None)
    if folder is not None:
        from ratchet.amd.emulator.program import VARIABLE

        os.environ.pop(VARIABLE, None)
        shutil.rmtree(folder, ignore_errors=True)
