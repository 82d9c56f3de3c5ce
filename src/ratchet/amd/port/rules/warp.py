"""Warps of 32 lanes on waves of 64: shuffles, votes, masks, lanes.

The fixes keep the program's own groups of 32: a shuffle gets a width, a vote is cut to its half of
the wave. This is right on 64 lanes and on 32, whatever the rest of the program counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ratchet.amd.port.cuda_tree import Called, CudaTree, around, listed, replaced
from ratchet.amd.port.rule import Edit, Match, Rules, inserted

if TYPE_CHECKING:
    from tree_sitter import Node

RULES: Final = Rules[CudaTree]()

SHUFFLES: Final = tuple(f"__shfl{kind}" for kind in ("", "_up", "_down", "_xor"))
WAVE_NAMES: Final = re.compile(
    r"warpSize|C10_WARP_SIZE\w*|kWarpSize\w*|WARP_?SIZE\w*", re.IGNORECASE
)
REDUCTIONS: Final = tuple(f"__reduce_{op}_sync" for op in ("add", "min", "max", "and", "or", "xor"))
FULL: Final = 0xFFFFFFFF


def _shuffles(tree: CudaTree) -> Iterator[tuple[Called, int]]:
    """Yield each shuffle with the number of arguments before its width."""
    for name in SHUFFLES:
        for call in tree.calls_of(f"{name}_sync"):
            yield call, 3
        for call in tree.calls_of(name):
            yield call, 2


OF_32: Final = re.compile(
    r"=\s*(16|32\s*/\s*2|32\s*>>\s*1)\s*;|&\s*(31\b|\(\s*32\s*-\s*1)|[%/]\s*32\b|>>\s*5\b"
)
OF_64: Final = re.compile(
    r"=\s*(32|64\s*/\s*2|64\s*>>\s*1)\s*;|&\s*(63\b|\(\s*64\s*-\s*1)|[%/]\s*64\b|>>\s*6\b"
)
"""Steps of reductions, and lanes and warps, that count in 32s or 64s."""


def counts_waves(tree: CudaTree, at: int) -> bool:
    """Return whether the function around a byte is meant for whole waves.

    HIP is, unless the function counts in 32s.
    """
    if asks_for_waves(tree, at):
        return True
    if not tree.is_hip:
        return False
    said = tree.said(tree.function_at(at))
    said = re.sub(r"\b[A-Za-z_]\w*\b", lambda one: str(tree.constants.get(one[0], one[0])), said)
    return OF_32.search(said) is None or OF_64.search(said) is not None


def asks_for_waves(tree: CudaTree, at: int) -> bool:
    """Return whether the function around a byte asks for the wave's own size.

    A constant of 32 is a number; `warpSize`, and what the text does not define, is the wave's.
    """
    function = tree.function_at(at)
    names = (n for n in tree.names if WAVE_NAMES.fullmatch(n) and tree.constants.get(n) != 32)
    return function is not None and any(
        function.start_byte <= one.start_byte < function.end_byte
        for name in names
        for one in tree.names[name]
    )


@RULES.add("warp-collective", "error", fix="name the lanes: WarpReduce<T, 32>")
def warp_collectives(tree: CudaTree) -> Iterator[Match]:
    """hipcub's warps have as many lanes as the GPU's waves, 64 on CDNA; cub's have 32."""
    for node in tree.nodes("template"):
        kinds = listed(node.child_by_field_name("arguments"))
        is_of_warp = tree.said(node, "name") in ("WarpReduce", "WarpScan")
        if is_of_warp and len(kinds) == 1 and not counts_waves(tree, node.start_byte):
            edits = (inserted(kinds[0].end_byte, ", 32"),)
            yield Match(at=node.start_byte, detail=tree.said(node), edits=edits)


@RULES.add("shuffle-width", "error", fix="give the width: 32 keeps the groups that the code counts")
def shuffle_width(tree: CudaTree) -> Iterator[Match]:
    """Without a width, a shuffle spans the whole wave: 64 lanes on CDNA, 32 on RDNA. Code that
    counts warps of 32 then reads lanes of another warp. A lane XOR a number below 32 stays within
    its 32."""
    for call, before in _shuffles(tree):
        if len(call.arguments) != before or counts_waves(tree, call.at) or "xor" in call.name:
            continue
        edits = (inserted(call.node.end_byte - 1, ", 32"),)
        yield Match(at=call.at, detail=call.name, edits=edits)


@RULES.add(
    "mask-width",
    "error",
    fix="give a 64-bit mask, moved to the half of the wave that the lane is in",
)
def mask_32(tree: CudaTree) -> Iterator[Match]:
    """HIP's masks have 64 bits, one a lane of the wave; a 32-bit mask does not compile
    (amd_warp_sync_functions.h of ROCm 7)."""
    named = (f"{name}_sync" for name in SHUFFLES)
    for name in (*named, *REDUCTIONS, "__syncwarp"):
        for call in tree.calls_of(name):
            if call.arguments and not _is_wide(tree, call.arguments[0]):
                yield _widened(tree, call)


WIDE: Final = re.compile(
    r"PORT_MASK64|__activemask\(|.*0[xX][0-9a-fA-F]{9}|.*\d[uU]?[lL]{2}|.*(uint64|long long)"
)
"""Masks of 64 bits on AMD."""


def _is_wide(tree: CudaTree, mask: Node) -> bool:
    return WIDE.match(tree.said(mask)) is not None


def _widened(tree: CudaTree, call: Called) -> Match:
    mask = call.arguments[0]
    if counts_waves(tree, call.at) and tree.value(mask) in (FULL, -1):
        return Match(at=call.at, detail=call.name, edits=(replaced(mask, "__activemask()"),))
    edits = around(mask, "PORT_MASK64(", ")")
    return Match(at=call.at, detail=call.name, edits=edits, needs=("PORT_MASK64",))


def renamed(call: Called, name: str) -> Edit:
    """Return what gives a called function another name."""
    assert call.function is not None
    return replaced(call.function, name)


BALLOT: Final = "PORT_BALLOT32"
VOTES: Final = ("__ballot", "__any", "__all")


@RULES.add("warp-vote", "error", fix="vote, then take the lane's own half of the wave")
def votes(tree: CudaTree) -> Iterator[Match]:
    """HIP votes over the wave: a ballot has 64 bits and loses half of them in an unsigned;
    __all_sync with a full mask is false if the other half is inactive."""
    for name in VOTES:
        for call in tree.calls_of(f"{name}_sync"):
            if len(call.arguments) != 2 or _is_ours(tree, call.at):
                continue
            if not (counts_waves(tree, call.at) and _is_wide(tree, call.arguments[0])):
                yield _vote(call, name, call.arguments[1], ())
        for call in tree.calls_of(name):
            if counts_waves(tree, call.at) or _is_ours(tree, call.at) or len(call.arguments) != 1:
                continue
            asked = call.arguments[0]
            yield _vote(call, name, asked, (inserted(asked.start_byte, "~0u, "),))


def _vote(call: Called, name: str, asked: Node, edits: tuple[Edit, ...]) -> Match:
    """Turn a vote into the ballot of half a wave: any is one that is not 0, all its opposite."""
    if name == "__all":
        edits = (*edits, *around(asked, "!(", ")"))
    if name != "__ballot":
        compared = " != 0)" if name == "__any" else " == 0)"
        edits = (*around(call.node, "(", compared), *edits)
    edits = (*edits, renamed(call, BALLOT))
    return Match(at=call.at, detail=call.name, edits=edits, needs=(BALLOT,))


@RULES.add("active-mask", "error", fix="take the lane's own half of the wave")
def active_mask(tree: CudaTree) -> Iterator[Match]:
    """__activemask has 64 bits on ROCm; 32 of them name another warp's lanes."""
    for call in tree.calls_of("__activemask"):
        if not _is_ours(tree, call.at):
            name = "PORT_ACTIVEMASK32"
            yield Match(at=call.at, detail=call.name, edits=(renamed(call, name),), needs=(name,))


@RULES.add("match-mask", "error", fix="match, then take the lane's own half of the wave")
def match_any(tree: CudaTree) -> Iterator[Match]:
    """HIP matches over the wave of 64 lanes and returns 64 bits."""
    for call in tree.calls_of("__match_any_sync"):
        if len(call.arguments) == 2 and not _is_ours(tree, call.at):
            name = "PORT_MATCH_ANY32"
            yield Match(at=call.at, detail=call.name, edits=(renamed(call, name),), needs=(name,))
    for call in tree.calls_of("__match_all_sync"):
        yield Match(at=call.at, detail=call.name)


def _is_ours(tree: CudaTree, at: int) -> bool:
    """Return whether a byte lies in a compatibility macro of an earlier port."""
    line = tree.text.rfind(b"\n", 0, at) + 1
    return tree.text[line:at].lstrip().startswith(b"#define PORT_")


THREAD: Final = re.compile(r"\bthreadIdx\b|\bblockDim\b")
MADE_OF_THREAD: Final = re.compile(r"\b(\w+)\s*=\s*([^;,]*\b(?:threadIdx|thread_rank)\b[^;]*);")
"""A variable that is made from a thread's index."""
PARTS: Final = {"&": 31, "%": 32, "/": 32, ">>": 5}


def _warp_arithmetic(tree: CudaTree) -> Iterator[tuple[Node, Node, str]]:
    """Yield the lanes and warps that a program counts in 32s: the operation, its 32, its sign."""
    named: dict[int, set[str]] = {}
    for node in tree.nodes("binary"):
        sign, right = tree.said(node, "operator"), node.child_by_field_name("right")
        if right is None or sign not in PARTS or tree.value(right) != PARTS[sign]:
            continue
        function = tree.function_at(node.start_byte)
        if function is None or not tree.is_device(function):
            continue
        if function.id not in named:
            made = MADE_OF_THREAD.findall(tree.said(function))
            named[function.id] = {name for name, value in made if "blockIdx" not in value}
        left = tree.said(node, "left")
        if THREAD.search(left) or {*re.findall(r"\w+", left)} & named[function.id]:
            yield node, right, sign


@RULES.add("lane-of-32", "note", fix="nothing to do; count with warpSize to use whole waves")
def lanes_of_32(tree: CudaTree) -> Iterator[Match]:
    """Lanes and warps are counted in 32s. That is right on 64 lanes as long as shuffles have a
    width of 32 and votes are cut to half a wave, which other rules see to."""
    for node, _, _ in _warp_arithmetic(tree):
        if not counts_waves(tree, node.start_byte):
            yield Match(at=node.start_byte, detail=tree.said(node))


FORMS: Final = {"&": "(warpSize - 1)", "%": "warpSize", "/": "warpSize"}


@RULES.add("mixed-warp-size", "error", fix="count with warpSize")
def mixed_sizes(tree: CudaTree) -> Iterator[Match]:
    """The function asks for warpSize, which is 64 on CDNA, and counts lanes in 32s too: the two
    disagree there."""
    for node, right, sign in _warp_arithmetic(tree):
        if not asks_for_waves(tree, node.start_byte):
            continue
        edit = replaced(right, FORMS.get(sign, "warpSize"))
        left = node.child_by_field_name("left")
        if left is not None and sign not in FORMS:  # a shift becomes a division
            edit = Edit(start=left.end_byte, end=right.end_byte, text=" / warpSize")
        yield Match(at=node.start_byte, detail=tree.said(node), edits=(edit,))


@RULES.add("warp-array", "error", fix="size the array for 64 lanes")
def arrays_of_a_warp(tree: CudaTree) -> Iterator[Match]:
    """The function asks for warpSize, which is 64 on CDNA, and keeps an array of 32 entries a warp:
    lanes 32 to 63 write past it."""
    for node in tree.nodes("declaration"):
        said = tree.said(node)
        if "__shared__" not in said.split("[")[0] or not asks_for_waves(tree, node.start_byte):
            continue
        found = re.search(r"(\w+)\s*((?:\[[^\]]+\]\s*)+)", said.split("=")[0])
        sizes = re.findall(r"\[([^\]]+)\]", found[2]) if found else []
        small = any(tree.value(size) in (32, 33) for size in sizes)
        if found and small and _written_by_lane(tree, node, found[1]):
            yield Match(at=node.start_byte, detail=said.split(";")[0])


LANE: Final = r"(%\s*warpSize|&\s*\(\s*warpSize\s*-\s*1\s*\)|laneid|lane_id\(\))"


def _written_by_lane(tree: CudaTree, node: Node, array: str) -> bool:
    """Return whether a function writes an array at places that are its lanes' numbers."""
    said = tree.said(tree.function_at(node.start_byte))
    lanes = re.findall(rf"\b(\w+)\s*=\s*[^;,=]*{LANE}", said)
    names = "|".join({re.escape(name) for name, _ in lanes}) or "$^"
    index = rf"(\[[^\]]*\]\s*)*\[[^\]]*(\b({names})\b|{LANE})[^\]]*\]"
    return re.search(rf"\b{array}\s*{index}(\s*\[[^\]]*\])*\s*[-+*|&^]?=[^=]", said) is not None


@RULES.add("half-wave-block", "note", fix="give blocks a multiple of 64 threads")
def one_warp_blocks(tree: CudaTree) -> Iterator[Match]:
    """A block of at most 32 threads leaves half of each wave of CDNA idle."""
    for call in tree.launches:
        if len(call.launch) < 2:
            continue
        block = call.launch[1]
        if block.type == "call_expression" and tree.said(block).startswith("dim3("):
            values = [tree.value(one) for one in listed(block.child_by_field_name("arguments"))]
            threads = 64 if None in values else math.prod(one or 0 for one in values)
        else:
            threads = tree.value(block) or 64
        if threads <= 32:
            yield Match(at=call.at, detail=f"{call.name} with {threads} threads a block")


@RULES.add(
    "warp-synchronous", "warning", fix="put __syncwarp() between the steps, or reduce with shuffles"
)
def warp_synchronous(tree: CudaTree) -> Iterator[Match]:
    """Steps without a barrier rely on a warp that runs in step; the compiler may keep values in
    registers."""
    for node in tree.nodes("if"):
        if not re.search(r"<\s*(32|warpSize|WARP_SIZE)\b", tree.said(node, "condition")):
            continue
        said = tree.said(node, "consequence")
        steps = re.findall(r"(\w+)\[(\w+)\]\s*\+?=[^;]*\1\[\2\s*\+\s*\d+\]", said)
        if len(steps) >= 3 and "__syncwarp" not in said:
            yield Match(at=node.start_byte, detail=f"{len(steps)} steps on {steps[0][0]}")
