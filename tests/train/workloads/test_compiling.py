"""What a script is told while torch.compile is at work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ratchet.train.workloads.compiling import is_compiling, told_while_long

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
WAIT_S = 20.0


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def test_a_thread_compiles_while_it_makes_code_and_not_while_it_runs() -> None:
    mine, seen = threading.get_ident(), []

    def look() -> None:
        one = threading.Thread(target=lambda: seen.append(is_compiling(mine)))
        one.start()
        one.join()

    def back_end(graph: torch.fx.GraphModule, _: Any) -> Any:
        def run(*arguments: Any) -> Any:
            look()
            return graph.forward(*arguments)

        look()
        return run

    look()
    torch.compile(lambda x: x + 1, backend=back_end)(torch.ones(2))
    assert seen == [False, True, False]


def test_a_long_compilation_is_told_again_after_twice_as_long() -> None:
    told: list[str] = []
    twice = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            twice.set()

    def back_end(graph: torch.fx.GraphModule, _: Any) -> Any:
        twice.wait(WAIT_S)
        return graph.forward

    with told_while_long(tell, first_s=0.01):
        torch.compile(lambda x: x + 1, backend=back_end)(torch.ones(2))
    assert twice.is_set() and len(set(told)) == len(told)
    assert told[0].startswith("torch.compile has been at work for 0.0")


def test_nobody_watches_afterwards() -> None:
    with told_while_long(pytest.fail, first_s=WAIT_S):
        pass
    for one in threading.enumerate():
        if one.name == "ratchet-compiling":
            one.join(WAIT_S)
            assert not one.is_alive()
