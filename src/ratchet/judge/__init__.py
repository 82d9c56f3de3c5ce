"""The judge: decides, alone, whether a kernel or a lever is right and faster. It fails closed.

Import its parts by name (`ratchet.judge.arms`, `ratchet.judge.kernel_trial`, ...): the workers of
the sandbox start from this package too, and must not pay for, or see, more than they need.

The package is also the function `ratchet.judge(kernel, problem)`, which is `api.judge`: the import
system binds the name `ratchet.judge` to the package, so the package itself is what is called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.judge.verdict import Verdict


class _CallablePackage(ModuleType):
    """A package that can be called."""

    def __call__(self, kernel: Any, problem: Any, **options: Any) -> Verdict:
        """See `ratchet.judge.api.judge`."""
        from ratchet.judge.api import judge

        return judge(kernel, problem, **options)


sys.modules[__name__].__class__ = _CallablePackage
