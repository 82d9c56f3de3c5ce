"""The shape of a transformer, which is all that a plan needs to know of a model.

A shape comes from a name in `SHAPES`, its sizes (`gpt:layers=24,hidden=2048,heads=16`), a built-in
workload (`llama-60m`) or a Hugging Face configuration (`hf:llama`, `hf:FOLDER`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from ratchet.base.errors import PlanError

if TYPE_CHECKING:
    from transformers import PretrainedConfig


PREFIX: Final = "hf:"
Split = Literal["columns", "inner", ""]  # The size of a product that tensor parallelism divides


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of a decoder-only transformer. Counts are whole numbers, without units."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # Inner size of the dense MLP; 0 if every layer is a mixture of experts
    vocabulary: int
    sequence: int  # Tokens in a training sequence
    gated: bool = True  # True if the MLP has a gate: three products instead of two
    tied: bool = False  # True if the output layer shares the embedding's weight
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0  # Inner size of the experts that every token visits
    dense_layers: int = 0  # Layers with a dense MLP in a model whose other layers have experts
    latent_rank: int = 0
    """Rank of a latent attention's keys and values (DeepSeek); 0 for ordinary projections."""
    query_rank: int = 0  # Rank of its queries; 0 if they are projected at once
    turned_dim: int = 0  # Elements of its keys and queries, beside head_dim, that rotation turns
    window: int = 0  # Tokens back to which the attention of `windowed` layers sees
    windowed: int = 0  # Layers whose attention sees a window alone
    most_nodes: int = 0  # Nodes among which the experts of a token lie at most; 0 if any may
    predicted: int = 1
    """Tokens that each one predicts: the second takes the output layer again (DeepSeek-V3)."""
    imbalance: float = 1.0  # Tokens of the fullest rank's experts over those of the mean
    frozen: bool = False  # True if low-rank adapters are trained, too small to count, and no weight

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
        if self.imbalance < 1:
            raise PlanError(f"imbalance {self.imbalance:g} is below 1, the mean: give 1 or more")
        if self.experts and self.imbalance > (most := self.experts / self.experts_per_token):
            raise PlanError(
                f"imbalance {self.imbalance:g} is above {most:g}, at which each token goes to the "
                f"same {self.experts_per_token} of {self.experts} experts: give less"
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
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def attention_parameters(self) -> int:
        """Return the weights of one layer's attention."""
        return sum(columns * inner for columns, inner, _ in self.projections)

    @property
    def projections(self) -> tuple[tuple[int, int, Split], ...]:
        """Return attention's products with weights: columns, inner size, and which is split.

        Latent attention takes keys, values and queries through a low rank; the turned part of the
        keys is one for all heads (arXiv:2405.04434, section 2.1 and appendix C).
        """
        inner = self.heads * self.head_dim
        out: tuple[int, int, Split] = (self.hidden, inner, "inner")
        if not self.latent_rank:
            return (inner + 2 * self.kv_heads * self.head_dim, self.hidden, "columns"), out
        queries = self.heads * (self.head_dim + self.turned_dim)
        down = self.query_rank + self.latent_rank + self.turned_dim
        return (
            (down, self.hidden, ""),
            (queries, self.query_rank or self.hidden, "columns"),
            (2 * inner, self.latent_rank, "columns"),
            out,
        )

    @property
    def attention_inner(self) -> float:
        """Return the inner size of attention's two products, of keys and of values, on average."""
        return self.heads * (self.head_dim + self.turned_dim / 2)

    @property
    def products(self) -> int:
        """Return the number of products in one MLP."""
        return 3 if self.gated else 2

    @property
    def dense_parameters(self) -> int:
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
            + self.predicted * self.vocabulary * self.hidden
        )

    @property
    def flops_per_token(self) -> float:
        """Return the operations of a token's forward and backward pass: 6 N + 12 L H s.

        PaLM's convention (arXiv:2204.02311, appendix B), by which MFU is told: causal attention
        counts in full, recomputation does not count. Frozen weights have no gradients: 4 N.
        """
        attention = 12.0 * self.layers * self.attention_inner * self.attended
        return (4.0 if self.frozen else 6.0) * self.active_parameters + attention


def made(name: str, *, gated: bool, layers: int, hidden: int, heads: int, **given: int) -> Shape:
    """Return a shape of some sizes; what is not given follows from the others.

    Without a gate it is GPT's: two products in an MLP of four times the hidden size, and tied
    embeddings. With one it is Llama's: three, with 8 / 3 of it, rounded up to 256, and an output
    layer of its own.
    """
    inner = -(-8 * hidden // (3 * 256)) * 256 if gated else 4 * hidden
    experts = given.get("experts", 0)
    return Shape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=given.get("kv_heads", heads),
        head_dim=given.get("head_dim", hidden // heads),
        intermediate=0 if experts else given.get("intermediate", inner),
        vocabulary=given.get("vocabulary", 51200),
        sequence=given.get("sequence", 2048),
        gated=gated,
        tied=not gated,
        experts=experts,
        experts_per_token=given.get("experts_per_token", 2 if experts else 0),
        expert_intermediate=given.get("expert_intermediate", inner) if experts else 0,
        window=given.get("window", 0),
        windowed=layers if "window" in given else 0,
    )


LLAMA2: Final = {"vocabulary": 32000, "sequence": 4096}
LLAMA3: Final = {"kv_heads": 8, "vocabulary": 128256, "sequence": 8192}
_PUBLISHED: Final = (
    # arXiv:2205.05198, table 3; arXiv:2005.14165 for GPT-3 175B; arXiv:2201.11990 for 530B.
    made("megatron-22b", gated=False, layers=48, hidden=6144, heads=64),
    made("gpt3-175b", gated=False, layers=96, hidden=12288, heads=96),
    made("turing-530b", gated=False, layers=105, hidden=20480, heads=128),
    made("megatron-1t", gated=False, layers=128, hidden=25600, heads=160),
    # arXiv:2407.21783, table 3.
    made("llama3-8b", gated=True, layers=32, hidden=4096, heads=32, intermediate=14336, **LLAMA3),
    made("llama3-70b", gated=True, layers=80, hidden=8192, heads=64, intermediate=28672, **LLAMA3),
    made("llama3-405b", gated=True, layers=126, hidden=16384, heads=128, intermediate=53248,
         **LLAMA3),
    # arXiv:2307.09288.
    made("llama2-7b", gated=True, layers=32, hidden=4096, heads=32, **LLAMA2),
    made("llama2-70b", gated=True, layers=80, hidden=8192, heads=64, kv_heads=8,
         intermediate=28672, **LLAMA2),
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
    # arXiv:2505.09388, table 1.
    made("qwen3-8b", gated=True, layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128,
         intermediate=12288, vocabulary=151936, sequence=4096),
    made("qwen3-32b", gated=True, layers=64, hidden=5120, heads=64, kv_heads=8, head_dim=128,
         intermediate=25600, vocabulary=151936, sequence=4096),
    # The published configuration: 109 B parameters, 17 B of them active.
    Shape(
        name="llama4-scout", layers=48, hidden=5120, heads=40, kv_heads=8, head_dim=128,
        intermediate=0, vocabulary=202048, sequence=8192, experts=16, experts_per_token=1,
        expert_intermediate=8192, shared_intermediate=8192,
    ),
    # arXiv:2405.04434, section 3.1.2 and appendix B.
    Shape(
        name="deepseek-v2", layers=60, hidden=5120, heads=128, kv_heads=128, head_dim=128,
        intermediate=12288, vocabulary=102400, sequence=4096, experts=160, experts_per_token=6,
        expert_intermediate=1536, shared_intermediate=3072, dense_layers=1, latent_rank=512,
        query_rank=1536, turned_dim=64,
    ),
    Shape(
        name="deepseek-v2-lite", layers=27, hidden=2048, heads=16, kv_heads=16, head_dim=128,
        intermediate=10944, vocabulary=102400, sequence=4096, experts=64, experts_per_token=6,
        expert_intermediate=1408, shared_intermediate=2816, dense_layers=1, latent_rank=512,
        turned_dim=64,
    ),
    # arXiv:2412.19437, sections 2.1.2 and 4.2, without the layer that predicts a second token.
    Shape(
        name="deepseek-v3", layers=61, hidden=7168, heads=128, kv_heads=128, head_dim=128,
        intermediate=18432, vocabulary=129280, sequence=4096, experts=256, experts_per_token=8,
        expert_intermediate=2048, shared_intermediate=2048, dense_layers=3, latent_rank=512,
        query_rank=1536, turned_dim=64, most_nodes=4,
    ),
    # arXiv:2507.20534, table 2, and the published configuration.
    Shape(
        name="kimi-k2", layers=61, hidden=7168, heads=64, kv_heads=64, head_dim=128,
        intermediate=18432, vocabulary=163840, sequence=4096, experts=384, experts_per_token=8,
        expert_intermediate=2048, shared_intermediate=2048, dense_layers=1, latent_rank=512,
        query_rank=1536, turned_dim=64,
    ),
    # arXiv:2508.10925, table 1 and section 2: every second layer sees 128 tokens back.
    Shape(
        name="gpt-oss-20b", layers=24, hidden=2880, heads=64, kv_heads=8, head_dim=64,
        intermediate=0, vocabulary=201088, sequence=4096, experts=32, experts_per_token=4,
        expert_intermediate=2880, window=128, windowed=12,
    ),
    Shape(
        name="gpt-oss-120b", layers=36, hidden=2880, heads=64, kv_heads=8, head_dim=64,
        intermediate=0, vocabulary=201088, sequence=4096, experts=128, experts_per_token=4,
        expert_intermediate=2880, window=128, windowed=18,
    ),
)  # fmt: skip
SHAPES: Final[dict[str, Shape]] = {shape.name: shape for shape in _PUBLISHED}
"""Published models by name."""
RELEASES: Final = re.compile(
    r"(?<=llama-3)\.[123]|(?<=llama3)\.[123]|^meta-|-17b-16e|"
    r"-(instruct|chat|base|hf|it|fp8|bf16|v0\.\d|\d{4})(?![^-])"
)
"""Parts of a name in which releases of one size differ."""
ALIKE: Final = {"deepseekr1": "deepseek-v3", "deepseekv31": "deepseek-v3"}
"""Models of another one's sizes (arXiv:2501.12948, and the configuration of V3.1)."""


def _published(name: str) -> Shape | None:
    """Return the published model that a name from a hub means, in whatever case and release."""

    def plain(text: str) -> str:
        return re.sub("[^a-z0-9]", "", text)

    own = RELEASES.sub("", name.rpartition("/")[2].lower())
    named = ALIKE.get(plain(own))
    # Qwen's names end in the active parameters, which are often left out.
    fitting = [one for one in SHAPES if plain(one) == plain(own) or one.startswith(f"{own}-a")]
    return SHAPES[named or fitting[0]] if named or len(fitting) == 1 else None


def find_shape(name: str, *, sequence: int | None = None) -> Shape:
    """Return the shape that a name means, at `sequence` tokens if it is given.

    Raises PlanError for an unknown name, with the nearest ones.
    """

    found = SHAPES.get(name) or described(name) or _of_workload(name)
    return found if sequence is None else replace(found, sequence=sequence)


BUILT_IN: Final = ("llama", "gpt2", "moe")  # Families of built-in workloads that a plan knows


def _of_workload(name: str) -> Shape:
    from ratchet.train.workloads.names import known

    if name.startswith(PREFIX):
        from ratchet.train.workloads.hf_config import read_config

        return of_config(name, read_config(name.removeprefix(PREFIX))[0])
    family = name.partition("-")[0]
    if name in known() and family in BUILT_IN:
        return _of_built_in(name)
    if found := _published(name):
        return found
    planned = [one for one in known() if one.partition("-")[0] in BUILT_IN]
    near = difflib.get_close_matches(name.lower(), [*SHAPES, *planned], n=3)
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


EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Names under which configurations of transformers hold the number of experts."""
GATED: Final = ("silu", "swiglu")
"""Activations that only MLPs with a gate have. Others are in both kinds."""
GATED_TYPES: Final = ("gemma", "recurrent_gemma", "t5gemma", "vaultgemma")
"""Beginnings of model types whose MLP has a gate with another activation."""
OTHER_LAYERS: Final = ("attn_layer_period", "mamba_d_state", "ssm_state_size", "lru_width",
                       "linear_num_value_heads", "conv_L_cache")  # fmt: skip
"""Fields of configurations that put other layers beside attention."""


def of_config(name: str, config: PretrainedConfig) -> Shape:
    """Return the shape that a transformers configuration of a decoder describes.

    Raises PlanError, which names the fields, if sizes are missing.
    """
    config = getattr(config, "text_config", None) or config
    known = config.to_dict()
    for part in ("attn_config", "ffn_config"):  # DBRX and MPT
        known = {**(known.get(part) or {}), **known}
    _check_kind(name, known)

    def read(*fields: str) -> int:
        return next((int(known[one]) for one in fields if known.get(one)), 0)

    needed = {
        "num_hidden_layers": read("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
        "hidden_size": read("hidden_size", "n_embd", "d_model"),
        "num_attention_heads": read("num_attention_heads", "n_head", "num_heads", "n_heads"),
        "vocab_size": read("vocab_size"),
    }
    if missing := [field for field, value in needed.items() if not value]:
        raise PlanError(
            f"the configuration of {name!r} has no {', '.join(missing)}: give a decoder-only "
            "transformer"
        )
    layers, hidden, heads, vocabulary = needed.values()
    experts = read(*EXPERTS)
    chosen = read("num_experts_per_tok", "moe_top_k", "moe_k")
    if not experts and chosen and any(one in known for one in EXPERTS):
        raise PlanError(
            f"the configuration of {name!r} has 0 experts and sends a token to {chosen} of them: "
            "give 1 expert or more, or none to each token"
        )
    inner = read("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size") or 4 * hidden
    every = read("interleave_moe_layer_step", "decoder_sparse_step") or 1
    dense_layers = read("first_k_dense_replace") or layers - layers // every
    of_expert = read("moe_intermediate_size") or inner
    shared = of_expert * read("n_shared_experts") or read("shared_expert_intermediate_size")
    if known.get("model_type") == "llama4_text":
        shared, inner = of_expert, read("intermediate_size_mlp")
    rank, kinds = read("kv_lora_rank"), known.get("layer_types") or ()
    window = read("sliding_window")
    windowed = sum(one == "sliding_attention" for one in kinds)
    if window and not kinds and known.get("use_sliding_window", True):
        windowed = layers
    one_key = known.get("multi_query") and not known.get("new_decoder_architecture")
    return Shape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads
        if rank
        else 1
        if one_key
        else read("num_key_value_heads", "num_kv_heads", "kv_n_heads") or heads,
        head_dim=read("v_head_dim" if rank else "head_dim") or max(1, hidden // heads),
        intermediate=0 if experts and not dense_layers else inner,
        vocabulary=vocabulary,
        sequence=min(read("max_position_embeddings", "n_positions", "max_seq_len") or 4096, 8192),
        gated=experts > 0
        or known.get("hidden_act", known.get("activation_function", "")) in GATED
        or str(known.get("model_type")).startswith(GATED_TYPES),
        tied=bool(known.get("tie_word_embeddings")),
        experts=experts,
        experts_per_token=chosen if experts else 0,
        expert_intermediate=of_expert if experts else 0,
        shared_intermediate=shared if experts else 0,
        dense_layers=dense_layers if experts else 0,
        latent_rank=rank,
        query_rank=read("q_lora_rank") if rank else 0,
        turned_dim=read("qk_rope_head_dim") if rank else 0,
        window=window if windowed else 0,
        windowed=windowed,
    )


def _check_kind(name: str, known: Mapping[str, object]) -> None:
    """Raise PlanError for a model whose layers are not all a decoder's attention and MLP."""
    other = [one for one in OTHER_LAYERS if known.get(one)]
    if known.get("is_encoder_decoder"):
        why = "has an encoder and a decoder"
    elif other and known.get("num_attention_heads"):
        why = f"has layers beside attention ({other[0]})"
    elif str(known.get("model_type")).endswith("text_model"):
        why = "is one tower of two"
    else:
        return
    raise PlanError(f"{name} {why}, which no plan knows: give a decoder-only transformer")


# Models by their sizes: `gpt:layers=96,hidden=12288,heads=96` and `llama:...`.

FAMILIES: Final = ("gpt", "llama")
NEEDED: Final = ("layers", "hidden", "heads")
SIZES: Final = (
    *NEEDED, "kv_heads", "head_dim", "intermediate", "vocabulary", "sequence", "experts",
    "experts_per_token", "expert_intermediate", "window",
)  # fmt: skip


def described(name: str) -> Shape | None:
    """Return the shape whose sizes a name gives; None if it names no sizes.

    Raises PlanError for an unknown size, one that is no whole number above 0, and missing ones.
    """
    family, colon, text = name.partition(":")
    if not colon or family not in FAMILIES:
        return None
    sizes = _sizes(name, text)
    if missing := [one for one in NEEDED if one not in sizes]:
        raise PlanError(
            f"{name!r} lacks {', '.join(missing)}: write, for example, "
            f"{family}:layers=24,hidden=2048,heads=16"
        )
    if sizes["hidden"] % sizes["heads"] and "head_dim" not in sizes:
        raise PlanError(
            f"{sizes['heads']} heads do not divide a hidden size of {sizes['hidden']}: change one "
            "of them, or give head_dim"
        )
    return made(name, gated=family == "llama", **sizes)


def _sizes(name: str, text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        word, _, number = part.strip().partition("=")
        if word not in SIZES or not (number.isascii() and number.isdigit()) or not int(number):
            raise PlanError(
                f"{part.strip()!r} in {name!r} is no size: give whole numbers above 0 for any of "
                f"{', '.join(SIZES)}"
            )
        if word in found:
            raise PlanError(f"{name!r} gives {word} twice: give it once")
        found[word] = int(number)
    return found
