"""F.layer_norm over the last dimension, with an optional residual sum before it.

Declined: no weight, several dimensions.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ratchet.graph.nodes import Declined, as_node, bind, calls
from ratchet.graph.patterns.norms import Norm, install_norm, norm_sizes, source_of, vector_size
from ratchet.graph.patterns.pattern import Pattern
from ratchet.graph.scope import Scope

_NAMES = ("input", "normalized_shape", "weight", "bias", "eps")
_DEFAULTS = {"weight": None, "bias": None, "eps": 1e-5}


def _find(node: Node) -> bool:
    return calls(node, "layer_norm")


def _install(node: Node, scope: Scope) -> None:
    given = bind(node, _NAMES, _DEFAULTS)
    vector_size(given["normalized_shape"])
    if given["weight"] is None:
        raise Declined("layer_norm has no weight")
    bias = given["bias"]
    norm = Norm(
        x=source_of(as_node(given["input"])),
        parameters=(as_node(given["weight"]), None if bias is None else as_node(bias)),
        eps=float(given["eps"]),
        end=node,
        members=(node,),
    )
    ops = torch.ops.ratchet
    install_norm(norm, ops.layer_norm.default, ops.add_layer_norm.default, scope)


LAYER_NORM = Pattern(
    name="layer_norm",
    summary="LayerNorm, with the residual sum in front of it",
    find=_find,
    install=_install,
    sizes=norm_sizes,
)
