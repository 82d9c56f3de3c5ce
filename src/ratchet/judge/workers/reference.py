"""The reference worker: trusted, with torch. It draws inputs and knows the answers.

Seeds come from the judge. Inputs and outputs travel in shared memory. Expected outputs never leave
this process.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ratchet.base.errors import JudgeError, KernelError
from ratchet.base.process import families
from ratchet.base.process.channel import Message, inherited
from ratchet.judge.problems.free_memory import check_fits
from ratchet.judge.problems.problem import Case, Problem
from ratchet.judge.problems.references import inert_input
from ratchet.judge.problems.tolerance import Loss, OutputCheck, loss_over, same_bits, widen
from ratchet.judge.sandbox.serving import Reply, serve
from ratchet.judge.sandbox.shared_memory import span
from ratchet.judge.workers.alike import CLEARLY, alike, in_turn, movable
from ratchet.judge.workers.arm import extend_import_path
from ratchet.judge.workers.device import find_gpu, open_device
from ratchet.judge.workers.driver_memory import NoDeviceMemory
from ratchet.judge.workers.first_calls import make_first_calls
from ratchet.judge.workers.gate import check_repeats, elements, gate, off, owned
from ratchet.judge.workers.gate import conditions as conditions_of
from ratchet.judge.workers.gate import terms as terms_of
from ratchet.judge.workers.rival import alarm, kept_in, start_zygote, warm
from ratchet.judge.workers.shared_batch import CODES, SharedBatch
from ratchet.judge.workers.variants import explanation

OVERFLOWS = "the reference overflows, so nothing is compared"
"""Can happen with a hidden case's values at a timed case's sizes, which do not belong together."""
OTHERWISE = 0.1  # Error in norm from which a reference computes something else in float64
MOST_WORN_BYTES = 32 << 20  # Inputs of a larger batch are not kept for the next one
BEYOND = "it wrote beyond its tensors: check the bounds of what it writes"
PLANNING_CALLS, PLANNING_S = 10, 0.02
"""Calls of the reference on a timed case, or their seconds, to measure a warm call. With the first
two alone a batch got 1 to 7 calls where 25 fitted."""
MOST_DRAWS, ENOUGH_ELEMENTS = 32, 4096
"""Draws over which the reference's loss is taken before an answer is called wrong."""

Form = tuple[tuple[object, ...], ...]  # Shape, dtype and layout of each input of a case


class ReferenceWorker:
    """Finds GPUs, hands out its zygote, and holds one problem."""

    def __init__(self, zygote: socket.socket | None = None) -> None:
        """`zygote` is the channel of the process from which rivals are forked."""
        self._zygote = zygote
        self._held: HeldProblem | None = None

    def answer(self, message: Message, descriptors: list[int]) -> Reply:
        with torch.no_grad():
            match message["do"]:
                case "find gpu":
                    return _find_gpu(message["name"]), []
                case "zygote":
                    assert self._zygote is not None
                    return {"value": None}, [os.dup(self._zygote.fileno())]
                case "open":
                    if self._held is not None:
                        self._held.close()
                        self._held = None
                    held = HeldProblem(message)
                    self._held = held
                    return held.described(), []
            assert self._held is not None
            return self._held.answer(message)


def _find_gpu(name: str) -> Message:
    from ratchet.base.devices.gpu_use import warnings_of
    from ratchet.base.devices.probe import how_to_see_more

    try:
        found = find_gpu(name)
        if "missing" in found:
            found["missing"] += f"; {how_to_see_more(torch.cuda.device_count())}"
        else:
            index = torch.device(found["described"]["torch_name"]).index or 0
            found["warnings"] = warnings_of(index, root=os.getppid())
        return found
    except JudgeError as error:
        return {"refused": str(error)}


class HeldProblem:
    """A problem, its reference, and the batches in flight."""

    def __init__(self, message: Message) -> None:
        torch.set_num_threads(message["threads"])
        self._rng = random.Random(message["seed"])
        self._changes = in_turn(self._rng)
        self._device = open_device(message["device"])
        self._problem = Problem.from_json(message["problem"])
        check_fits(self._problem)
        self._reference = self._problem.load_reference()
        self._seed = message["seed"]
        self._seeds = False  # True if the reference sets torch's seed
        self._is_timed: bool = message["is_timed"]
        """False if no kernel is timed: then no operations are counted."""
        self._forms: dict[int, list[Tensor]] = {}
        self._views: set[int] = set()  # Cases on which the reference's outputs are views
        self._flops: dict[Form, float] = {}  # Operations of counted cases, by their form
        self._batches: dict[int, SharedBatch] = {}
        self._drawn: dict[int, list[Tensor]] = {}
        """The values of the last round's batch by their seeds: the next arm gets the same."""
        self._round: SharedBatch | None = None
        """The batch of that round which was made last."""
        self._worn: dict[int, list[list[Tensor]]] = {}
        """The inputs of the last batch of each case that lay where those after it will lie."""
        self._free: dict[int, dict[int, bool]] = {}
        """The inputs of each case whose elements do not belong together (`alike.movable`)."""
        self._answers: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        """The outputs of the reference and the oracle on some of these values."""
        self._usual: dict[str, list[Loss]] = {}

    def described(self) -> Message:
        """Return the measures of each case, and the trivial answers that the problem accepts.

        Raises KernelError if the reference is unfit.
        """
        before = torch.manual_seed(self._seed).initial_seed()
        cases = [self._describe(index, case) for index, case in enumerate(self._problem.cases)]
        self._seeds = torch.initial_seed() != before
        smallest = min(range(len(cases)), key=lambda index: cases[index]["bytes"])
        inputs = self._fresh_inputs(self._problem.cases[smallest])
        is_same = self._problem.is_same_in_modes(inputs)
        cases = [{**case, "is_same_in_modes": is_same} for case in cases]
        failures = gate(self._problem, self._reference, self._rng, self._inputs)
        if failures and not self._problem.check:
            own, exact = (self._call(one, self._problem.cases[smallest]) for one in
                          (inputs, [widen(tensor) for tensor in inputs]))  # fmt: skip
            if off(own, exact) > OTHERWISE:
                raise KernelError(
                    f"it answers otherwise in float64 (by {off(own, exact):.0%}), so no answer can "
                    "be checked: draw random numbers with a dtype of their own, or take them as an "
                    "input"
                )
        if not failures and self._problem.model is None:  # a model's file is checked as it is read
            by_size = sorted(self._problem.cases, key=elements)  # the smallest mostly decides
            inert = inert_input(self._reference, by_size, self._inputs)
            if inert is not None:
                raise KernelError(f"its output does not depend on input {inert}: leave that out")
        return {"cases": cases, "gate": failures}

    def answer(self, message: Message) -> Reply:
        actions: dict[str, Callable[[Message], Reply]] = {
            "ceilings": self._ceilings,
            "draw": self._draw,
            "check": self._check,
            "repeats": self._repeats,
            "flush": lambda asked: (self._device.flush(asked["load_s"]), []),
            "places": self._places,
            "compile into": self._compile_into,
            "release": self._release,
        }
        return actions[message["do"]](message)

    def _compile_into(self, message: Message) -> Reply:
        """Compile the reference for the form of every case, into a folder."""
        with alarm(message["compile_limit_s"]), kept_in(message["folder"]):
            compiled = self._problem.compile_reference()
            met = set()
            for case in self._problem.cases:
                form = _form(case)
                if form not in met:
                    warm(compiled, case, partial(self._fresh_inputs, case))
                met.add(form)
        return {"value": None}, []

    def _describe(self, index: int, case: Case) -> Message:
        """Run the reference on a case; return its time, operations and bytes."""
        inputs = self._fresh_inputs(case)
        _check_inputs(case, inputs)
        before = [tensor.clone() for tensor in inputs]
        flops = self._count_flops(inputs, case) if self._is_timed else 0.0
        times, (outputs, again) = zip(*(self._timed(inputs, case) for _ in range(2)), strict=True)
        is_planned = self._is_timed and case.timed
        while is_planned and len(times) < PLANNING_CALLS and sum(times) < PLANNING_S:
            times = (*times, self._timed(inputs, case)[0])
        _check_untouched(case, before, inputs)
        for at, output in enumerate(outputs):
            if output.dtype not in CODES:
                raise KernelError(
                    f"its output {at} is {output.dtype}, which no kernel can return: return real "
                    "tensors, such as torch.view_as_real makes"
                )

        def oracle() -> list[Tensor]:
            return self._call([widen(tensor) for tensor in inputs], case)

        check_repeats(self._problem, case, inputs, (outputs, again), oracle)
        moved = [*inputs, *outputs]
        self._forms[index] = [torch.empty_like(output) for output in outputs]
        if len({one.untyped_storage().data_ptr() for one in moved}) < len(moved):
            self._views.add(index)
        return {
            "time_s": min(times),
            "flops": flops,
            "bytes": sum(_held_bytes(tensor) for tensor in moved),
        }

    def _count_flops(self, inputs: Sequence[Tensor], case: Case) -> float:
        """Count the operations of a case; an untimed case reuses the count of an equal form.

        Counting takes a call of the reference, and only a timed case's count matters.
        """
        from ratchet.judge.problems.references import FlopCount

        form = _form(case)
        if case.timed or form not in self._flops:
            with FlopCount() as counter:
                self._call(inputs, case)
            self._flops[form] = counter.total
        return self._flops[form]

    def _fresh_inputs(self, case: Case) -> list[Tensor]:
        return self._inputs(case, self._rng.getrandbits(48))

    def _inputs(self, case: Case, seed: int) -> list[Tensor]:
        drawn = self._problem.build_inputs(case, seed, self._device.memory.device)
        return [self._device.place(one) for one in drawn]

    def _timed(self, inputs: Sequence[Tensor], case: Case) -> tuple[float, list[Tensor]]:
        self._device.finish()
        began = time.perf_counter()
        outputs = self._call(inputs, case)
        self._device.finish()
        return time.perf_counter() - began, outputs

    def _call(self, inputs: Sequence[Tensor], case: Case) -> list[Tensor]:
        """Call the reference on copies of in-place tensors; check that it returns tensors."""
        outputs = self._reference(*owned(case, inputs), case.scalars)
        if not isinstance(outputs, tuple) or not all(isinstance(o, Tensor) for o in outputs):
            raise KernelError(
                f"the reference of {self._problem.name!r} must return a tuple of tensors, "
                f"not {type(outputs).__name__}"
            )
        return list(outputs)

    def _ceilings(self, message: Message) -> Reply:
        """Return the least time of a call at this device's ceilings.

        They are measured anew if one that took `seconds` is faster than `slack` times them.
        """
        from ratchet.base.devices import ceilings, probe

        def least_s(known: ceilings.Ceilings) -> float:
            bound_s = known.bound_s(message["flops"], message["bytes"])
            return bound_s / float(message["slack"])

        device = probe.probe(str(self._device.memory.device))
        known = ceilings.measure(device)
        found = ceilings.unrefuted(
            device, known, lambda one: bool(message["seconds"] < least_s(one))
        )
        said = ["the ceilings were measured anew"] if found != known else []
        told = "; ".join([*said, *([found.provisional] if found.provisional else [])])
        return {"least_s": least_s(found), "told": told}, []

    def _draw(self, message: Message) -> Reply:
        self._release(message)
        try:
            return self._new_batch(message)
        except (NoDeviceMemory, torch.OutOfMemoryError) as error:
            refusal = error.with_traceback(None)  # its frames hold what was drawn
        self._drawn, self._answers, self._round = {}, {}, None
        self._device.give_back()
        raise refusal

    def _new_batch(self, message: Message) -> Reply:
        case, seeds = self._problem.cases[message["case"]], message["seeds"]
        varied = self._problem.varied(case) if message["values"] else ()
        kept = self._drawn if message["round"] else None
        repeated, made = self._alike(message["case"], seeds, message["alike"])
        like = None if kept is None else self._round
        if like is not None and (like.case is not case or like.seeds != seeds):
            like = None
        batch = SharedBatch(
            self._problem,
            case,
            seeds,
            self._forms[message["case"]],
            writable_inputs=message["writable_inputs"],
            cases=[varied[kind] for kind in message["values"]],
            rng=self._rng if message["places"] is None else random.Random(message["places"]),
            returns=message["places"] is not None,
            device=self._device,
            kept=repeated if kept is None else kept,
            like=like,
        )
        if kept is not None:
            self._round = batch
            self._drawn = {seed: kept[seed] for seed in seeds}
            self._answers = {seed: self._answers[seed] for seed in seeds if seed in self._answers}
        drawn_bytes = sum(_held_bytes(tensor) for tensors in batch.inputs for tensor in tensors)
        if message["places"] is not None and drawn_bytes <= MOST_WORN_BYTES:
            self._worn[message["case"]] = batch.inputs
        self._batches[message["batch"]] = batch
        # Copies: `serve` closes what it hands out, and this worker still reads both memories.
        views = message["case"] in self._views
        layout = replace(batch.layout(), views=views, seeds=self._seeds)
        reply = {"layout": layout.as_json(), "alike": made}
        return reply, [os.dup(one) for one in batch.descriptors]

    def _alike(
        self, index: int, seeds: Sequence[int], pairs: Sequence[tuple[int, int]]
    ) -> tuple[dict[int, list[Tensor]], list[int]]:
        """Draw calls that repeat an earlier one's inputs but for a few elements.

        Return inputs by their seeds, and the calls for which that could be done. A pair is a call
        and the earlier one; a call with itself means that of the case's last batch.
        """
        case, worn = self._problem.cases[index], self._worn.get(index, [])
        drawn: dict[int, list[Tensor]] = {}
        made = []
        for call, earlier in pairs:
            seed = seeds[earlier]
            if call > earlier:
                base = drawn[seed] = drawn.get(seed) or self._inputs(case, seed)
            elif call < len(worn):
                base = worn[call]
            else:
                continue
            other = self._inputs(case, seeds[call])
            places = movable(case, base, other, self._free.setdefault(index, {}))
            rng = random.Random(seeds[call])
            found = alike(base, other, places, rng, self._shows(case, base), next(self._changes))
            drawn[seeds[call]] = other if found is None else found
            made += [] if found is None else [call]
        return drawn, made

    def _shows(self, case: Case, base: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], bool]:
        """Return what tells whether the answer for `base` is clearly wrong for other inputs."""
        old = self._call(base, case)

        def shows(inputs: Sequence[Tensor]) -> bool:
            try:
                oracle = self._call([widen(tensor) for tensor in inputs], case)
                own = self._call(inputs, case)
            except (ArithmeticError, LookupError, RuntimeError, ValueError, AssertionError):
                return False  # the reference does not take such inputs
            if _overflows([*own, *oracle], inputs) and not _overflows(old, base):
                return False  # an element of zero, say, where it divides
            checks = self._problem.check_outputs(case, inputs, old, own, oracle)
            off = [max(one.element_ratio, one.norm_ratio) for one in checks if not one.passed]
            return max(off, default=0.0) > CLEARLY

        return shows

    def _check(self, message: Message) -> Reply:
        """Compare the outputs of some calls, given with their codes; the candidate must stand."""
        batch, again = self._batches[message["batch"]], message["again"]
        found = [self._check_call(batch, call, code, again) for call, code in message["calls"]]
        return {"found": found}, []

    def _check_call(self, batch: SharedBatch, call: int, code: int, again: bool) -> Message:
        """Return the fields of `open_problem.CallCheck`."""
        changed = batch.changed_input(call) if batch.inputs_can_change else None
        if batch.is_written_beyond:
            return {"changed_input": None, "written": True, "passed": False, "detail": BEYOND}
        if code != 0:
            written = batch.written(call)
            return {"changed_input": changed, "written": written, "passed": False, "detail": ""}
        result: dict[str, object] = {"changed_input": changed, "written": True}
        case = batch.cases[call]
        own, oracle = self._right_answers(batch, call, again)
        if case is not batch.case and _overflows([*own, *oracle], batch.inputs[call]):
            return result | {"passed": True, "detail": OVERFLOWS, "overflows": True}
        given, got = batch.inputs[call], batch.answers(call)
        checks = self._checks(case, given, got, own, oracle)
        if case.grown:
            result["off"] = off(got, oracle)
        failed = [(index, check) for index, check in enumerate(checks) if not check.passed]
        index, shown = failed[0] if failed else (0, max(checks, key=lambda c: c.element_ratio))
        detail = f"output {index}: {shown.detail}"
        if failed and (words := self._explanation(case, given, got)):
            detail += f"; it matches the reference with {words}"
        return result | {"passed": not failed, "detail": detail}

    def _checks(
        self,
        case: Case,
        given: list[Tensor],
        got: list[Tensor],
        own: Sequence[Tensor],
        oracle: Sequence[Tensor],
    ) -> Sequence[OutputCheck]:
        problem = self._problem
        checks = problem.check_outputs(case, given, got, own, oracle)
        if problem.check or all(check.passed for check in checks):
            return checks
        # One draw's loss is a noisy bound if outputs are few, and a plain sum loses more than
        # torch's. That alone does not make an answer wrong.
        return problem.tolerance.check_all(got, own, oracle, self._losses_at(case, given))

    def _explanation(self, case: Case, given: list[Tensor], got: list[Tensor]) -> str:
        """Return the variant of the reference for which a wrong answer is right, or ""."""

        def is_right(answers: Sequence[Sequence[Tensor]]) -> bool:
            return all(check.passed for check in self._checks(case, given, got, *answers))

        wide = [widen(tensor) for tensor in given]
        return explanation(lambda inputs: self._call(inputs, case), (given, wide), is_right)

    def _right_answers(
        self, batch: SharedBatch, call: int, again: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the outputs of the reference and the oracle for a call; keep them if `again`."""
        seed, inputs, case = batch.seeds[call], batch.inputs[call], batch.cases[call]
        found = self._answers.get(seed)
        if found is None:
            wide = [widen(tensor) for tensor in inputs]
            found = self._call(inputs, case), self._call(wide, case)
            if again and seed in self._drawn:
                self._answers[seed] = found
        return found

    def _repeats(self, message: Message) -> Reply:
        """Report whether two calls of a batch wrote the same bits."""
        batch, (one, other) = self._batches[message["batch"]], message["calls"]
        pairs = zip(batch.answers(one), batch.answers(other), strict=True)
        same = all(same_bits(one, two) for one, two in pairs)
        return {"same": same}, []

    def _losses(self, case: Case) -> list[Loss]:
        """Return the reference's loss in each output, over several draws of a case."""
        if case.name not in self._usual:
            draws: list[tuple[list[Tensor], list[Tensor]]] = []
            elements = 0
            while len(draws) < MOST_DRAWS and elements < ENOUGH_ELEMENTS:
                inputs = self._fresh_inputs(case)
                own = self._call(inputs, case)
                draws.append((own, self._call([widen(tensor) for tensor in inputs], case)))
                elements += min(output.numel() for output in own)
            terms = terms_of(lambda given: self._call(given, case), inputs, self._rng)
            self._usual[case.name] = [
                replace(loss_over([(own[at], oracle[at]) for own, oracle in draws]), terms=count)
                for at, count in enumerate(terms)
            ]
        return self._usual[case.name]

    def _losses_at(self, case: Case, inputs: Sequence[Tensor]) -> list[Loss]:
        """Return the losses, with how far these inputs carry errors: tails differ."""
        wide = [widen(tensor) for tensor in inputs]
        conditions = conditions_of(lambda given: self._call(given, case), wide, self._rng)
        losses = zip(self._losses(case), conditions, strict=True)
        return [replace(loss, condition=one, single=single) for loss, (one, single) in losses]

    def _places(self, message: Message) -> Reply:
        """Return the bytes at some spots of a batch now, which only this worker can read."""
        found = self._batches[message["batch"]].places(message["spots"])
        return {"found": [one.hex() for one in found]}, []

    def _release(self, message: Message) -> Reply:
        """Release all batches that the judge does not use any more."""
        for number in self._batches.keys() - set(message["in_use"]):
            self._batches.pop(number).release()
        return {"value": None}, []

    def close(self) -> None:
        for batch in self._batches.values():
            batch.release()
        self._batches.clear()


def _form(case: Case) -> Form:
    return tuple((spec.shape, spec.dtype, spec.layout) for spec in case.inputs)


def _check_inputs(case: Case, inputs: Sequence[Tensor]) -> None:
    for index, (spec, tensor) in enumerate(zip(case.inputs, inputs, strict=True)):
        if spec.in_place and torch.empty_like(tensor).stride() != tensor.stride():
            raise KernelError(
                f"input {index} of case {case.name!r} is changed in place but its elements share "
                f"memory or have gaps (layout {spec.layout}); make it contiguous"
            )


def _check_untouched(case: Case, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if not same_bits(old, new):
            raise KernelError(
                f"the reference changes input {index} of case {case.name!r}: declare it in_place, "
                "or compute on a copy"
            )


def _overflows(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """Return True if finite inputs give inf or NaN, where the order of the work decides which."""
    return _finite(inputs) and not _finite(outputs)


def _finite(tensors: Sequence[Tensor]) -> bool:
    # torch has no `isfinite` for fp8
    real = (one.float() if one.itemsize == 1 else one for one in tensors if one.is_floating_point())
    return all(bool(torch.isfinite(one).all()) for one in real)


def _held_bytes(tensor: Tensor) -> int:
    """Return a tensor's bytes in memory; broadcast values count once."""
    elements = min(tensor.numel(), span(tensor.shape, tensor.stride()))
    return elements * tensor.element_size()


def main() -> None:
    """Serve the judge; argv holds the channel and the parent's process id."""
    channel = inherited(int(sys.argv[1]))
    families.die_with_parent(int(sys.argv[2]))
    families.adopt_orphans()
    extend_import_path()
    make_first_calls()
    zygote = start_zygote([int(sys.argv[1])])
    serve(channel, ReferenceWorker(zygote).answer)
    os._exit(0)


if __name__ == "__main__":
    main()
