"""Conversion of a KernelBench file to a problem. It runs the file: use it in workers only.

The problem has the case that the file itself draws, and hidden ones: the same inputs with random
signs, shifted, large, with heavy tails, with small rows and columns, with zero ones, and with fewer
rows. A hidden case is left out if the model rejects it, if its answer is not finite, or if zeros
leave it open which of equal values is chosen. All keep the structure that every draw of an input
shows (`input_structure`).
"""

from __future__ import annotations

import ast
import math
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ratchet.base.errors import KernelError
from ratchet.judge.abi import DTYPE_CODES
from ratchet.judge.problems import model_scale
from ratchet.judge.problems.assigned_sizes import changes
from ratchet.judge.problems.case import Structure
from ratchet.judge.problems.free_memory import COPIES, check_room
from ratchet.judge.problems.inputs import PLAIN, structure_of
from ratchet.judge.problems.model_file import ModelFile, model_of, on_cores, seeded, source_module
from ratchet.judge.problems.model_state import digest, plain_tensors
from ratchet.judge.problems.problem import Case, ModelForm, Problem, TensorSpec
from ratchet.judge.problems.references import inert_input
from ratchet.judge.problems.tolerance import Tolerance, coded, same_bits, widen

GIVEN = "given"
CODES = Tolerance(code_slack=1, code_share=0.05)
"""Tolerance for bytes: a file cannot declare that they are reals rounded from bfloat16."""
CLOSE = 1e-3
"""Largest difference between two calls of a deterministic model, relative to the output's scale."""
STRUCTURE_SEEDS = (11, 12)  # Further draws of the inputs, to detect their structure
SMALL_SEEDS = range(13, 75)
"""Draws of inputs so small that three of them tell nothing of their signs."""
FEW_ELEMENTS, MOST_ELEMENTS = 64, 1 << 22
"""Elements of a small input, and those that all further draws may have."""
ROOM_REMEDY = "make the sizes in its file smaller"
ZEROS = "zero_rows"
VARIATIONS = ("signed", "shifted", "large", "heavy_tailed", "uneven", ZEROS)
NEARLY_ZERO = 1e-30
CHOOSES = re.compile(
    r"sort|topk|(median|mode|kthvalue)\.dim|cumm|max_pool|unique|svd|_qr|eig|lstsq"
)
"""Torch's operators that take any of several equal values, or of several bases. `argmax`, `argmin`,
`max` and `min` take the first one, as torch's documentation says."""


def model_problem(
    text: str, name: str, *, scale: float | str | None, threads: int, within: str = ""
) -> Problem:
    """Return the problem; raise a KernelError if it is unusable, or whatever the file raises.

    With a budget's name in `within`, a problem is unusable that exceeds it by far (MOST_OVER).
    """
    torch.set_num_threads(threads)
    written = text
    text, notes = _scaled(text, scale, threads, within)
    form, case = _form(text)
    form = replace(form, shrunk=changes(written, text))
    notes += _kept(form.structures)
    if "cuda" in text:
        notes.append("tensors that its file creates on cuda are on the CPU")
    problem = Problem(
        name=name,
        reference="file:Model",
        cases=(case,),
        tolerance=CODES,
        text=text,
        model=form,
        notes=tuple(notes),
    )
    with torch.no_grad():
        problem = _deterministic(problem)
        problem = replace(problem, model=_with_result(problem))
        given = problem.load_reference(), [case], problem.build_inputs
        inert = inert_input(*given, first=len(form.state))
        if inert is not None:
            raise KernelError(f"its output does not depend on input {inert - len(form.state)}")
        assert problem.model is not None
        hidden = _hidden_cases(model_of(text, problem.model), problem.model, case)
    return replace(problem, cases=(case, *hidden))


def _scaled(
    text: str, scale: float | str | None, threads: int, within: str
) -> tuple[str, list[str]]:
    budgets = {"auto": model_scale.auto_budget, "emulated": model_scale.emulated_budget}
    most = model_scale.MOST_OPERATORS if scale in budgets else math.inf
    cost = model_scale.measure(text, most)
    if cost is None:
        if scale is None:
            return text, []
        return text, ["not shrunk: fake tensors cannot run its model, so its cost is unknown"]
    notes, old = [], text
    if scale is not None:
        given = budgets[scale](threads) if isinstance(scale, str) else None
        budget = given or model_scale.share_of(cost, float(scale))
        text, cost = model_scale.fit(text, cost, budget, most)
        over = cost.over(budget)
        check_room(COPIES * cost.held_bytes, ROOM_REMEDY)
        if changed := changes(old, text):
            notes.append(f"shrunk to fit: {', '.join(one.words() for one in changed)}")
        if over > 1:
            notes.append(f"still {over:.1f} times over the budget; no size is left to shrink")
    else:
        remedy = "judge it on a larger machine" if within else "give --scale"
        check_room(COPIES * cost.held_bytes, remedy)
        over = cost.over(budgets[within](threads)) if within else 0.0
        if over > model_scale.MOST_OVER.get(within, math.inf):
            raise KernelError(
                f"a call takes {over:.0f} times what a verdict has room for; --scale 1 and a "
                "longer time limit try it"
            )
    return text, notes


def _form(text: str) -> tuple[ModelForm, Case]:
    with on_cores(text):
        module = source_module(text)
    for wanted in ("Model", "get_inputs", "get_init_inputs"):
        if not callable(getattr(module, wanted, None)):
            raise KernelError(
                f"its {wanted} cannot be called: KernelBench's format needs a function"
            )
    with seeded(1), on_cores(text):
        init, given = _listed(module, "get_init_inputs"), _listed(module, "get_inputs")
        model = module.Model(*init)
    arguments = tuple(
        None if isinstance(one, Tensor) else _literal(one, "get_inputs gives") for one in given
    )
    inputs = [_spec(one, "from_file") for one in given if isinstance(one, Tensor)]
    if not inputs:
        raise KernelError(
            "its get_inputs gives no tensor: return a list of those that Model.forward takes"
        )
    state = dict(model.state_dict())
    attributes = _random_attributes(module, text, init, model)
    state.update(attributes)
    form = ModelForm(
        init=_literal(init, "get_init_inputs gives"),
        arguments=arguments,
        state=tuple(state),
        structures=_structures(module, text, given),
        attributes=tuple(attributes),
    )
    first = model_of(text, form).first_state()
    form = replace(form, drawn=tuple(map(digest, first)))
    specs = [*(_spec(tensor, "state") for tensor in state.values()), *inputs]
    return form, Case(name=GIVEN, inputs=tuple(specs), timed=True)


def _listed(module: types.ModuleType, function: str) -> list[object]:
    """Return what a function of the file gives; KernelError unless it is a list or a tuple."""
    given = getattr(module, function)()
    if not isinstance(given, (list, tuple, Iterator)):
        raise KernelError(
            f"its {function} gives {type(given).__name__}, no list: return a list of the arguments"
        )
    return list(given)


def _structures(
    module: types.ModuleType, text: str, given: Sequence[object]
) -> tuple[Structure, ...]:
    """Return the structure that the draws of each tensor input share."""
    draws = [[one.detach() for one in given if isinstance(one, Tensor)]]
    small = any(1 < one.numel() < FEW_ELEMENTS for one in draws[0] if one.is_floating_point())
    held = sum(map(Tensor.numel, draws[0])) * len(SMALL_SEEDS)
    more = SMALL_SEEDS if small and held <= MOST_ELEMENTS else ()
    for seed in (*STRUCTURE_SEEDS, *more):
        with seeded(seed), on_cores(text):
            draws.append([one.detach() for one in module.get_inputs() if isinstance(one, Tensor)])
    if len({len(one) for one in draws}) != 1:
        return ()  # drawing reports it
    return tuple(map(structure_of, zip(*draws, strict=True)))


def _random_attributes(
    module: types.ModuleType, text: str, init: Sequence[object], model: nn.Module
) -> dict[str, Tensor]:
    """Return the model's plain tensors that differ if it is built with another seed."""
    own = plain_tensors(model)
    if not own:
        return {}
    with seeded(2), on_cores(text):
        other = plain_tensors(module.Model(*init))
    return {
        name: tensor.detach()
        for name, tensor in own.items()
        if name not in other or not same_bits(tensor.detach(), other[name].detach())
    }


def _kept(structures: Sequence[Structure]) -> list[str]:
    """Describe in words what hidden variations keep."""
    named = [(at, one.words()) for at, one in enumerate(structures)]
    kept = [f"input {at}'s {words}" for at, words in named if words]
    return [f"its hidden variations keep {'; '.join(kept)}"] if kept else []


def _spec(tensor: Tensor, distribution: str) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPE_CODES:
        raise KernelError(f"a tensor of {dtype} cannot be passed to a kernel")
    if tensor.layout != torch.strided:
        raise KernelError("a sparse tensor cannot be passed to a kernel: make it dense")
    if tensor.device.type != "cpu":
        raise KernelError(f"a tensor lies on {tensor.device}: draw it on the CPU")
    return TensorSpec(shape=tuple(tensor.shape), dtype=dtype, distribution=distribution)


def _literal(value: object, what: str) -> str:
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value
    except (ValueError, SyntaxError, TypeError):
        same = False
    if not same:
        shown = " ".join(text.split())
        raise KernelError(
            f"{what} {shown:.80}: only tensors and plain values can be passed to a kernel; "
            "give each tensor as an input of its own"
        )
    return text


def _deterministic(problem: Problem) -> Problem:
    """Return the problem in the first mode in which two models with the same state agree."""
    assert problem.model is not None
    if _agrees(problem):
        return problem
    still = replace(problem, model=replace(problem.model, training=False))
    if _agrees(still):
        return replace(
            still, notes=(*still.notes, "in eval mode, since it is random in training mode")
        )
    raise KernelError(f"it is nondeterministic: {_randomness(still)}")


def _with_result(problem: Problem) -> ModelForm:
    """Return the model's form with that of its result.

    Raises KernelError if the shapes of the outputs depend on values that a draw may change.
    """
    assert problem.model is not None
    file, state = model_of(problem.text, problem.model), len(problem.model.state)
    one, other = (file.draw(problem.cases[0], seed) for seed in (2, 3))
    filled = one[:state]
    for tensor, redrawn in zip(one[state:], other[state:], strict=True):
        varies = tensor.numel() and not same_bits(tensor, redrawn)
        filled.append(torch.full_like(tensor, tensor.flatten()[0].item()) if varies else tensor)
    call = file.call(seed=3)
    with seeded(3), file.on_this_machine():
        right = call(*one, ())
        form = replace(problem.model, alone=call.alone)
        try:
            answer = call(*filled, ())
        except Exception:  # the reference does not take equal values
            return form
    shapes = [[tuple(tensor.shape) for tensor in outputs] for outputs in (right, answer)]
    if shapes[0] != shapes[1]:
        raise KernelError(
            "the shapes of its outputs depend on the values of its inputs: return tensors whose "
            "shapes follow from those of the inputs"
        )
    return form if call.alone == form.alone else problem.model


def _randomness(problem: Problem) -> str:
    """Return the cause of a model's nondeterminism, with the remedy."""
    assert problem.model is not None
    file = model_of(problem.text, problem.model)
    tensors, call = file.draw(problem.cases[0], 2), file.call()

    def answer(seed: int) -> tuple[Tensor, ...]:
        with seeded(seed), file.on_this_machine():
            return call(*(one.clone() for one in tensors), ())

    first = answer(3)
    if not _alike(first, answer(3)):
        return (
            "a second call on the same inputs and with the same seed differs; "
            "make it depend only on its inputs and state"
        )
    if not _alike(first, answer(4)):
        return "its forward draws random numbers; pass them as an input"
    return (
        "two models with the same inputs, parameters, buffers and tensor attributes differ; "
        "keep every random draw of __init__ in one of these"
    )


def _agrees(problem: Problem) -> bool:
    assert problem.model is not None
    file = model_of(problem.text, problem.model)
    tensors = file.draw(problem.cases[0], 2)
    answers = []
    for seed in (3, 4):
        call = file.call(seed=seed)
        with seeded(seed), file.on_this_machine():
            answers.append(call(*(one.clone() for one in tensors), ()))
    return _alike(*answers)


def _alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(_close, one, other))


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if coded(one.dtype):
        return same_bits(one, other)
    scale = float(one.double().nan_to_num().square().mean().sqrt()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=CLOSE, atol=CLOSE * scale, equal_nan=True)


def _hidden_cases(file: ModelFile, form: ModelForm, given: Case) -> list[Case]:
    cases = [_varied(given, form, variation) for variation in VARIATIONS]
    fewer = _fewer_rows(given, form)
    candidates = [one for one in (*cases, fewer) if one is not None]
    sound = (case for case in candidates if _is_sound(file, case))
    return [case for case in sound if case.name != ZEROS or _is_settled(file, case)]


def _varied(given: Case, form: ModelForm, variation: str) -> Case | None:
    count = len(form.state)
    state, inputs = given.inputs[:count], given.inputs[count:]
    structures = form.structures or (PLAIN,) * len(inputs)
    varied = [
        replace(spec, distribution=f"from_file_{variation}")
        if _may_vary(spec, structure, variation)
        else spec
        for spec, structure in zip(inputs, structures, strict=True)
    ]
    if varied == list(inputs):
        return None
    return Case(name=variation, inputs=(*state, *varied), hidden=True)


def _may_vary(spec: TensorSpec, structure: Structure, variation: str) -> bool:
    """Return whether an input's structure allows this variation."""
    if not getattr(torch, spec.dtype).is_floating_point or structure.codes:
        return False
    if variation in ("uneven", ZEROS) and (structure.sign or structure.symmetric):
        return False
    if variation == ZEROS and structure.normalised is not None:
        return False
    return variation == "large" or not structure.definite  # only a factor keeps it


def _fewer_rows(given: Case, form: ModelForm) -> Case | None:
    """Return about half of the rows, if every input has the same number of them."""
    count = len(form.state)
    inputs = given.inputs[count:]
    rows = {spec.shape[0] for spec in inputs if spec.shape}
    if len(rows) != 1 or any(not spec.shape for spec in inputs) or max(rows) < 4:
        return None
    pairs = zip(inputs, form.structures, strict=False)
    if any(len(spec.shape) == 2 and (kept.zeros or kept.symmetric) for spec, kept in pairs):
        return None  # without some of its rows a matrix would lose its structure
    (number,) = rows
    fewer = [replace(spec, shape=(number // 2 + 1, *spec.shape[1:])) for spec in inputs]
    return Case(name="fewer rows", inputs=(*given.inputs[:count], *fewer), hidden=True)


def _is_settled(file: ModelFile, case: Case) -> bool:
    """Return whether zeros leave one answer: nothing is chosen, or values near zero give it too."""
    tensors = file.draw(case, 8)
    try:
        with model_scale.Names() as ran:
            answers = file.reference(*tensors, ())
    except Exception:  # the model cannot be watched
        return False
    if not any(map(CHOOSES.search, ran.found)):
        return True
    signs = torch.Generator().manual_seed(8)
    near = [
        torch.where(one == 0, torch.randn(one.shape, generator=signs) * NEARLY_ZERO, one)
        if spec.distribution.endswith(ZEROS)
        else one
        for one, spec in zip(tensors, case.inputs, strict=True)
    ]
    pairs = zip(answers, file.reference(*near, ()), strict=True)
    return all(torch.allclose(one.double(), two.double(), rtol=CLOSE) for one, two in pairs)


def _is_sound(file: ModelFile, case: Case) -> bool:
    """Return whether the model's answer is finite, in its own precision and in float64."""
    tensors = file.draw(case, 8)
    wide = [widen(one) for one in tensors]
    try:
        outputs = [*file.reference(*tensors, ()), *file.reference(*wide, ())]
    except Exception:  # the model rejects inputs that its author did not foresee
        return False
    floats = [
        one.float() if one.itemsize == 1 else one for one in outputs if one.is_floating_point()
    ]
    return all(bool(torch.isfinite(one).all()) for one in floats)
