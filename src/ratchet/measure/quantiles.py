"""Student's quantiles, by scipy: importing it takes 0.4 s, so that is left to who asks for one."""

from __future__ import annotations


def t_quantile(freedom: float, probability: float) -> float:
    """Return the value below which Student's t with this freedom lies with this probability."""
    from scipy import special

    return float(special.stdtrit(freedom, probability))
