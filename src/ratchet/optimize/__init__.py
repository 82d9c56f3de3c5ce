"""One optimization turn: baseline, levers, kernels, proof, and the resulting recipe.

The package is also callable: `ratchet.optimize(workload)` is `ratchet.api.optimize`.
"""

from ratchet.callable_module import make_callable

# Named by string: `ratchet.api` is above this room and above the one that writes the report.
make_callable(__name__, "ratchet.api:optimize")
