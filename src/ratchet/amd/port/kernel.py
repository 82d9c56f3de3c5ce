"""A CUDA kernel as it would be on ROCm, before it is judged on one of AMD's GPUs."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from ratchet.amd.port.patch import edited
from ratchet.amd.port.scan import scan
from ratchet.judge.kernels.carried_files import split_files, with_files
from ratchet.judge.kernels.kernel import Kernel

SIGNS: Final = ("<<<", "cuda", "__global__")
"""Words of which CUDA code has at least one."""
_HIP: Final = re.compile(
    r'^\s*#\s*include\s*[<"](?:(?:ATen/|c10/)?hip/|ratchet_abi\.h)', re.MULTILINE
)
"""An include of code for AMD, which is left as it is, unless it names CUDA too."""


def ported(kernel: Kernel) -> Kernel:
    """Return a kernel with the patch that `ratchet port` makes of its file, or as it is.

    torch renames CUDA's functions itself when it builds an extension.

    Raises:
        PortError: tree-sitter is missing.
    """
    if not any(sign in kernel.source for sign in SIGNS):
        return kernel
    if _HIP.search(kernel.source) and "cuda" not in kernel.source.lower():
        return kernel
    text, carried = split_files(kernel.source)
    with tempfile.TemporaryDirectory(prefix="ratchet-port-") as root:
        home = carried.write(Path(root))
        path = home / ("kernel.cu" if kernel.language == "hip" else "kernel.py")
        path.write_bytes(text.encode())
        for scanned in scan(Path(root)):
            if any(one.edits for one in scanned.findings):
                (Path(root) / scanned.found.name).write_bytes(edited(scanned))
        comment = "#" if path.suffix == ".py" else "//"
        text = path.read_bytes().decode()
        return replace(kernel, source=with_files(text, carried.read(Path(root)), comment))
