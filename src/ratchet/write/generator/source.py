"""The whole C++ source of a form under a schedule: checks, memory, stages, the entry."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import torch

from ratchet.judge.abi import DTYPE_CODES
from ratchet.write.form import (
    REALS,
    Fold,
    InputNode,
    LoopForm,
    Matmul,
    Node,
    Scatter,
    Tensor,
    UnsupportedOp,
    ordered,
)
from ratchet.write.form.extent import ONE, ZERO, Extent, named, product_of
from ratchet.write.generator.chains import Chain, chained, epilogue_of, reads
from ratchet.write.generator.evaluate import STORED, Buffer, Evaluator, Scratch
from ratchet.write.generator.fusion import (
    FusionPlan,
    LoopNest,
    Stage,
    passes_of,
    planned,
)
from ratchet.write.generator.loops import NestWriter
from ratchet.write.generator.schedule import Choices
from ratchet.write.generator.stages import StageWriter


def parts_of(paths: Sequence[Path], mark: str, used: Iterable[str], where: str = "") -> list[str]:
    """Return the texts of the parts that code uses, in the order of the files.

    A part begins with a line of the mark, its name and the parts that it needs. Raises
    UnsupportedOp: no file has such a part; `where` says in which language.
    """
    parts = {name: part for path in paths for name, part in _parts(path, mark).items()}
    wanted: set[str] = set()

    def want(name: str) -> None:
        if name not in parts:
            raise UnsupportedOp(name, where)
        for need in parts[name][0]:
            want(need)
        wanted.add(name)

    for name in used:
        want(name)
    texts = (part for name, (_, part) in parts.items() if name in wanted)
    return [text.replace("E4M3_BEYOND", hex(_e4m3_beyond())) for text in texts]


@functools.cache
def _e4m3_beyond() -> int:
    """Return torch's e4m3 code of a number beyond its largest.

    Beyond 464, that is NaN in torch 2.11 and 2.12, and the largest number, 448, in 2.13.
    """
    return int(torch.tensor(1e4).to(torch.float8_e4m3fn).view(torch.uint8))


@functools.cache
def _parts(path: Path, mark: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return name -> (parts that it needs, text)."""
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    for part in path.read_text(encoding="utf-8").split(mark)[1:]:
        first, _, text = part.partition("\n")
        name, *needs = first.split()
        found[name] = (tuple(needs), text)
    return found


COPIED_ALONE: Final = 1 << 15  # Elements below which one thread copies an output to its place
_HERE: Final = Path(__file__).parent


def source_of(forms: Sequence[LoopForm], choices: Choices, entry: str) -> str:
    """Return C++ that takes the inputs of any of the forms.

    Raises UnsupportedOp: no code can be written for a part of a form.
    """
    parts: list[str] = []
    used: set[str] = set()
    calls: list[str] = []
    for number, form in enumerate(forms):
        plan = planned(form, fuse=choices.fuse, apart=choices.factors == "read")
        for kind in ("dense", "strided"):
            name = f"{kind}_{number}"
            text, own = FormWriter(form, plan, choices, strided=kind == "strided").write(name)
            parts.append(text)
            used |= own
        calls.append(
            f"if (fits_{number}(t, count, scalars, scalar_count)) "
            f"return (all_dense ? dense_{number} : strided_{number})(t);"
        )
        parts.append(_fits(form, number))
    body = "\n    ".join(calls)
    unrolled = ', "unroll-loops"' if choices.unroll else ""
    return "\n".join(
        [
            "#if defined(__GNUC__) && !defined(__clang__)",
            f'#pragma GCC optimize("no-trapping-math"{unrolled})',
            "#if defined(__AVX512F__)",
            f'#pragma GCC target("prefer-vector-width={choices.width}")',
            "#endif",
            "#endif",
            *(choices.blocks if "gemm" in used else ()),
            prelude(frozenset(used)),
            MEMORY,
            *parts,
            f"RATCHET_ENTRY {entry}(const ratchet_tensor* t, int64_t count, const double* scalars, "
            "int64_t scalar_count) {",
            "    bool all_dense = true;",
            "    for (int64_t k = 0; k < count; ++k)",
            "        all_dense &= ratchet_is_contiguous(t + k) != 0;",
            f"    {body}",
            "    return RATCHET_DECLINED;",
            "}",
            "",
        ]
    )


MEMORY: Final = """
// Scratch memory stays between calls; it grows to the largest.
static char* scratch_of(size_t bytes) {
    static thread_local char* memory = nullptr;
    static thread_local size_t size = 0;
    if (size < bytes) {
        free(memory);
        size = (bytes + 4095) / 4096 * 4096;
        memory = (char*)aligned_alloc(4096, size);
    }
    return memory;
}
"""


def prelude(used: frozenset[str]) -> str:
    """Return the parts of the prelude that code uses, in order."""
    from ratchet.judge.kernels.library.sources import inlined

    files = [_HERE / "prelude.h", _HERE / "gemm.h"]
    return inlined("".join(parts_of(files, "//: ", {"base", *used})))


def _fits(form: LoopForm, number: int) -> str:
    """Write the function that checks ranks, dtypes, scalars and the sizes that belong together."""
    lines = [
        f"static bool fits_{number}(const ratchet_tensor* t, int64_t count, "
        "const double* scalars, int64_t scalar_count) {"
    ]
    tensors = len(form.inputs) + sum(slot >= len(form.inputs) for slot in form.slots)
    lines.append(f"    if (count != {tensors} || scalar_count < {len(form.scalars)}) return false;")
    for place, scalar in enumerate(form.scalars):
        lines.append(f"    if (scalars[{place}] != {scalar!r}) return false;")

    def rank(slot: int, one: Tensor | Node) -> str:
        own = f"t[{slot}].ndim != {len(one.shape)} || t[{slot}].dtype != {DTYPE_CODES[one.dtype]}"
        return f"    if ({own}) return false;"

    def sizes(slot: int, one: Tensor | Node) -> list[str]:
        return [
            f"    if (t[{slot}].size[{dim}] != {size.text}) return false;"
            for dim, size in enumerate(one.shape)
        ]

    lines += [rank(place, tensor) for place, tensor in enumerate(form.inputs)]
    lines += [f"    {line}" for line in _bindings(form)]
    for place, tensor in enumerate(form.inputs):
        lines += sizes(place, tensor)
    for node, slot in zip(form.outputs, form.slots, strict=True):
        lines += [rank(slot, node), *sizes(slot, node)]
    return "\n".join([*lines, "    return true;", "}"])


def _bindings(form: LoopForm) -> list[str]:
    """Declare every size that the form names, from the inputs' sizes."""
    return [
        f"const int64_t {name} = t[{place}].size[{dim}]{f' / {factor}' if factor != 1 else ''};"
        for name, (place, dim, factor) in form.named_sizes().items()
    ]


class FormWriter:
    """Writes one form's function, for dense tensors or for tensors at any strides."""

    def __init__(
        self, form: LoopForm, plan: FusionPlan, choices: Choices, *, strided: bool
    ) -> None:
        self.form, self.plan, self.choices, self.strided = form, plan, choices, strided
        self.scratch: Scratch = []
        self.buffers: dict[Node, Buffer] = {}
        self.copied: list[tuple[Buffer, Buffer]] = []
        self.declared: list[str] = []
        self.tables: list[str] = []
        in_place = any(slot < len(form.inputs) for slot in form.slots)
        single = in_place or not choices.chain
        self.chains = [Chain(stages=(s,)) for s in plan.stages] if single else chained(plan)
        self.epilogues = self._epilogues() if choices.epilogue else {}
        self.private: dict[Node, int] = {}
        for chain in self.chains:
            self.private |= chain.own(plan) if chain.lead else {}
        self.factors = self._narrow_factors()
        self.sums: dict[Node, Buffer] = {}
        """Memory for the float32 sums of products that are stored in bf16."""
        self._place_buffers()

    def write(self, name: str) -> tuple[str, set[str]]:
        """Return the function's text, and the parts of the prelude that it uses."""
        evaluator = Evaluator(self.buffers, reciprocal=self.choices.reciprocal)
        lines: list[str] = []
        for chain in self.chains:
            lines += self._chain(chain, evaluator)
        for source, target in self.copied:
            lines += _copied(source, target, evaluator)
        head = [f"static int64_t {name}(const ratchet_tensor* t) {{", *_bindings(self.form)]
        start = [*head, *self.declared, *self._memory(), *self.tables]
        return _indented([*start, *lines, "return RATCHET_DONE;", "}"]), evaluator.used

    def _epilogues(self) -> dict[Stage, tuple[LoopNest, ...]]:
        found: dict[Stage, tuple[LoopNest, ...]] = {}
        home = {stage: chain for chain in self.chains for stage in chain.stages}
        for place, stage in enumerate(self.plan.stages):
            own, together = home[stage], list[Stage]()
            for one in self.plan.stages[place + 1 :]:
                if home[one] is not own and (home[one].lead or own.lead):
                    break
                together.append(one)
            nests = epilogue_of(stage, together, self.plan, self.form)
            if nests:
                found[stage] = nests
        return found

    # --- memory

    def _place_buffers(self) -> None:
        for node in ordered(self.plan.outputs):
            if isinstance(node, InputNode):
                self.buffers[node] = self._declare(node, f"x{node.place}", node.place, "const ")
        for output, slot in zip(self.plan.outputs, self.form.slots, strict=True):
            if slot < len(self.form.inputs) and not self._safe(output, slot):
                self._scratch_for(output)
                self.copied.append((self.buffers[output], self._declare(output, f"y{slot}", slot)))
            else:
                self.buffers[output] = self._declare(output, f"y{slot}", slot)
        for node in ordered(self.plan.outputs):
            if node in self.plan.kept and node not in self.buffers:
                self._scratch_for(node)

    def _narrow_factors(self) -> set[Node]:
        """Return the nodes in bf16 that products read: they stay so, as in the reference."""
        factors: set[Node] = set()
        for stage in self.plan.stages:
            for node in stage.nodes:
                if isinstance(node, Matmul):
                    for one in (node.left, node.right):
                        factors.add(one if one in self.plan.kept else self.plan.factor(one)[0])
        narrow = {one for one in factors if one.dtype == "bfloat16"}
        return {one for one in narrow if not isinstance(one, Scatter | Fold)}

    def _declare(self, node: Node, name: str, slot: int, const: str = "") -> Buffer:
        kind = STORED[node.dtype]
        restrict = "" if slot in self.form.slots and slot < len(self.form.inputs) else " __restrict"
        self.declared.append(f"{const}{kind}*{restrict} {name} = ({const}{kind}*)t[{slot}].data;")
        if self.strided:
            self.declared += [
                f"const int64_t {name}_s{dim} = t[{slot}].stride[{dim}];"
                for dim in range(len(node.shape))
            ]
        return Buffer(name=name, dtype=node.dtype, shape=node.shape, strided=self.strided)

    def _scratch_for(self, node: Node) -> None:
        name = f"b{len(self.buffers)}"
        dtype = node.dtype
        if dtype in REALS and dtype != "float64" and node not in self.factors:
            dtype = "float32"
        self.buffers[node] = self._scratch(name, node, dtype)
        if isinstance(node, Matmul) and dtype == "bfloat16":
            self.sums[node] = self._scratch(f"{name}_sums", node, "float32")

    def _scratch(self, name: str, node: Node, dtype: str) -> Buffer:
        lead = self.private.get(node, 0)
        count, base = product_of(node.shape[lead:]).text, name
        if lead:
            base, count = f"{name}_all", f"most_threads * {_padded(count)}"
        self.scratch.append((base, STORED[dtype], count))
        return Buffer(name=name, dtype=dtype, shape=node.shape, strided=False, lead=lead)

    def _memory(self) -> list[str]:
        lines = ["const int64_t most_threads = omp_get_max_threads();", "int64_t used_threads = 1;"]
        lines += ["(void)most_threads; (void)used_threads; size_t need = 0;"]
        for name, kind, count in self.scratch:
            lines.append(f"const size_t {name}_at = need;")
            lines.append(f"need += ((size_t)({count}) * sizeof({kind}) + 127) / 64 * 64;")
        if self.scratch:
            lines.append("char* memory = scratch_of(need);")
        for name, kind, _ in self.scratch:
            lines.append(f"{kind}* __restrict {name} = ({kind}*)(memory + {name}_at);")
        return lines

    # --- in place

    def _safe(self, output: Node, slot: int) -> bool:
        """Return whether an output may overwrite its input as it is computed."""
        home = next(k for k, stage in enumerate(self.plan.stages) if output in stage.nodes)
        for place, stage in enumerate(self.plan.stages):
            if place < home:
                continue
            for node in stage.nodes:
                for one, index in reads(stage, node, self.plan.kept):
                    if not (isinstance(one, InputNode) and one.place == slot):
                        continue
                    if place != home:
                        return False
                    if isinstance(output, Scatter):
                        if one is not output.base:
                            return False
                    elif not self._same_place(stage, node, output, index):
                        return False
        return True

    def _same_place(
        self, stage: Stage, node: Node, output: Node, index: tuple[Extent, ...]
    ) -> bool:
        """Return whether a node reads an element only before `output` overwrites it."""
        if not isinstance(stage, LoopNest):
            return False
        role = stage.members[output]
        if role in ("column fold", "whole fold", "scan"):
            return False
        if role in ("element", "part"):
            passes = passes_of(stage, self.plan.kept)
            if passes[node] > passes[output]:
                return False
            if stage.members[node] == "part" and (
                role == "element" or stage.guard(node) != stage.guard(output)
            ):
                return False
        return index == stage.place(output.shape, role)

    # --- stages

    def _chain(self, chain: Chain, evaluator: Evaluator) -> list[str]:
        """Write stages; those of a chain with `lead` in one loop over its batch."""
        lines: list[str] = []
        for stage in chain.stages:
            number = self.plan.stages.index(stage)
            lines += self._stage(number, stage, evaluator, len(chain.lead))
        if not chain.lead:
            return lines
        places = []
        for node in (one for stage in chain.stages for one in stage.nodes):
            count = product_of(node.shape[self.private.get(node, 0) :]).text
            own = (self.buffers.get(node), self.sums.get(node)) if node in self.private else ()
            for one in (found for found in own if found is not None):
                start = f"{one.name}_all + thread * {_padded(count)}"
                places.append(f"{STORED[one.dtype]}* __restrict {one.name} = {start};")
        return [
            "{",
            f"const int64_t batches = {product_of(chain.lead).text};",
            "#pragma omp parallel num_threads((int)whole_min(batches, most_threads))",
            "{",
            "const int64_t thread = omp_get_thread_num();",
            *places,
            "#pragma omp for schedule(static)",
            "for (int64_t batch = 0; batch < batches; ++batch) {",
            *lines,
            "} } }",
        ]

    def _stage(self, number: int, stage: Stage, evaluator: Evaluator, lead: int) -> list[str]:
        if isinstance(stage, LoopNest):
            fused = any(stage in nests for nests in self.epilogues.values())
            return [] if fused else self._nest(stage, evaluator, lead)
        node = stage.node
        in_place = False
        if isinstance(node, Scatter) and node in self.plan.outputs:
            slot = self.form.slots[self.plan.outputs.index(node)]
            base = node.base
            in_place = isinstance(base, InputNode) and base.place == slot and self._safe(node, slot)
        given = (self.buffers, self.sums, self.choices, evaluator, self.plan, self.scratch)
        writer = StageWriter(number, *given)
        epilogue = self.epilogues.get(stage, ())
        lines = writer.write(node, in_place=in_place, chained=lead > 0, epilogue=epilogue)
        self.tables += writer.tables
        return lines

    def _nest(self, nest: LoopNest, evaluator: Evaluator, lead: int) -> list[str]:
        elsewhere = self.plan.read_outside((nest,))
        evaluator.addresses, evaluator.indices = [], []

        def writer(scratch: Scratch) -> NestWriter:
            given = (nest, self.plan, self.buffers, self.choices, evaluator, scratch, elsewhere)
            return NestWriter(*given, lead=lead)

        first = writer([])
        first.write()
        if not self.strided:
            first.merge(evaluator.addresses, evaluator.indices)
        keeps: list[tuple[Node, tuple[Extent, ...]]] = []

        def next_writer(scratch: Scratch) -> NestWriter:
            made = writer(scratch)
            made.like(first)
            made.keeps = keeps
            return made

        if self.choices.keep != "none":
            trial = next_writer([])
            trial.write()
            keeps = trial.candidates(self.choices.keep)
            again = next_writer([])
            again.write()
            keeps = [key for key in keeps if key in again.loaded]
        return next_writer(self.scratch).write()


def _padded(count: str) -> str:
    return f"((({count}) + 63) / 64 * 64)"


def _copied(source: Buffer, target: Buffer, evaluator: Evaluator) -> list[str]:
    loops = []
    index: list[Extent] = []
    for dim, size in enumerate(source.shape):
        if size == ONE:
            index.append(ZERO)
            continue
        one = named(f"w{dim}", size)
        index.append(one)
        loops.append(f"for (int64_t w{dim} = 0; w{dim} < {size.text}; ++w{dim})")
    if loops:
        count = product_of(source.shape).text
        loops.insert(0, f"#pragma omp parallel for if ({count} >= {COPIED_ALONE})")
    value = f"{source.name}[{source.address(tuple(index)).text}]"
    return [*loops, evaluator.store(target, tuple(index), value)]


def _indented(lines: Sequence[str]) -> str:
    depth, found = 0, []
    for line in lines:
        text = line.strip()
        closing = len(text) - len(text.lstrip("} "))
        found.append("    " * max(0, depth - text[:closing].count("}")) + text)
        depth += text.count("{") - text.count("}")
    return "\n".join(found)
