"""A new folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ratchet.base import scratch
from ratchet.base.errors import FileError, PublishError
from ratchet.base.files import make_folder, why_not_new_folder


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder that becomes `out` once the block ends without an error.

    Raises:
        PublishError: `out` holds something already.
        FileError: it cannot be made.
    """
    if why := why_not_new_folder(out):
        raise FileError(f"the folder {out} {why}")
    if out.exists() and any(out.iterdir()):
        raise PublishError(f"--out {out} holds files already: name a new or an empty folder")
    target = Path(os.path.realpath(out))
    make_folder(target.parent)
    with scratch.folder("export", place=target.parent) as stage:
        made = stage / "made"
        made.mkdir()
        yield made
        try:
            os.rename(made, target)
        except OSError as error:
            raise FileError.of(error, out, "written") from error
