"""The two folders that a package is published in: that of `kernels`, and a project of a wheel."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

import torch

from ratchet.train.publish.admitted import card
from ratchet.train.publish.package import KERNELS, Files, KernelPackage

LICENSE: Final = "Apache-2.0"
TORCH: Final = "torch>=2.11"
TESTS: Final = PurePosixPath("tests") / "test_ops.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportLayout:
    """The files to publish, and where the package's sources lie among them."""

    files: Files
    package: PurePosixPath  # Folder of the Python modules, the kernels' sources and `kernels.json`
    built: Files = field(default_factory=dict)
    """Files that building adds to that folder, for a check without a build."""


def hub_layout(package: KernelPackage) -> ExportLayout:
    """Return the repository that Hugging Face's `kernels` loads.

    `torch-ext/` holds the sources, `build/` one variant: for C++ of this torch and architecture,
    for Triton `torch-universal`, since every GPU compiles it for itself.
    """
    targets = [getattr(one.installed, "isa", "") for one in package.admitted.kernels]
    on_gpu = "rocm" if any(target.startswith("gfx") for target in targets) else "cuda"
    backend = "cpu" if package.has("cpp") else on_gpu
    own = f"_{package.name}_{backend}_{package.digest[:8]}"
    name, package = hub_name(package.name), KernelPackage(package.admitted, package.name, own)
    variant, sources = (
        PurePosixPath("build") / variant_of(package),
        PurePosixPath("torch-ext") / package.name,
    )
    built = {path: text for path, text in package.modules.items() if path.parts[0] != "csrc"}
    built |= package.libraries() | {PurePosixPath(KERNELS): package.manifest(built=True)}
    built[PurePosixPath(package.name) / "__init__.py"] = _OLDER.format(id=own).encode()
    digests = {
        str(path): base64.b64encode(hashlib.sha256(text).digest()).decode()
        for path, text in sorted(built.items())
    }
    metadata = {
        "id": own,
        "name": name,
        "version": 1,
        "license": LICENSE,
        "python-depends": [],
        "backend": {"type": backend},
        "digest": {"algorithm": "sha256", "files": digests},
    }
    built[PurePosixPath("metadata.json")] = json.dumps(metadata, indent=2).encode()
    asked = ', backend="cpu"' if backend == "cpu" else ""
    loads = f"package = get_local_kernel(Path(__file__).parents[1]{asked})"
    own_files = _own_files(package, f"from kernels import get_local_kernel\n\n{loads}", sources)
    how = ("from kernels import get_kernel", "", f'kernels = get_kernel("USER/{name}", version=1)')
    return ExportLayout(
        files={
            **{variant / path: text for path, text in built.items()},
            **own_files,
            PurePosixPath("build.toml"): _BUILD.format(name=name, backend=backend).encode(),
            PurePosixPath("README.md"): _FRONT.encode() + card(package.admitted, name, how),
        },
        package=sources,
    )


def wheel_layout(package: KernelPackage) -> ExportLayout:
    """Return a project that pip builds; its C++ is compiled on the machine that installs it."""
    name, sources = hub_name(package.name), PurePosixPath("src") / package.name
    files = _own_files(package, f"import {package.name} as package", sources)
    project = _PROJECT.format(name=name, package=package.name, license=LICENSE, torch=TORCH)
    files[PurePosixPath("pyproject.toml")] = project.encode()
    if package.has("cpp"):
        files[PurePosixPath("setup.py")] = _SETUP.format(package=package.name).encode()
    how = ("import torch", f"import {package.name} as kernels")
    files[PurePosixPath("README.md")] = card(package.admitted, name, how)
    built = package.libraries() | {PurePosixPath(KERNELS): package.manifest(built=True)}
    return ExportLayout(files=files, package=sources, built=built)


def variant_of(package: KernelPackage) -> str:
    """Return the name of the build variant that `kernels` picks on a machine like this one."""
    if not package.has("cpp"):
        return "torch-universal"
    major, minor = torch.__version__.split(".")[:2]
    abi = "cxx11" if torch.compiled_with_cxx11_abi() else "cxx98"
    return f"torch{major}{minor}-{abi}-cpu-{platform.machine()}-{platform.system().lower()}"


def hub_name(name: str) -> str:
    """Return the name of a repository or a distribution."""
    return name.replace("_", "-")


def _own_files(package: KernelPackage, load: str, sources: PurePosixPath) -> Files:
    """Return the package's sources and its tests, which are the same in both layouts."""
    device = '"cpu"' if package.has("cpp") else '"cuda" if torch.cuda.is_available() else "cpu"'
    files = {sources / path: text for path, text in package.modules.items()}
    files[sources / KERNELS] = package.manifest(built=False)
    files[TESTS] = package.tests(f"{load}\nDEVICE = {device}")
    return files


_FRONT: Final = """---
license: apache-2.0
library_name: kernels
tags:
- kernels
---

"""
_BUILD: Final = """[general]
name = "{name}"
version = 1
license = "Apache-2.0"
backends = ["{backend}"]

[torch-noarch]
"""
_OLDER: Final = '''"""The package for versions of `kernels` that look for it one folder deeper."""

import importlib.util
import sys
from pathlib import Path

if "{id}" not in sys.modules:
    _path = Path(__file__).parents[1] / "__init__.py"
    _spec = importlib.util.spec_from_file_location("{id}", _path)
    sys.modules["{id}"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["{id}"])
globals().update(
    (name, value) for name, value in vars(sys.modules["{id}"]).items() if name[:2] != "__"
)
'''
_PROJECT: Final = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "1.0"
description = "Kernels for a training step, as torch.library ops."
readme = "README.md"
requires-python = ">=3.11"
license = "{license}"
dependencies = ["{torch}"]

[tool.setuptools]
packages = ["{package}"]
package-dir = {{"" = "src"}}

[tool.setuptools.package-data]
"{package}" = ["kernels.json", "csrc/*", "triton/*", "native/*"]
"""
_SETUP: Final = '''"""Build the package: its C++ is compiled for the machine that installs it."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

sys.path.insert(0, str(Path(__file__).parent / "src" / "{package}"))

from _native import compile_kernels, features


class BuildKernels(build_py):
    def run(self) -> None:
        super().run()
        compile_kernels(Path(self.build_lib) / "{package}", features())


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={{"build_py": BuildKernels}}, distclass=BinaryDistribution)
'''
