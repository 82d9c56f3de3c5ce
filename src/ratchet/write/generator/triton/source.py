"""The whole Triton source of a problem's forms under a schedule: memory, kernels, the entry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ratchet.write.form import REALS, InputNode, LoopForm, Matmul, Node, Shape, ordered, over_of
from ratchet.write.form.extent import product_of
from ratchet.write.generator.evaluate import Buffer
from ratchet.write.generator.fusion import LoopNest, Stage, dense, own_reads, planned, reads_of
from ratchet.write.generator.nest_axes import turned_axis
from ratchet.write.generator.schedule import TileChoices
from ratchet.write.generator.source import parts_of
from ratchet.write.generator.triton.nests import TileNest, WrittenStage, words
from ratchet.write.generator.triton.stages import HALVES, TileStage
from ratchet.write.generator.triton.values import TileEvaluator, rendered

_HERE: Final = Path(__file__).parent
HEAD: Final = '''\
"""Written by Ratchet's generator."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

'''
MOST_ELEMENTS: Final = 2**31 - 2**20  # Indices have 32 bits
CALLER: Final = '''
def _options():
    """Return the schedule of a launch; some of it is AMD's alone."""
    options = {{"num_warps": {warps}, "num_stages": {stages}}}
    if {waves} and triton.runtime.driver.active.get_current_target().backend == "hip":
        options["waves_per_eu"] = {waves}
    return options


def _matrix_options():
    if {nonkdim} and triton.runtime.driver.active.get_current_target().backend == "hip":
        return {{"matrix_instr_nonkdim": {nonkdim}}}
    return {{}}


def _tile(height, width, turned):
    """Return rows and columns of a tile whose columns the programs share."""
    block = min(triton.next_power_of_2(width), 32 if turned else {block})
    return max(1, min(triton.next_power_of_2(height), {block} // block)), block


def _row_tile(height, width):
    """Return rows and columns of a tile of whole rows, or of a block of one row."""
    block = triton.next_power_of_2(width)
    block = block if block <= {row} else {block}
    return max(1, min(triton.next_power_of_2(height), {block} // block)), block


def _product_tile(height, width, inner):
    return tuple(
        max(16, min(triton.next_power_of_2(size), most))
        for size, most in zip((height, width, inner), {tile})
    )


def _share(tiles, over):
    """Return the tiles that a program takes, one after the other."""
    return triton.cdiv(tiles, max(1, {programs} // over))


'''


def source_of(forms: Sequence[LoopForm], choices: TileChoices, entry: str) -> str:
    """Return Triton that takes the inputs of any of the forms.

    Raises UnsupportedOp: no code can be written for a part of a form.
    """
    used: set[str] = set()
    parts: list[str] = []
    calls: list[str] = []
    for number, form in enumerate(forms):
        writer = TileForm(form, choices, number)
        parts.append(writer.write())
        used |= writer.evaluator.used
        calls.append(f"    if _fits_{number}(tensors, scalars):")
        calls.append(f"        return _form_{number}(*tensors)")
    caller = CALLER.format(
        warps=choices.warps,
        stages=choices.stages,
        waves=choices.waves,
        nonkdim=choices.nonkdim,
        block=choices.block,
        row=choices.row,
        tile=choices.tile,
        programs=choices.programs,
    )
    names = ", ".join(f"x{k}" for k in range(len(forms[0].inputs)))
    main = [
        f"def {entry}({names}, scalars):",
        f"    tensors = ({names},)",
        *calls,
        '    raise ValueError("written for other numbers, dtypes or sizes of tensors")',
        "",
    ]
    return HEAD + prelude(frozenset(used)) + caller + "\n\n".join([*parts, "\n".join(main)])


def prelude(used: frozenset[str]) -> str:
    """Return the parts of the prelude that code uses, in order."""
    parts = parts_of([_HERE / "prelude.py"], "#: ", used, "in Triton")
    return "".join(f"\n{part.strip()}\n\n" for part in parts)


class TileForm:
    """Writes one form's kernels and the function that launches them."""

    def __init__(self, form: LoopForm, choices: TileChoices, number: int) -> None:
        self.form, self.choices, self.number = form, choices, number
        self.plan = planned(form, fuse=choices.fuse, factors=not choices.prologue, parts=False)
        self.buffers: dict[Node, Buffer] = {}
        self.made: list[str] = []
        self.evaluator = TileEvaluator(self.buffers)
        self._place_buffers()
        self.names = [one.name for one in self.buffers.values()]
        self.names += [name for name, _ in bindings(form)]

    def write(self) -> str:
        epilogues = self._epilogues()
        taken = {id(nest): product for product, nest in epilogues.items()}
        kernels: list[str] = []
        host: list[str] = []
        for number, stage in enumerate(self.plan.stages):
            tag = f"{self.number}_{number}"
            if isinstance(stage, LoopNest):
                product = taken.get(id(stage))
                own = TileStage(tag, self.evaluator, self.names)
                written = own.write(product, stage) if product else self._nest(stage, tag)
            elif stage.node in epilogues:
                continue
            else:
                written = TileStage(tag, self.evaluator, self.names).write(stage.node, None)
            kernels += written.kernels
            host += written.host
        return "\n\n\n".join([*kernels, self._fits(), self._function(host)])

    # --- memory

    def _place_buffers(self) -> None:
        nodes = ordered(self.plan.outputs)
        for node in nodes:
            if isinstance(node, InputNode):
                self._declare(node, f"x{node.place}", node.dtype)
        for output, slot in zip(self.plan.outputs, self.form.slots, strict=True):
            self._declare(output, f"y{slot}", output.dtype)
            self.made.append(self._empty(output, output.shape))
        factors = self._only_factors()
        for node in nodes:
            if node in self.plan.kept and node not in self.buffers:
                real = node.dtype in REALS and node.dtype != "float64"
                half = node.dtype in HALVES and node in factors
                dtype = "float32" if real and not half else node.dtype
                self._declare(node, f"b{len(self.buffers)}", dtype)
                self.made.append(self._empty(node, (product_of(node.shape),)))

    def _declare(self, node: Node, name: str, dtype: str) -> None:
        self.buffers[node] = Buffer(name=name, dtype=dtype, shape=node.shape, strided=False)

    def _empty(self, node: Node, shape: Shape) -> str:
        buffer = self.buffers[node]
        sizes = "".join(f"{rendered(size, host=True)}, " for size in shape)
        dtype = "uint8" if buffer.dtype.startswith("float8") else buffer.dtype
        return f"{buffer.name} = torch.empty(({sizes}), dtype=torch.{dtype}, device=device)"

    def _only_factors(self) -> set[Node]:
        """Return nodes with memory that only products read."""
        factors: set[Node] = set()
        others: set[Node] = set(self.plan.outputs)
        for stage in self.plan.stages:
            for node in stage.nodes:
                found = {one for one, _ in own_reads(node, self.plan.kept)}
                if isinstance(node, Matmul):
                    factors |= found
                else:
                    others |= found
        return factors - others

    # --- stages

    def _nest(self, nest: LoopNest, tag: str) -> WrittenStage:
        elsewhere = self.plan.read_outside((nest,))
        every = tuple(range(len(nest.sizes)))
        addresses = [
            self.buffers[one].address(index)
            for node in nest.members
            for one, index in reads_of(node, nest.place_of(over_of(node), every), self.plan.kept)
            if one in self.buffers and not any("@" in name for e in index for name in e.names)
        ]
        names = [f"{nest.name}_{place}" for place in every]
        turned = turned_axis(addresses, names) if self.choices.turn else None
        writer = TileNest(
            nest,
            self.plan,
            self.evaluator,
            self.names,
            elsewhere,
            turned=turned,
            stays=self.choices.loop,
        )
        return writer.write(tag)

    def _epilogues(self) -> dict[Node, LoopNest]:
        """Return the nests that only go through one product's result, element by element."""
        readers: dict[Node, list[tuple[Stage, Node]]] = {}
        for stage in self.plan.stages:
            for node in stage.nodes:
                for one, _ in own_reads(node, self.plan.kept):
                    readers.setdefault(one, []).append((stage, node))
        found: dict[Node, LoopNest] = {}
        for product, uses in readers.items():
            nests = {id(stage): stage for stage, _ in uses}
            nest = next(iter(nests.values()))
            if (
                isinstance(product, Matmul)
                and product not in self.plan.outputs
                and len(nests) == 1
                and isinstance(nest, LoopNest)
                and nest not in found.values()
                and self._goes_through(nest, product)
            ):
                found[product] = nest
        return found

    def _goes_through(self, nest: LoopNest, product: Matmul) -> bool:
        every = tuple(range(len(nest.sizes)))
        whole = len(nest.sizes) == len(dense(product.shape))
        if not whole or set(nest.members.values()) != {"element"}:
            return False
        return all(
            index == nest.place_of(product.shape, every)
            for node in nest.members
            for one, index in reads_of(node, nest.place_of(node.shape, every), self.plan.kept)
            if one is product
        )

    # --- the caller

    def _fits(self) -> str:
        form = self.form
        tensors = ", ".join(f"x{k}" for k in range(len(form.inputs)))
        lines = [f"def _fits_{self.number}(tensors, scalars):"]
        if form.scalars:
            lines.append(f"    if tuple(scalars[:{len(form.scalars)}]) != {form.scalars!r}:")
            lines.append("        return False")
        lines.append(f"    ({tensors},) = tensors")
        ranks = ", ".join(f"({len(one.shape)}, torch.{one.dtype})" for one in form.inputs)
        lines.append(f"    if [(one.dim(), one.dtype) for one in tensors] != [{ranks}]:")
        lines.append("        return False")
        lines += [f"    {name} = {text}" for name, text in bindings(form)]
        shapes = "".join(
            f"({''.join(f'{rendered(size, host=True)}, ' for size in one.shape)}), "
            for one in form.inputs
        )
        sizes = [product_of(node.shape) for node in self.buffers]
        most = ", ".join(dict.fromkeys(rendered(size, host=True) for size in sizes))
        lines.append(f"    if max({most}, 0) > {MOST_ELEMENTS}:")
        lines.append("        return False")
        lines.append(f"    return [tuple(one.shape) for one in tensors] == [{shapes}]")
        return "\n".join(lines)

    def _function(self, host: Sequence[str]) -> str:
        tensors = ", ".join(f"x{k}" for k in range(len(self.form.inputs)))
        lines = [f"def _form_{self.number}({tensors}):", "    device = x0.device"]
        lines += [f"    {name} = {text}" for name, text in bindings(self.form)]
        for node, buffer in self.buffers.items():
            if isinstance(node, InputNode):
                codes = ".view(torch.uint8)" if buffer.dtype.startswith("float8") else ""
                lines.append(f"    {buffer.name} = {buffer.name}.contiguous(){codes}")
        spoken = words(host)
        made = [line for line in self.made if line.partition(" ")[0] in spoken]
        lines += [f"    {line}" for line in [*made, *host]]
        answers = []
        for node, slot in zip(self.plan.outputs, self.form.slots, strict=True):
            codes = f".view(torch.{node.dtype})" if node.dtype.startswith("float8") else ""
            answers.append(f"y{slot}{codes}, ")
        return "\n".join([*lines, f"    return ({''.join(answers)})"])


def bindings(form: LoopForm) -> list[tuple[str, str]]:
    """Return every size that the form names, and the Python that reads it off the inputs."""
    return [
        (name, f"x{place}.shape[{dim}]{f' // {factor}' if factor != 1 else ''}")
        for name, (place, dim, factor) in form.named_sizes().items()
    ]
