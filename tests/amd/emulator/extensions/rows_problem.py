from ratchet import Case, Problem, TensorSpec


def reference(x, scalars):
    return (x - x.float().mean(-1, keepdim=True).to(x.dtype),)


PROBLEM = Problem(
    name="centred",
    reference="reference",
    cases=(
        Case(name="single", timed=True, inputs=(TensorSpec(shape=(6, 100), dtype="float32"),)),
        Case(name="half", hidden=True, inputs=(TensorSpec(shape=(3, 65), dtype="float16"),)),
    ),
)
