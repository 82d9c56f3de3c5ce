"""First calls of MKL's vector functions, made on one thread before anything is compared.

MKL chooses the code of each (`exp`, `sqrt`) as it is called first. If two threads make that call
together, one may get code of half the digits, for that call alone (pytorch issue 188792, with MKL
2024.2 as in torch 2.13's wheels): `exp` was off by 1.5e-4 in one of 300 new processes on two busy
Ice Lake cores, which explains an honest softmax that was `wrong` there. A zygote's forks inherit
the choice.
"""

from __future__ import annotations

import functools
from typing import Final

import torch

FUNCTIONS: Final = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "digamma", "erf", "erfc",
    "erfinv", "exp", "exp2", "expm1", "lgamma", "log", "log10", "log1p", "log2", "reciprocal",
    "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
"""Functions of torch that one of MKL may compute, by torch's version."""
DTYPES: Final = (torch.float32, torch.float64)


@functools.cache
def make_first_calls() -> None:
    """Call each function once, on one element: torch gives such a call no second thread."""
    with torch.no_grad():
        for dtype in DTYPES:
            one = torch.full((1,), 0.5, dtype=dtype)
            for name in FUNCTIONS:
                getattr(torch, name)(one)
