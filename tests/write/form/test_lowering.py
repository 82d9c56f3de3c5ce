"""From references to forms and stages."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import load_problem
from ratchet.judge.problems.suites import find_problem
from ratchet.write.form import Fold, InputNode, LoopForm, Map, Scatter, UnsupportedOp
from ratchet.write.form.forms import form_as_json, form_from_json, forms_of
from ratchet.write.form.lower import lower
from ratchet.write.generator.fusion import Alone, LoopNest, planned
from ratchet.write.generator.schedule import Choices
from ratchet.write.generator.source import source_of

Scalars = Sequence[float]


def spectrum(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (torch.fft.rfft(x).real,)


def doubled_or_halved(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (x * 2 if scalars[0] else x / 2,)


def halves(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    first, second = x.reshape(x.shape[0], 2, -1).unbind(1)
    return (first * second,)


def in_place(total: Tensor, x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    total[: x.shape[0]] += x
    return (total,)


def the_same_twice(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    unseen = (x == float("-inf")).all(-1, keepdim=True)
    return (x.exp() + x.amax(-1, keepdim=True), x.exp() * 2, torch.where(unseen, 0.0, x))


def form_of(name: str) -> LoopForm:
    return forms_of(find_problem(name).at("ci"))[0]


def own_problem(
    name: str, *specs: TensorSpec, scalars: Sequence[tuple[float, ...]] = ((),)
) -> Problem:
    cases = tuple(
        Case(name=str(place), inputs=specs, scalars=one, timed=True)
        for place, one in enumerate(scalars)
    )
    return Problem(name=name, reference=f"{__name__}:{name}", cases=cases)


def real(*shape: int) -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32")


def test_an_activation_is_one_loop() -> None:
    stages = planned(form_of("gelu")).stages
    assert len(stages) == 1
    assert isinstance(stages[0], LoopNest)
    assert list(stages[0].members.values()) == ["element"]


def test_reductions_over_rows_and_columns_share_a_loop_with_what_uses_them() -> None:
    (nest,) = planned(form_of("layer_norm_backward")).stages
    assert isinstance(nest, LoopNest)
    roles = list(nest.members.values())
    assert roles.count("row fold") == 4
    assert roles.count("column fold") == 2
    assert roles.count("element") == 1


@pytest.mark.parametrize("name", ["quantise_groups", "adam_8_bit"])
def test_groups_of_a_row_share_a_loop_with_what_reads_them_back(name: str) -> None:
    form = form_of(name)
    (nest,) = planned(form).stages
    assert isinstance(nest, LoopNest)
    assert {"row fold", "part"} <= set(nest.members.values())
    text = source_of([form], Choices.read(()), "entry")
    assert "constexpr bool" in text  # the loop over a group is cut where the padding starts
    assert "int64_t w0" not in text  # nothing is copied: it may change its inputs in place


def test_without_fusion_every_node_has_its_own_loop() -> None:
    form = form_of("layer_norm_backward")
    assert len(planned(form, fuse=False).stages) == 7


def test_sizes_are_names() -> None:
    (tensor,) = form_of("softmax").inputs
    assert all(size.constant is None for size in tensor.shape)
    assert tensor.shape[0] != tensor.shape[1]


def test_an_even_size_is_twice_a_name() -> None:
    form = lower(own_problem("halves", real(4, 8)), own_problem("halves", real(4, 8)).cases[0])
    assert form.outputs[0].shape[1] * 2 == form.inputs[0].shape[1]


def test_scalars_give_a_form_each() -> None:
    problem = own_problem("doubled_or_halved", real(3, 5), scalars=((1.0,), (0.0,)))
    one, other = forms_of(problem)
    assert [type(form.outputs[0]) for form in (one, other)] == [Map, Map]
    assert one.outputs[0].op != other.outputs[0].op  # type: ignore[attr-defined]
    assert (one.scalars, other.scalars) == ((1.0,), (0.0,))


def test_a_tensor_changed_in_place_comes_back_in_its_slot() -> None:
    spec = TensorSpec(shape=(6, 5), dtype="float32", in_place=True)
    problem = own_problem("in_place", spec, real(4, 5))
    assert forms_of(problem)[0].slots == (0,)


def test_a_table_s_gradient_is_a_scatter() -> None:
    form = form_of("embedding_gradient")
    assert any(isinstance(node, Scatter) for node in form.nodes())
    assert isinstance(planned(form).stages[-1], Alone)


def test_an_op_outside_the_list_is_named() -> None:
    with pytest.raises(UnsupportedOp, match="fft"):
        forms_of(own_problem("spectrum", real(4, 8)))


FILE = """
import os
import torch

os.environ["RATCHET_TEST_WAS_HERE"] = "1"


def reference(x, scalars):
    return (torch.softmax(x * scalars[0], -1),)
"""


def test_a_problem_s_file_is_traced_in_another_process() -> None:
    case = Case(name="one", inputs=(real(4, 8),), scalars=(2.0,), timed=True)
    problem = Problem(name="scaled", reference="reference", cases=(case,), text=FILE)
    (form,) = forms_of(problem)
    assert "RATCHET_TEST_WAS_HERE" not in os.environ
    assert len(planned(form).stages) == 1


def test_the_op_that_stops_a_file_is_named() -> None:
    text = FILE.replace("torch.softmax(x * scalars[0], -1)", "torch.linalg.det(x)")
    case = Case(name="one", inputs=(real(4, 4),), scalars=(2.0,), timed=True)
    problem = Problem(name="scaled", reference="reference", cases=(case,), text=text)
    with pytest.raises(UnsupportedOp, match="linalg"):
        forms_of(problem)


MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.rand(16, 64)]


def get_init_inputs():
    return [64]
"""


def test_a_model_s_parameters_are_inputs(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    (form,) = forms_of(load_problem(file))
    read_inputs = {node.place for node in form.nodes() if isinstance(node, InputNode)}
    assert read_inputs == {0, 1, 2}


@pytest.mark.parametrize("name", ["adamw_step", "permute_tokens", "conv_bias_relu", "embedding"])
def test_a_form_comes_back_from_json(name: str) -> None:
    form = form_of(name)
    document = json.loads(json.dumps(form_as_json(form)))
    again = form_from_json(document)
    assert form_as_json(again) == document
    assert source_of([again], Choices.read(()), name) == source_of([form], Choices.read(()), name)


def test_a_name_that_is_code_is_refused() -> None:
    document = form_as_json(form_of("gelu"))
    document["inputs"][0][1][0][0][0][0][1] = "s0; system()"
    with pytest.raises(KernelError, match="no name"):
        form_from_json(document)


@pytest.mark.parametrize(("op", "said"), [("system", "unknown op"), ("add", "add of 1")])
def test_an_op_that_is_not_in_the_table_is_refused(op: str, said: str) -> None:
    document = form_as_json(form_of("gelu"))
    node = next(one for one in document["nodes"] if one[0] == "Map")
    node[3] = [op, [0]]
    with pytest.raises(KernelError, match=said):
        form_from_json(document)


def window_in_3d(x: Tensor, weight: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (torch.nn.functional.conv3d(x, weight),)


def test_a_window_may_have_three_sizes() -> None:
    """Each is a number of its own: one more tracing for each."""
    x = TensorSpec(shape=(2, 3, 6, 7, 8), dtype="float32")
    weight = TensorSpec(shape=(4, 3, 2, 3, 4), dtype="float32")
    problem = own_problem("window_in_3d", x, weight)
    [form] = forms_of(problem)
    assert form.outputs


def test_equal_computations_are_one() -> None:
    (form,) = forms_of(own_problem("the_same_twice", TensorSpec(shape=(4, 9), dtype="float32")))
    ops = [one.op for one in form.nodes() if isinstance(one, Map | Fold)]
    assert ops.count("exp") == 1 and ops.count("max") == 1


def test_groups_of_a_row_are_loops() -> None:
    form = form_of("dequantise_fp8_blocks")
    source = source_of([form], Choices.read(()), "entry")
    dense = source[source.index("dense_0(") : source.index("strided_0(")]
    assert ">> 7" not in dense and "x1[i0_0i0_1q]" in dense
