"""The shape of a transformer, which is all that a plan needs to know of a model.

A shape comes from a name in `SHAPES`, its sizes (`gpt:layers=24,hidden=2048,heads=16`), a built-in
workload (`llama-60m`) or a Hugging Face configuration (`hf:llama`, `hf:FOLDER`).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any, Final

from ratchet.base.errors import PlanError

PREFIX: Final = "hf:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of a decoder-only transformer. Counts are whole numbers, without units."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Inner size of the dense MLP; 0 if every layer is a mixture of experts."""
    vocabulary: int
    sequence: int
    """Tokens in a training sequence."""
    gated: bool = True
    """True if the MLP has a gate: three products instead of two."""
    tied: bool = False
    """True if the output layer shares the embedding's weight."""
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    """Inner size of the experts that every token visits."""
    dense_layers: int = 0
    """Layers with a dense MLP in a model whose other layers have experts."""
    latent_rank: int = 0
    """Rank of a latent attention's keys and values (DeepSeek); 0 for ordinary projections."""
    window: int = 0
    """Tokens back to which the attention of `windowed` layers sees."""
    windowed: int = 0
    """Layers whose attention sees a window alone."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocabulary", "sequence"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} of {self.name} is {getattr(self, name)}: give 1 or more")
        if self.heads % self.kv_heads:
            raise PlanError(
                f"{self.name} has {self.heads} heads, which {self.kv_heads} of keys and values do "
                "not divide: change one of them"
            )
        if self.experts and not (0 < self.experts_per_token <= self.experts):
            raise PlanError(
                f"{self.name} sends a token to {self.experts_per_token} of {self.experts} experts: "
                "give between 1 and the number of experts"
            )
        if not self.experts and not self.intermediate:
            raise PlanError(f"{self.name} has neither an MLP nor experts: give one of them")

    @property
    def attended(self) -> float:
        """Return the mean length of a sequence as attention works on it: less for windows.

        A token of a causal layer sees s / 2 others on average, w - w^2 / 2 s through a window.
        """
        seen = min(self.window, self.sequence)
        through = 2 * seen - seen**2 / self.sequence
        whole = (self.layers - self.windowed) * self.sequence
        return (whole + self.windowed * through) / self.layers

    @property
    def moe_layers(self) -> int:
        """Return the number of layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def attention_parameters(self) -> int:
        """Return the weights of one layer's attention."""
        inner = self.heads * self.head_dim
        if self.latent_rank:
            # Keys and values go through a low rank (arXiv:2405.04434, section 2.1).
            down = self.hidden * self.latent_rank
            up = self.latent_rank * 2 * inner
            return self.hidden * inner + down + up + inner * self.hidden
        return self.hidden * (2 * inner + 2 * self.kv_heads * self.head_dim)

    @property
    def products(self) -> int:
        """Return the number of products in one MLP."""
        return 3 if self.gated else 2

    @property
    def dense_parameters(self) -> int:
        """Return the weights of one dense MLP."""
        return self.products * self.hidden * self.intermediate

    @property
    def expert_parameters(self) -> int:
        """Return the weights of all routed experts of one layer."""
        return self.experts * self.products * self.hidden * self.expert_intermediate

    @property
    def shared_parameters(self) -> int:
        """Return the weights of one layer's shared experts and of its router."""
        return self.products * self.hidden * self.shared_intermediate + self.hidden * self.experts

    @property
    def embedding_parameters(self) -> int:
        """Return the weights of the embedding and the output layer."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """Return all weights; norms and biases, below 0.1 % together, are left out."""
        dense = self.layers - self.moe_layers
        return (
            self.layers * self.attention_parameters
            + dense * self.dense_parameters
            + self.moe_layers * (self.expert_parameters + self.shared_parameters)
            + self.embedding_parameters
        )

    @property
    def active_parameters(self) -> int:
        """Return the weights that one token visits, without the embedding's look-up."""
        dense = self.layers - self.moe_layers
        visited = self.experts_per_token * self.products * self.hidden * self.expert_intermediate
        return (
            self.layers * self.attention_parameters
            + dense * self.dense_parameters
            + self.moe_layers * (visited + self.shared_parameters)
            + self.vocabulary * self.hidden
        )

    @property
    def flops_per_token(self) -> float:
        """Return the operations of a token's forward and backward pass: 6 N + 12 L H s.

        PaLM's convention (arXiv:2204.02311, appendix B), by which MFU is told: causal attention
        counts in full, recomputation does not count.
        """
        inner = self.heads * self.head_dim
        return 6.0 * self.active_parameters + 12.0 * self.layers * inner * self.attended


def _gpt(name: str, layers: int, hidden: int, heads: int, sequence: int, vocabulary: int) -> Shape:
    return Shape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=4 * hidden,
        vocabulary=vocabulary,
        sequence=sequence,
        gated=False,
        tied=True,
    )


def _llama(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int,
    vocabulary: int = 128256, sequence: int = 8192,
) -> Shape:  # fmt: skip
    return Shape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocabulary=vocabulary,
        sequence=sequence,
    )


_PUBLISHED: Final = (
    # arXiv:2205.05198, table 3; arXiv:2005.14165 for GPT-3 175B; arXiv:2201.11990 for 530B.
    _gpt("megatron-22b", 48, 6144, 64, 2048, 51200),
    _gpt("gpt3-175b", 96, 12288, 96, 2048, 51200),
    _gpt("turing-530b", 105, 20480, 128, 2048, 51200),
    _gpt("megatron-1t", 128, 25600, 160, 2048, 51200),
    # arXiv:2407.21783, table 3.
    _llama("llama3-8b", 32, 4096, 32, 8, 14336),
    _llama("llama3-70b", 80, 8192, 64, 8, 28672),
    _llama("llama3-405b", 126, 16384, 128, 8, 53248),
    # arXiv:2307.09288.
    _llama("llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),
    _llama("llama2-70b", 80, 8192, 64, 8, 28672, 32000, 4096),
    # arXiv:2401.04088; the 8x22B configuration is the one its authors published.
    Shape(
        name="mixtral-8x7b", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128,
        intermediate=0, vocabulary=32000, sequence=8192, experts=8, experts_per_token=2,
        expert_intermediate=14336,
    ),
    Shape(
        name="mixtral-8x22b", layers=56, hidden=6144, heads=48, kv_heads=8, head_dim=128,
        intermediate=0, vocabulary=32768, sequence=8192, experts=8, experts_per_token=2,
        expert_intermediate=16384,
    ),
    # arXiv:2505.09388, table 1 and 2, and the published configurations.
    Shape(
        name="qwen3-30b-a3b", layers=48, hidden=2048, heads=32, kv_heads=4, head_dim=128,
        intermediate=0, vocabulary=151936, sequence=4096, experts=128, experts_per_token=8,
        expert_intermediate=768,
    ),
    Shape(
        name="qwen3-235b-a22b", layers=94, hidden=4096, heads=64, kv_heads=4, head_dim=128,
        intermediate=0, vocabulary=151936, sequence=4096, experts=128, experts_per_token=8,
        expert_intermediate=1536,
    ),
)  # fmt: skip
SHAPES: Final[dict[str, Shape]] = {shape.name: shape for shape in _PUBLISHED}
"""Published models by name."""


def find_shape(name: str, *, sequence: int | None = None) -> Shape:
    """Return the shape that a name means, at `sequence` tokens if it is given.

    Raises PlanError for an unknown name, with the nearest ones.
    """
    from ratchet.scale.plan.shape_words import described

    found = SHAPES.get(name) or described(name) or _of_workload(name)
    return found if sequence is None else replace(found, sequence=sequence)


def _of_workload(name: str) -> Shape:
    from ratchet.train.workloads.names import known

    if name.startswith(PREFIX):
        from ratchet.scale.plan.hf_shape import of_config
        from ratchet.train.workloads.hf_config import read_config

        return of_config(name, read_config(name.removeprefix(PREFIX))[0])
    family = name.partition("-")[0]
    if name in known() and family in ("llama", "gpt2", "moe"):
        return _of_built_in(name)
    near = difflib.get_close_matches(name, [*SHAPES, *known()], n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise PlanError(
        f"no shape is known for the model {name!r}: {hint}give one of {', '.join(SHAPES)}, a "
        "built-in llama, gpt2 or moe workload, hf:TYPE_OR_FOLDER, or sizes, as in "
        "gpt:layers=24,hidden=2048,heads=16"
    )


def _of_built_in(name: str) -> Shape:
    """Return the shape of a built-in workload from its family's own table of sizes."""
    from ratchet.train.workloads.load import FAMILIES

    family_name, _, size_name = name.partition("-")
    family = FAMILIES[family_name]
    size: Any = family.sizes[size_name or family.alone]
    gpt2 = family_name == "gpt2"
    experts = getattr(size, "experts", 0)
    return Shape(
        name=name,
        layers=size.layers,
        hidden=size.hidden,
        heads=size.heads,
        kv_heads=getattr(size, "kv_heads", size.heads),
        head_dim=size.hidden // size.heads,
        intermediate=4 * size.hidden if gpt2 else 0 if experts else size.intermediate,
        vocabulary=size.vocabulary,
        sequence=size.sequence,
        gated=not gpt2,
        tied=gpt2 or getattr(size, "tied", False),
        experts=experts,
        experts_per_token=getattr(size, "chosen", 0),
        expert_intermediate=size.intermediate if experts else 0,
    )
