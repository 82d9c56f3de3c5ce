"""A Python package of a recipe's kernels as `torch.library` ops, which needs no Ratchet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final

from ratchet.judge.kernels import registry
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages.cpp import FLAGS, HEADERS, macros
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.kernels.library.sources import OpExample
from ratchet.judge.problems.case import TensorSpec
from ratchet.train.publish.admitted import AdmittedKernel, AdmittedRecipe
from ratchet.train.publish.extract import Extract, file_of
from ratchet.train.publish.runtime import native, serving
from ratchet.train.recipe.installed import RegionKernel

HEAD: Final = '''"""Each op against plain torch: results, gradients, opcheck, torch.compile."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

{load}


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_()


def tensors(found: object) -> list[Tensor]:
    return list(found) if isinstance(found, tuple | list) else [found]


def close(found: Tensor, wanted: Tensor, tolerance: float) -> bool:
    apart = (found.double() - wanted.double()).abs().max()
    return bool(apart <= tolerance * wanted.double().abs().max().clamp(min=1e-6))


def gradients(results: list[Tensor], arguments: tuple[object, ...]) -> list[Tensor]:
    leaves = [one for one in arguments if isinstance(one, Tensor) and one.requires_grad]
    total = sum((one.float() * one.detach().float().cos()).sum() for one in results)
    assert isinstance(total, Tensor)
    return list(torch.autograd.grad(total, leaves))


def check(name: str, arguments: tuple[object, ...], wanted: list[Tensor], tolerance: float) -> None:
    op, expected = getattr(package, name), gradients(wanted, arguments)
    torch._dynamo.reset()
    for call in (op, torch.compile(lambda *given: op(*given), backend="aot_eager", fullgraph=True)):
        found = tensors(call(*arguments))[: len(wanted)]
        pairs = list(zip(found, wanted))
        pairs += zip(gradients(found, arguments), expected)
        for index, (one, other) in enumerate(pairs):
            assert close(one, other, tolerance), f"{{name}}: result or gradient {{index}} is wrong"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(op.default, arguments, rtol=tolerance, atol=tolerance)
'''

ADAMW: Final = """

def test_adamw() -> None:
    models = [torch.nn.Linear(24, 16).to(DEVICE) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    own, other = (torch.optim.AdamW(one.parameters(), lr=1e-2) for one in models)
    for _ in range(3):
        for model in models:
            model(x(8, 24).detach()).square().sum().backward()
        package.step_adamw(own)
        other.step()
        for optimizer in (own, other):
            optimizer.zero_grad()
    for one, two in zip(models[0].parameters(), models[1].parameters()):
        assert close(one.detach(), two.detach(), 1e-5), "a parameter after three steps is wrong"
"""

OP: Final = """

def test_{name}() -> None:
    a = ({arguments})
    check("{name}", a, tensors({expected}), {tolerance})
"""

REGION: Final = """

def test_{name}() -> None:
    inputs = [{inputs}]
    with torch.no_grad():
        found = package.{name}(inputs)
        wanted = package.{reference}.reference(*inputs, ())
        fake = torch.compile(lambda: package.{name}(inputs), backend="aot_eager", fullgraph=True)()
    for one, other, shape in zip(found, wanted, fake):
        assert one.shape == other.shape == shape.shape and one.dtype == other.dtype
        assert close(one, other, {tolerance}), "a result is wrong"
"""

TAIL: Final = '''

def test_kernels_served() -> None:
    """Last: what ran above ran the kernels, if this machine can."""
    if not package.LEFT_OUT:
        assert not package.FALLBACKS, f"plain torch ran instead of {dict(package.FALLBACKS)}"


if __name__ == "__main__":
    tests = [one for name, one in list(globals().items()) if name.startswith("test_")]
    for test in tests:
        test()
    print(json.dumps({"checked": len(tests) - 1, "left_out": package.LEFT_OUT}))
'''


KERNELS: Final = "kernels.json"
SOURCES: Final = {"cpp": "csrc", "triton": "triton"}
REGION_TOLERANCE: Final = 2e-2

Files = dict[PurePosixPath, bytes]


@dataclass(frozen=True)
class KernelPackage:
    admitted: AdmittedRecipe
    name: str  # The package's name in Python
    namespace: str = ""  # That of its ops under `torch.ops`; by default the package's name

    @property
    def ops(self) -> str:
        return self.namespace or self.name

    @cached_property
    def digest(self) -> str:
        content = hashlib.sha256()
        for path, text in sorted(self.modules.items()):
            content.update(f"{path}\0".encode() + text)
        return content.hexdigest()

    @cached_property
    def modules(self) -> Files:
        """Return the Python modules and the sources of the kernels."""
        found = {PurePosixPath("__init__.py"): self._init().encode()}
        for name, text in self._extract().texts(self.ops).items():
            found[PurePosixPath(name)] = text.encode()
        for one in self.admitted.kernels:
            found[self.source(one)] = one.kernel.source.encode()
        if self.has("cpp"):
            header = "ratchet_abi.h"
            found[PurePosixPath("csrc") / header] = (HEADERS / header).read_bytes()
        return found

    def manifest(self, *, built: bool) -> bytes:
        """Return `kernels.json`: with `built`, the libraries are those of this machine."""
        rows = [self._row(one) for one in self.admitted.kernels]
        needed = native.features() if built and self.has("cpp") else []
        return json.dumps({"features": needed, "kernels": rows}, indent=2).encode()

    def libraries(self) -> Files:
        """Return the compiled libraries, built on this machine for it."""
        return {
            self.library(one): one.built.read_bytes()
            for one in self.admitted.kernels
            if one.kernel.language == "cpp"
        }

    def has(self, language: str) -> bool:
        return any(one.kernel.language == language for one in self.admitted.kernels)

    def source(self, one: AdmittedKernel) -> PurePosixPath:
        """Return the place of a kernel's source; entries of one source share it."""
        folder = SOURCES[one.kernel.language]
        ending = "cpp" if one.kernel.language == "cpp" else "py"
        return PurePosixPath(folder) / f"{_stem(one)}.{ending}"

    def library(self, one: AdmittedKernel) -> PurePosixPath:
        """Return the place of a kernel's compiled library."""
        return PurePosixPath("native") / f"{_stem(one)}.so"

    def tests(self, load: str) -> bytes:
        """Return the package's tests; `load` are the lines that import it as `package`."""
        parts = [HEAD.format(load=load)]
        for name, example in self._examples().items():
            parts.append(OP.format(name=name, **asdict(example)))
        parts += [ADAMW] if "adamw" in self.admitted.libraries else []
        for one in self._regions():
            inputs = ", ".join(map(_input_text, one.problems()[0].cases[0].inputs))
            name = region_op(one)
            parts.append(
                REGION.format(
                    name=name,
                    inputs=inputs,
                    reference=file_of(f".{name}_reference"),
                    tolerance=REGION_TOLERANCE,
                )
            )
        return "".join([*parts, TAIL]).encode()

    def names(self) -> tuple[str, ...]:
        """Return the public names: ops, regions' ops and functions."""
        ops = self._examples()
        regions = [region_op(one) for one in self._regions()]
        functions = ["step_adamw"] if "adamw" in self.admitted.libraries else []
        return (*ops, *regions, *functions)

    def _examples(self) -> dict[str, OpExample]:
        own = (LIBRARY[name] for name in self.admitted.libraries if name in LIBRARY)
        return {name: one for kernel in own for name, one in kernel.examples.items()}

    def _extract(self) -> Extract:
        own = [name for name in self.admitted.libraries if name in LIBRARY]
        extract = Extract(frozenset(set(LIBRARY) - set(own)))
        for name in own:
            asked = ["step_adamw"] if name == "adamw" else []
            extract.add(LIBRARY[name].module, asked)
        extract.add(serving.__name__, ["serve_kernels"])
        extract.add(registry.__name__, ["fallbacks"])
        if self.has("cpp"):
            extract.add(native.__name__, ["compile_kernels"])
        for one in self._regions():
            extract.add(serving.__name__, ["declare_region"])
            (problem,) = one.problems()
            extract.add(f"ratchet.{region_op(one)}_reference", ["reference"], problem.text)
        return extract

    def _init(self) -> str:
        own = [name for name in self.admitted.libraries if name in LIBRARY]
        homes = [file_of(LIBRARY[name].module) for name in own]
        references = [file_of(f".{region_op(one)}_reference") for one in self._regions()]
        modules = sorted({*homes, *references})
        names = self.names()
        ops = [name for name in names if name != "step_adamw"]
        lines = [
            f'"""Kernels proven for the training step of {self.admitted.recipe.workload!r}.',
            "",
            *(f"    torch.ops.{self.ops}.{name}" for name in ops),
            '"""',
            "",
            "from pathlib import Path",
            "",
            "import torch",
            "",
            f"from . import {', '.join(modules)}",
            *(["from ._adamw import step_adamw"] if "step_adamw" in names else []),
            *(["from ._serving import declare_region"] if references else []),
            "from ._registry import fallbacks as FALLBACKS",
            "from ._serving import serve_kernels",
            "",
            f"__all__ = {json.dumps(sorted(names))}",
            "",
        ]
        for one in self._regions():
            reference = file_of(f".{region_op(one)}_reference")
            called = f'"{region_op(one)}", "{one.library}", {reference}.reference'
            lines.append(f"declare_region({called})")
        lines.append("LEFT_OUT = serve_kernels(Path(__file__).parent)")
        lines += [f"{name} = torch.ops.{self.ops}.{name}" for name in ops]
        return "\n".join([*lines, ""])

    def _regions(self) -> Iterator[RegionKernel]:
        for one in self.admitted.kernels:
            if isinstance(one.installed, RegionKernel):
                yield one.installed

    def _row(self, one: AdmittedKernel) -> dict[str, object]:
        kernel, is_cpp = one.kernel, one.kernel.language == "cpp"
        region = isinstance(one.installed, RegionKernel)
        return {
            "entry": one.installed.library if region else kernel.entry,
            "function": kernel.entry,
            "name": kernel.name,
            "language": kernel.language,
            "source": str(self.source(one)),
            "library": str(self.library(one)) if is_cpp else "",
            "flags": [*FLAGS, *macros(kernel)] if is_cpp else [],
            "schedule": [list(pair) for pair in kernel.schedule],
            "hash": kernel.hash,
        }


def kernels_of(files: Mapping[PurePosixPath, bytes]) -> dict[str, Kernel]:
    """Return the kernels of a package's files, as they were read back, by their hash when written.

    Raises KeyError, ValueError: the files are not those of a package.
    """
    rows = json.loads(files[PurePosixPath(KERNELS)])["kernels"]
    return {
        row["hash"]: Kernel.from_json(
            {
                **row,
                "entry": row["function"],
                "source": files[PurePosixPath(row["source"])].decode(),
            }
        )
        for row in rows
    }


def region_op(one: RegionKernel) -> str:
    return f"region_{one.region[:8]}"


def _stem(one: AdmittedKernel) -> str:
    library = region_op(one.installed) if isinstance(one.installed, RegionKernel) else ""
    return f"{library or one.installed.library}_{one.kernel.build_hash[:8]}"


def _input_text(spec: TensorSpec) -> str:
    shape, dtype = tuple(spec.shape), f"torch.{spec.dtype}"
    if spec.distribution == "integers" or not spec.dtype.startswith(("float", "bfloat")):
        high = int(spec.high) if spec.high is not None else 2
        return f"torch.randint({max(high, 1)}, {shape}, device=DEVICE).to({dtype})"
    return f"x{shape}.detach().to({dtype})"
