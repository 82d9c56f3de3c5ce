"""The table of ops: what each stands for in a graph, what it costs, and its text in both languages.

A text is a template: `{0}`, `{1}` are the arguments, `{kind}` is the C type of the result and
`{type}` Triton's. A name that begins with `r_` is a function of the language's prelude
(`generator/prelude.h`, `generator/triton/prelude.py`), which the source then holds. An op without a
text calls the prelude's function of its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal

from ratchet.write.form import REALS, UnsupportedOp

OfWhole = Literal["computed", "same", "false", "unsupported"]
"""The result for whole numbers: a value of their own, themselves, false, or an error."""


@dataclass(frozen=True, slots=True)
class MapOp:
    name: str
    arity: int = 1
    _: KW_ONLY
    aten: tuple[str, ...] | None = None
    """ATen's names that the record alone lowers; None is the op's own. `ops_*.py` lower others."""
    logical: tuple[str, ...] = ()  # ATen's names that compute it of truth values
    sizes: tuple[str, ...] = ()
    """Names of functions of Python numbers: a graph's arithmetic on sizes."""
    is_test: bool = False
    """The result is a truth value; arguments take the dtype that holds all of them, not its own."""
    of_whole: OfWhole = "computed"
    costly: bool = False  # Slow: a value read twice may better be kept than computed again
    fades: bool = False  # Minus infinity gives 0: what a mask left out stays out
    domain: tuple[float, float] = (-math.inf, math.inf)
    """An open interval of first arguments for which it has a finite value."""
    sign: str = ""  # An operator that both languages write between two arguments
    cpp: str = ""
    triton: str = ""
    triton_whole: str = ""
    """Another text for whole numbers, where the language's functions take reals alone."""

    @property
    def aten_names(self) -> tuple[str, ...]:
        """Return the names in a graph that this record alone lowers."""
        return (self.name,) if self.aten is None else self.aten

    @property
    def cpp_text(self) -> str:
        return self.cpp or self._default

    def triton_text(self, *, whole: bool) -> str:
        """Return the template in Triton, for whole numbers (or truth values) or for reals."""
        return (whole and self.triton_whole) or self.triton or self._default

    def check(self, dtype: str) -> None:
        """Raise UnsupportedOp if nothing computes the op in this dtype."""
        if self.of_whole == "unsupported" and dtype not in REALS:
            raise UnsupportedOp(self.name, f"of {dtype}")

    @property
    def _default(self) -> str:
        if self.sign:
            return f"{{0}} {self.sign} {{1}}"
        return f"r_{self.name}({', '.join(f'{{{place}}}' for place in range(self.arity))})"


@dataclass(frozen=True, slots=True)
class FoldOp:
    """A reduction, or a running one along an axis."""

    name: str
    _: KW_ONLY
    aten: tuple[str, ...] = ()  # ATen's reductions over dimensions
    scans: tuple[str, ...] = ()  # ATen's running reductions
    neutral: float
    """The number that changes nothing; infinities are the least and the greatest of the dtype."""
    sign: str = ""
    """The operator that takes two values together; without one, the op of the same name does."""
    of_truths: bool = False  # The argument is taken as truth values, and the result is one
    wide: bool = False  # Long float32 totals are kept in float64
    along: str = ""  # Triton for a tile `{0}` reduced along the axis `{1}`, which keeps size 1
    along_whole: str = ""  # Another text for whole numbers and truth values
    scan: str = ""  # Triton for a tile's running reduction along its rows


_ABOVE_0: Final = (0.0, math.inf)


def _test(name: str, sign: str) -> MapOp:
    return MapOp(name, 2, is_test=True, sign=sign)


def _logic(name: str, sign: str) -> MapOp:
    aten, logical, cpp = f"bitwise_{name}", f"logical_{name}", f"({{kind}})({{0}} {sign} {{1}})"
    return MapOp(name, 2, aten=(aten,), logical=(logical,), sign=sign, cpp=cpp)


def _slow(name: str, **facts: Any) -> MapOp:
    return MapOp(name, costly=True, **facts)


MAP_OPS: Final = (
    MapOp("copy", aten=(), cpp="{0}", triton="{0}"),
    MapOp("cast", aten=(), cpp="({kind}){0}", triton="tl.cast({0}, {type})"),
    MapOp("where", 3, aten=(), cpp="{0} ? {1} : {2}", triton="tl.where({0}, {1}, {2})"),
    MapOp("add", 2, aten=(), sizes=("add",), sign="+"),
    MapOp("sub", 2, aten=(), sizes=("sub",), sign="-"),
    MapOp("mul", 2, sizes=("mul",), sign="*"),
    MapOp("div", 2, aten=(), sizes=("truediv",), costly=True, of_whole="unsupported", sign="/"),
    MapOp("floor_div", 2, aten=()),
    MapOp("trunc_div", 2, aten=()),
    MapOp("fmod", 2, costly=True, triton_whole="r_whole_fmod({0}, {1})"),
    MapOp("remainder", 2, costly=True, triton_whole="r_whole_remainder({0}, {1})"),
    MapOp(
        "pow",
        2,
        aten=(),
        sizes=("pow", "pow_by_natural", "float_pow"),
        costly=True,
        domain=_ABOVE_0,
        triton_whole="r_whole_pow({0}, {1})",
    ),
    MapOp("fma", 3, of_whole="unsupported", triton="tl.fma({0}, {1}, {2})"),
    MapOp("max", 2, aten=("maximum", "clamp_min"), triton_whole="tl.maximum({0}, {1})"),
    MapOp("min", 2, aten=("minimum", "clamp_max"), triton_whole="tl.minimum({0}, {1})"),
    MapOp("neg", sizes=("neg",), cpp="-{0}", triton="-{0}"),
    MapOp("abs", triton="tl.abs({0})"),
    MapOp("sign"),
    MapOp("relu"),
    MapOp("square", aten=(), cpp="{0} * {0}", triton="{0} * {0}"),
    MapOp("floor", of_whole="same", triton="tl.floor({0})"),
    MapOp("ceil", of_whole="same", triton="tl.ceil({0})"),
    MapOp("round", of_whole="same"),
    MapOp("trunc", of_whole="same"),
    _test("eq", "=="),
    _test("ne", "!="),
    _test("lt", "<"),
    _test("le", "<="),
    _test("gt", ">"),
    _test("ge", ">="),
    _logic("and", "&"),
    _logic("or", "|"),
    _logic("xor", "^"),
    MapOp("not", aten=(), logical=("logical_not",), cpp="!{0}", triton="{0} == 0"),
    MapOp("isnan", is_test=True, of_whole="false", triton="{0} != {0}"),
    MapOp("isinf", is_test=True, of_whole="false", triton='tl.abs({0}) == float("inf")'),
    _slow("reciprocal", domain=_ABOVE_0),
    _slow("sqrt", sizes=("sym_sqrt", "_sym_sqrt"), domain=_ABOVE_0, triton="tl.sqrt({0})"),
    _slow("rsqrt", domain=_ABOVE_0, triton="tl.rsqrt({0})"),
    _slow("exp", fades=True, triton="tl.exp({0})"),
    _slow("exp2", fades=True, triton="tl.exp2({0})"),
    _slow("expm1"),
    _slow("log", domain=_ABOVE_0, triton="tl.log({0})"),
    _slow("log2", domain=_ABOVE_0, triton="tl.log2({0})"),
    _slow("log10", domain=_ABOVE_0, cpp="log10({0})", triton="tl.log2({0}) * 0.3010299956639812"),
    _slow("log1p", domain=(-1.0, math.inf)),
    _slow("sigmoid", triton="tl.sigmoid({0})"),
    _slow("tanh"),
    _slow("erf", triton="tl.erf({0})"),
    _slow("erfc", cpp="erfc({0})"),
    _slow("sin", triton="tl.sin({0})"),
    _slow("cos", triton="tl.cos({0})"),
    _slow("tan", domain=(-1.5, 1.5), cpp="tan({0})", triton="tl.sin({0}) / tl.cos({0})"),
    _slow("atan", cpp="atan({0})"),
    MapOp("atan2", 2, costly=True, cpp="atan2({0}, {1})"),
    _slow(
        "asin",
        domain=(-1.0, 1.0),
        cpp="asin({0})",
        triton="r_atan2({0}, tl.sqrt((1.0 - {0}) * (1.0 + {0})))",
    ),
    _slow(
        "acos",
        domain=(-1.0, 1.0),
        cpp="acos({0})",
        triton="r_atan2(tl.sqrt((1.0 - {0}) * (1.0 + {0})), {0})",
    ),
    _slow("sinh", cpp="sinh({0})"),
    _slow("cosh", cpp="cosh({0})"),
    _slow("asinh", cpp="asinh({0})"),
    _slow(
        "acosh",
        domain=(1.0, math.inf),
        cpp="acosh({0})",
        triton="r_log1p({0} - 1.0 + tl.sqrt({0} - 1.0) * tl.sqrt({0} + 1.0))",
    ),
    _slow(
        "atanh",
        domain=(-1.0, 1.0),
        cpp="atanh({0})",
        triton="0.5 * (r_log1p({0}) - r_log1p(-{0}))",
    ),
)
FOLD_OPS: Final = (
    FoldOp(
        "sum",
        aten=("sum",),
        scans=("cumsum",),
        neutral=0,
        sign="+",
        wide=True,
        along="tl.sum({0}, {1}, keep_dims=True)",
        scan="tl.cumsum({0}, 1)",
    ),
    FoldOp(
        "prod",
        aten=("prod",),
        scans=("cumprod",),
        neutral=1,
        sign="*",
        wide=True,
        along="tl.reduce({0}, {1}, r_times, keep_dims=True)",
        scan="tl.cumprod({0}, 1)",
    ),
    FoldOp(
        "max",
        aten=("amax",),
        neutral=-math.inf,
        along="r_top({0}, {1})",
        along_whole="tl.max({0}, {1}, keep_dims=True)",
    ),
    FoldOp(
        "min",
        aten=("amin",),
        neutral=math.inf,
        along="r_bottom({0}, {1})",
        along_whole="tl.min({0}, {1}, keep_dims=True)",
    ),
    FoldOp(
        "any",
        aten=("any",),
        neutral=0,
        sign="|",
        of_truths=True,
        along="tl.max({0}, {1}, keep_dims=True)",
    ),
    # Kept in two numbers: both languages write it by code (`loops.py`, `triton/nests.py`).
    FoldOp("logsumexp", scans=("logcumsumexp",), neutral=-math.inf),
)
MAPS: Final = {one.name: one for one in MAP_OPS}
FOLDS: Final = {one.name: one for one in FOLD_OPS}
SCATTERS: Final = ("add", "set")  # Ways in which a scatter takes an element in
_CALLED: Final = re.compile(r"\br_(\w+)")


def filled(template: str, args: Sequence[str], used: set[str], **more: str) -> str:
    """Return a template with its arguments; `used` takes the prelude's functions that it calls."""
    used.update(_CALLED.findall(template))
    return template.format(*args, **more)
