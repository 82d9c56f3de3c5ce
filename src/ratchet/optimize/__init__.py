"""The turn of the ratchet: baseline, levers, kernels, proof, and the recipe that comes of it.

The package is also the function `ratchet.optimize(workload)`, which is `ratchet.api.optimize`.
"""

from ratchet.callable_module import make_callable

# By name alone: `ratchet.api` stands above this room and the one that writes the report.
make_callable(__name__, "ratchet.api:optimize")
