"""The least work of each op: FLOPs, bytes and category, from what the profiler recorded.

`call` parses a call's arguments, `products` and `moves` count, `optimizer` counts lists of tensors.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache, partial
from typing import Final, Literal

from ratchet.trace.answers.work import moves, products
from ratchet.trace.answers.work.call import NOT_KNOWN, Call, Counted, NotRecorded, OpWork, Rule
from ratchet.trace.answers.work.optimizer import Gradients, update

Category = Literal[
    "GEMM", "attention", "convolution", "normalization", "element-wise", "reduction", "optimizer",
    "communication", "copy", "other",
]  # fmt: skip
PRODUCTS: Final = frozenset({"GEMM", "attention", "convolution"})
"""Categories whose ops hold all that runs inside them: casts, transposes and splits."""
_NO_GRADIENTS = Gradients()
_MOST_BYTES, _MOST_FLOPS = 2**48, 2**58  # Of one call; shapes that say more are damaged

ATEN: tuple[tuple[Category, dict[str, Rule]], ...] = (
    ("GEMM", products.MATMULS | products.RECURRENT),
    ("convolution", products.CONVOLUTIONS),
    ("attention", products.ATTENTION),
    ("normalization", moves.NORMALIZATION),
    ("reduction", moves.REDUCTIONS),
    ("element-wise", moves.ELEMENTWISE),
    ("copy", moves.COPIES),
    ("other", moves.OTHERS),
)
_RATCHET: tuple[tuple[Category, dict[str, Rule]], ...] = (
    ("attention", {n: r for n, r in products.RATCHET.items() if "attention" in n}),
    ("GEMM", products.RATCHET),
    ("normalization", {n: r for n, r in moves.RATCHET.items() if "norm" in n}),
    ("element-wise", moves.RATCHET),
)
_FOREIGN: tuple[tuple[Category, re.Pattern[str], Rule | None], ...] = (
    ("GEMM", re.compile(r"^triton_tem_fused\w*(mm|convolution)"), products.triton_template),
    ("attention", re.compile(r"^triton_tem_fused\w*attention"), moves.triton),
    ("normalization", re.compile(r"^triton_\w*_norm"), moves.triton),
    ("reduction", re.compile(r"^triton_(red|per)_"), moves.triton),
    ("element-wise", re.compile(r"^triton_"), moves.triton),
    ("copy", re.compile(r"::(reshape_and_cache\w*|store_cache|concat_and_cache\w*)$"),
     moves.cache_rows),
    ("element-wise", re.compile(r"::(\w*rotary_embedding\w*|rope_\w+)$"), moves.rotary),
    ("attention", re.compile(r"::_*(\w*flash_attn\w*|fmha\w*|wrapper_fmha\w*|mha_\w+|"
                             r"unified_attention\w*|\w*paged_attention\w*|pa_fwd\w*|"
                             r"flash_attention\w*|\w*sage\w*attn\w*|mla_\w+)$"),
     products.attention),
    ("attention", re.compile(r"^sage_fwd"), products.attention),
    ("reduction", re.compile(r"^(TopK|SortTokens)$"), partial(moves.each_once, flops=1)),
    ("GEMM", re.compile(r"::\w*(fused_moe|moe_forward|fmoe|experts)\w*$"), products.experts),
    ("normalization", re.compile(r"::\w*(rms_?norm|layer_?norm|group_?norm)\w*$"),
     partial(moves.foreign_norm, flops=4)),
    ("normalization", re.compile(r"^aiter::_groupnorm_run$"),
     partial(moves.foreign_norm, flops=7)),
    ("element-wise", re.compile(r"::\w*(_and_mul|quant|_cast|swiglu|activation)\w*$"),
     partial(moves.each_once, flops=2)),
    ("reduction", re.compile(r"::(moe_sum|topk_softmax|\w*topk\w*)$"),
     partial(moves.each_once, flops=1)),
    ("GEMM", re.compile(r"::\w*(gemm|matmul|_mm|linear|LLMM|wvSplitK)\w*$"),
     products.foreign_gemm),
)  # fmt: skip
"""Registered ops of vLLM, SGLang, aiter and flash-attn, and Inductor's Triton kernels, by name."""
_LISTS = re.compile(r"^aten::(_foreach_|_fused_|_amp_foreach_)")
_CUSTOM = re.compile(
    r"^(?!aten::|ratchet::|autograd::|c10d?::|torch::)\w+::|^(triton_|sage_|TopK$|SortTokens$)"
)
_NUMBER = re.compile(r"_\d+$")
"""End of the name that Inductor gives to its call of a Triton kernel of the user's."""
Launched = tuple[tuple[str, str], ...]
"""Names and grids of the kernels that a call launched, as far as they were recorded."""


@lru_cache(maxsize=4096)
def rule_of(name: str) -> tuple[Category, Rule | None] | None:
    """Return the category and the rule of an op's name; None if it has none."""
    namespace, _, base = name.rpartition("::")
    base = base.rstrip("_") if not base.endswith("__") else base
    tables = {"aten": ATEN, "ratchet": _RATCHET}.get(namespace, ())
    for category, rules in tables:
        if base in rules:
            return category, rules[base]
    if _LISTS.match(name):
        return "optimizer", None
    if _CUSTOM.match(name):
        for category, pattern, rule in _FOREIGN:
            if pattern.search(name):
                return category, rule
    return None


def work(
    name: str,
    dims: str,
    types: str,
    concrete: str = "",
    *,
    kernel: str = "",
    found: Gradients = _NO_GRADIENTS,
    launches: int = 0,
    launched: Launched = (),
) -> OpWork | None:
    """Return the FLOPs and bytes of one call; None if they do not follow from the recording.

    Arguments are as the profiler wrote them. `kernel` is a kernel that the call launched, which
    tells the type in a list of tensors; `found` and `launches` tell the sizes of a long list, and
    `launched` those of weights that are no arguments.
    """
    known = rule_of(name)
    if known is None and kernel and _NUMBER.sub("", name) == kernel:
        known = category_of(name, kernel), moves.triton
    if known is None or not dims:
        return None
    call = Call(name, dims, types, concrete, kernel)
    try:
        counted = update(call, found, launches) if known[1] is None else known[1](call)
    except NotRecorded:
        counted = Counted(None, 0)
        if launched and known[1] is products.experts:
            with suppress(NotRecorded):
                counted = products.hidden_experts(call, launched)
    flops = counted.flops or 0
    if not (0 <= counted.size_bytes < _MOST_BYTES and 0 <= flops < _MOST_FLOPS):
        return None
    if not (flops or counted.size_bytes):
        return None
    return OpWork(
        flops=flops,
        size_bytes=counted.size_bytes,
        dtype=call.kind,
        flops_from=NOT_KNOWN if counted.flops is None else counted.flops_from,
        bytes_from=counted.bytes_from,
        product=counted.product,
    )


_BY_NAME: tuple[tuple[Category, re.Pattern[str]], ...] = (
    ("communication", re.compile(r"nccl|rccl|gloo:|^c10d::|all_?reduce|all_?gather|reduce_?scatter",
                                 re.I)),
    ("copy", re.compile(r"^Mem(cpy|set)|copy_kernel|CatArray|transpose|nchwToNhwc|nhwcToNchw|"
                        r"reshape_and_cache|store_kvcache|copyBuffer|fillBuffer", re.I)),
    ("attention", re.compile(r"attention|flash_?(fwd|bwd|attn)|fmha|mha_|\bsdpa|sage_fwd|"
                             r"paged_att", re.I)),
    ("convolution", re.compile(r"conv(?!ert)|dgrad|wgrad|implicit|winograd|miopenSp3|igemm", re.I)),
    ("GEMM", re.compile(r"gemm|gemv|Cijk_|matmul|nvjet|cublas|hipblas|(^|_)mm(_|$)|splitK|wvSplit|"
                        r"fused_moe|fmoe", re.I)),
    ("optimizer", re.compile(r"multi_tensor_apply|adam|_foreach_|Optimizer", re.I)),
    ("normalization", re.compile(r"norm|\bbn_(fw|bw)", re.I)),
    ("reduction", re.compile(r"reduce|softmax|cunn_SoftMax|argm(ax|in)|topk|sort|scan|^triton_(red|"
                             r"per)_", re.I)),
    ("element-wise", re.compile(r"elementwise|^triton_poi_|activation|rotary|rope|silu|gelu|cast|"
                                r"quant|Functor", re.I)),
)  # fmt: skip
"""Categories by the name of a kernel, or of an op without a rule; the first that fits."""


@lru_cache(maxsize=4096)
def category_of(op: str, kernel: str = "") -> Category:
    """Return the category of an op; if its name does not tell, of the kernel that it launched."""
    known = rule_of(op) if op else None
    if known is not None:
        return known[0]
    for name in filter(None, (kernel, op)):
        for category, pattern in _BY_NAME:
            if pattern.search(name):
                return category
    return "other"
