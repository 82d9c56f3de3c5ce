"""The judge: decides, alone, whether a kernel or a lever is right and faster. It fails closed.

Import its parts by name (`ratchet.judge.arms`, `ratchet.judge.kernel_trial`, ...): the workers of
the sandbox start from this package too, and must not pay for, or see, more than they need.

The package is also the function `ratchet.judge(kernel, problem)`, which is `api.judge`.
"""

from ratchet.callable_module import make_callable

make_callable(__name__, f"{__name__}.api:judge")
