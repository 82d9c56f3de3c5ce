"""Programs as people write them, on a GPU that is not here: a script, a pytest file, bad input."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from forked_ranks import in_fork

from ratchet.amd.emulator.program import ProgramFault, ProgramResult
from ratchet.cli import main

EXAMPLE = Path(__file__).parents[3] / "examples" / "test_softmax_kernel.py"
SOURCES = Path(__file__).parents[3] / "src"
needs_emulator = [
    pytest.mark.compiler,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
]
BAD = """
import pytest, torch, triton
import triton.language as tl

@triton.jit
def shifted(x, TEXT: tl.constexpr, KINDS: tl.constexpr):
    at = tl.arange(0, 64)
    eight = tl.inline_asm_elementwise(TEXT, KINDS, [tl.load(x + at)], tl.int32, True, 1)
    tl.store(x + at, eight)

@triton.jit
def waiting(flag, n):
    while tl.atomic_add(flag, 0) < n:
        pass

def fails(words, call):
    with pytest.raises(Exception, match=words) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1

def ones():
    return torch.ones(64, dtype=torch.int32, device="cuda")

def test_inline_ptx():
    fails("PTX does not compile", lambda: shifted[(1,)](ones(), "shl.b32 $0, $1, 3;", "=r,r"))
    fails("PTX does not compile", lambda: shifted[(1,)](ones(), "cvt.u32.u16 $0, $1;", "=r,h"))

def test_inline_assembly_of_amd():
    x = ones()
    shifted[(1,)](x, "v_lshlrev_b32 $0, 3, $1", "=v,v")
    assert x.tolist() == [8] * 64

def test_a_program_that_waits_for_nobody():
    fails("without an end", lambda: waiting[(2,)](ones(), 5))

def test_too_many_programs():
    fails("too large to be emulated", lambda: waiting[(1 << 26,)](ones(), 0))

def test_without_a_launch():
    pass
"""
PACKAGE = """
import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def roots(x):
    return libdevice.rsqrt(x)
"""
SCRIPT = """
import io, math, threading
import pytest, torch, triton
import torch.utils.checkpoint
import triton.language as tl
from own_kernels.roots import roots
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def inverse(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, roots(tl.load(x + at, at < n)), at < n)

@triton.jit
def unmasked(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))

@triton.jit
def by_address(addresses, y, BLOCK: tl.constexpr):
    x = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.atomic_add(y + at, tl.load(x + at))

@triton.jit
def doubled(x, y, BLOCK: tl.constexpr):
    y.store([0], 2 * x.load([tl.program_id(0) * BLOCK]))

@triton.jit
def to_fp8(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at).to(y.dtype.element_ty))

class Roots(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        inverse[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        ctx.save_for_backward(y)
        return y
    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        assert dy.is_cuda
        cubes = torch.empty(y.shape, device="cuda")
        inverse[(triton.cdiv(y.numel(), 64),)](y ** -6, cubes, y.numel(), BLOCK=64)
        return -0.5 * dy * cubes

# devices
host = torch.ones(3)
device = host.to("cuda")
device += 1
assert host.device.type == "cpu" and device.device == torch.device("cuda", 0)
assert host.tolist() == [1, 1, 1] and device.cpu().device.type == "cpu" and not host.is_cuda
assert torch.nn.Linear(2, 2).cuda().weight.is_cuda and torch.zeros(2, device="cpu").is_cpu
assert torch.nn.Linear(2, 2).to("cuda").to(torch.float32).weight.is_cuda
assert torch.nn.Linear(2, 2).to(device="cuda", dtype=torch.float16).weight.is_cuda
assert torch.randn(2, device="cuda", generator=torch.Generator(device="cuda")).is_cuda
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
assert torch.cuda.device(0).idx == 0 and torch.cuda.get_device_capability((1, 2)) == (9, 4)

# files keep the device
files = [io.BytesIO(), io.BytesIO()]
for one, file in zip((host, device), files):
    torch.save(one, file)
def loaded(file, **named):
    file.seek(0)
    return torch.load(file, **named).device.type
assert [loaded(one) for one in files] == ["cpu", "cuda"]
assert [loaded(one, map_location="cpu") for one in files] == ["cpu", "cpu"]
assert [loaded(one, map_location="cuda") for one in files] == ["cuda", "cuda"]

# streams and memory
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    device.record_stream(stream)
stream.wait_event(torch.cuda.current_stream(device="cuda:0").record_event())
assert torch.cuda.memory.memory_stats(device=0)["num_ooms"] == 0 and torch.cuda.memory_summary()
assert torch.cuda.mem_get_info(device=0)[0] > 1 << 37 and torch.cuda.graph_pool_handle()

# random numbers: a state is a seed and an offset, which a program may count on
torch.cuda.manual_seed(5)
state = torch.cuda.get_rng_state()
assert state.device.type == "cpu" and state.view(torch.int64).tolist() == [5, 0]
first, later = torch.rand(3, device="cuda"), torch.cuda.get_rng_state()
second = torch.rand(3, device="cuda")
for kept, drawn in ((later, second), (state, first), (later, second)):
    torch.cuda.set_rng_state(kept)
    assert torch.equal(torch.rand(3, device="cuda"), drawn)
generator = torch.cuda.default_generators[0]
state.view(torch.int64)[1] += 8
generator.set_state(state)
assert torch.equal(generator.get_state(), state) and generator.initial_seed() == 5
third = torch.rand(3, device="cuda")
generator.set_state(state)
assert torch.equal(torch.rand(3, device="cuda"), third) and not torch.equal(third, first)
own = torch.Generator("cuda").manual_seed(3)
assert own.device.type == "cuda" and own.get_state().numel() == 16
assert isinstance(torch.default_generator, torch.Generator) and torch.get_rng_state().numel() > 16
ones = torch.ones(64, device="cuda", requires_grad=True)
dropped = torch.utils.checkpoint.checkpoint(torch.dropout, ones, 0.5, True, use_reentrant=False)
dropped.sum().backward()
assert torch.equal(ones.grad, dropped.detach()) and dropped.max() == 2

# memory that nobody wrote
by_inductor = torch._C._dynamo.guards._empty_strided_cuda((2, 2), (2, 1), torch.float32)
for one in (torch.empty(4, device="cuda"), torch.empty_like(ones), torch.empty(4), by_inductor):
    assert one.isnan().all()
counts = torch.histc(torch.tensor([0, 1, 1], device="cuda"), bins=2, min=0, max=1)
assert counts.tolist() == [1, 2] and counts.dtype == torch.int64 and counts.is_cuda
assert torch.accelerator.current_accelerator().type == "cuda"
assert torch.accelerator.device_count() == 1 and torch.accelerator.current_device_index() == 0
halves = torch.full((64, 64), 255.0, dtype=torch.float16, device="cuda")
assert torch.mm(halves, halves, out_dtype=torch.float32)[0, 0] == 64 * 255 * 255
graph: torch.cuda.CUDAGraph | None = None
with torch.cuda.nvtx.range("noted"):
    torch.cuda.nvtx.mark("here")
assert "MI300X" in torch.cuda.get_device_name() and torch.version.hip
assert torch.cuda.get_device_properties(0).multi_processor_count == 304
with torch.autocast("cuda", dtype=torch.bfloat16):
    ones = torch.ones(2, 2, device="cuda")
    assert (ones @ ones).dtype == torch.bfloat16

# launches: gradients, another thread, addresses in a tensor, a descriptor of the host, fp8
x = torch.rand(100, device="cuda").add(0.5).requires_grad_()
Roots.apply(x).sum().backward()
torch.testing.assert_close(x.grad, -0.5 * x.detach() ** -1.5)
found = []
thread = threading.Thread(target=lambda: found.append(Roots.apply(torch.ones(4, device="cuda"))))
thread.start()
thread.join()
assert found[0].tolist() == [1, 1, 1, 1]
parts = [torch.full((16,), float(one), device="cuda") for one in range(3)]
addresses = torch.tensor([one.data_ptr() for one in parts], device="cuda")
total = torch.zeros(16, device="cuda")
by_address[(3,)](addresses, total, BLOCK=16)
assert total.tolist() == [3.0] * 16
twice = torch.zeros(32, device="cuda")
doubled[(1,)](*(TensorDescriptor.from_tensor(one, [16]) for one in (parts[2], twice)), BLOCK=16)
assert twice.tolist() == [4.0] * 16 + [0.0] * 16
small = torch.empty(16, dtype=torch.float8_e4m3fnuz, device="cuda")
values = torch.linspace(-300, 300, 16, device="cuda")
to_fp8[(1,)](values, small, BLOCK=16)
torch.testing.assert_close(small.float(), values.clamp(-240, 240).to(small.dtype).float())

# an operator that is registered for the GPU: what is on the host goes to torch's own kernel
def own_negative(one):
    assert one.is_cuda
    y = torch.empty_like(one)
    inverse[(1,)](one ** -2, y, one.numel(), BLOCK=64)
    return 0 - y
library = torch.library.Library("aten", "IMPL")
library.impl("neg", own_negative, "CUDA")
def own_zeros(size, *, device=None, **named):
    assert device.type == "cuda"
    return torch.full(size, 0.0, device=device)
library.impl("zeros", own_zeros, "CUDA")
assert torch.zeros([2], device="cuda").is_cuda and torch.zeros([2]).is_cpu
library.impl("mul.Tensor", lambda a, b: torch.full_like(a, 7.0), "CUDA")
assert torch.mul(2.0, 3.0).tolist() == 6 and (torch.ones(1, device="cuda") * 2).tolist() == [7]
assert (-torch.ones(3)).tolist() == (-torch.ones(3, device="cuda")).tolist() == [-1, -1, -1]
library._destroy()

# what launchers ask of the driver and of a compiled kernel
asked = triton.runtime.driver.active.utils.get_device_properties(0)
assert asked["max_threads_per_sm"] == 2048 and asked["multiprocessor_count"] == 304
compiled = inverse.warmup(parts[0], total, 16, BLOCK=16, grid=(1,))
compiled._init_handles()
assert compiled.n_regs > 0

# what is not there, in one line each
y = torch.empty(100, device="cuda")
for call, words in (
    (lambda: unmasked[(2,)](x.detach(), y, 100, BLOCK=64), "past the end of a tensor"),
    (lambda: inverse[(1,)](host, y, 3, BLOCK=64), "cpu tensor"),
    (lambda: torch.zeros(1, device="cuda:1"), "one GPU is emulated"),
    (lambda: torch.cuda.set_device(1), "one GPU is emulated"),
    (lambda: torch.cuda.get_device_name(1), "one GPU is emulated"),
    (lambda: torch.cuda.Stream(device="cuda:1"), "one GPU is emulated"),
    (lambda: torch.zeros(1 << 44, device="cuda"), "does not fit"),
    (lambda: compiled[(1, 1, 1)](parts[0]), "1 arguments and not 4"),
    (lambda: torch.empty(1 << 34, dtype=torch.float64, device="cuda"), "does not fit|allocate"),
    (torch.cuda.CUDAGraph, "graphs are not emulated"),
):
    with pytest.raises(Exception, match=words) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1
start = torch.cuda.Event(enable_timing=True)
start.record()
assert math.isnan(start.elapsed_time(start)) and math.isnan(triton.testing.do_bench(lambda: None))
print("all is well")
"""
TUNED = """
import torch, triton
import triton.language as tl

def configs(*sizes):
    return [triton.Config({"BLOCK": size}, num_warps=1) for size in sizes]

@triton.autotune(configs(16, 32, 512, 64), key=["n"], use_cuda_graph=True)
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def halved(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + at, tl.load(x + at) / 2)
    else:
        tl.store(y + at, tl.load(x + at, at < n) / 2, at < n)

@triton.autotune(configs(64, 128), key=["n"], restore_value=["y"])
@triton.jit
def added(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + at, tl.load(x + at, at < n), at < n)

x = torch.ones(1024, device="cuda")
y, z = torch.empty_like(x), torch.zeros_like(x)
halved[lambda meta: (triton.cdiv(1024, meta["BLOCK"]),)](x, y, 1024)
added[lambda meta: (triton.cdiv(1024, meta["BLOCK"]),)](x, z, 1024)
assert y.tolist() == [0.5] * 1024 and z.tolist() == [1.0] * 1024
print(halved.best_config.kwargs["BLOCK"])
"""
SUITE = """
import torch, triton
import triton.language as tl

@triton.jit
def negated(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, -tl.load(x + at))

@triton.jit
def last_first(flag, order):
    turn = tl.num_programs(0) - 1 - tl.program_id(0)
    while tl.atomic_add(flag, 0) != turn:
        pass
    tl.store(order + turn, tl.program_id(0))
    tl.atomic_add(flag, 1)

def test_each_program_waits_for_the_next():
    order = torch.zeros(4, dtype=torch.int32, device="cuda")
    last_first[(4,)](torch.zeros_like(order), order)
    assert order.tolist() == [3, 2, 1, 0]

def test_that_is_wrong():
    x = torch.ones(30, device="cuda")
    negated[(1,)](x, torch.empty_like(x), BLOCK=32)

def test_that_is_right():
    x = torch.ones(32, device="cuda")
    y = torch.empty_like(x)
    negated[(1,)](x, y, BLOCK=32)
    assert y.tolist() == [-1.0] * 32
"""


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder` with an empty cache, so that Triton compiles and its warnings show."""
    own = {"RATCHET_LEDGER": folder / "db", "TRITON_CACHE_DIR": folder / "triton"}
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **{k: str(v) for k, v in own.items()}}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=500,
    )


class TestScript:
    """One run, looked at from several sides."""

    pytestmark = needs_emulator

    @pytest.fixture(scope="class")
    @classmethod
    def ran(cls, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
        folder = tmp_path_factory.mktemp("script")
        (folder / "own_kernels").mkdir()
        (folder / "own_kernels" / "__init__.py").touch()
        (folder / "own_kernels" / "roots.py").write_text(PACKAGE)
        (folder / "script.py").write_text(SCRIPT)
        emulate = ("-m", "ratchet.cli", "emulate", "--target", "gfx942", "--json")
        command = ("--junit", "junit.xml", "--", sys.executable, "script.py")
        done = run(*emulate, *command, folder=folder)
        assert "all is well" in done.stderr, done.stderr[-3000:]
        return json.loads(done.stdout), done, folder

    def test_its_own_asserts_hold_and_hidden_faults_fail_it(self, ran: Any) -> None:
        document, done, _ = ran
        assert document["exit_code"] == 0 and done.returncode == 1
        assert document["launches"] == 7 and document["device"] == "AMD Instinct MI300X"

    def test_faults_name_the_source_line(self, ran: Any) -> None:
        faults = {one["kernel"]: one for one in ran[0]["faults"]}
        assert faults.keys() == {"unmasked", "inverse"}
        assert faults["unmasked"]["kind"] == "fault"
        assert "script.py:17" in faults["unmasked"]["reason"]
        assert "`tl.store(y + at, tl.load(x + at))`" in faults["unmasked"]["reason"]

    def test_kernels_have_bounds_and_hot_lines(self, ran: Any) -> None:
        kernels = {one["name"]: one for one in ran[0]["kernels"]}
        assert kernels["inverse"]["launches"] == 4 and kernels["inverse"]["bound_s"] > 0
        time = kernels["inverse"]["predicted"]
        assert 0 < time["low_s"] < time["time_s"] < time["high_s"]
        texts = [line["text"] for line in kernels["inverse"]["hottest"]]
        assert any("tl.store(y + at, roots" in text for text in texts)

    def test_what_is_not_timed_is_said(self, ran: Any) -> None:
        assert list(ran[0]["asked"].values()) == [1, 1]

    def test_junit_has_a_case_for_each_kernel(self, ran: Any) -> None:
        (suite,) = ElementTree.parse(ran[2] / "junit.xml").getroot()
        failed = {case.get("name") for case in suite if case.find("failure") is not None}
        assert failed == {"unmasked", "inverse"} and suite.get("tests") == "5"


def test_junit_holds_what_xml_forbids() -> None:
    """A kernel's source line may have a control character, and the reason quotes it."""
    fault = ProgramFault(kernel="k", kind="fault", reason="race at \x1b[1mk.py\0", count=2)
    result = ProgramResult(
        target="gfx942", device="", command=(), exit_code=1, kernels=(), faults=(fault,)
    )
    ((case,),) = ElementTree.fromstring(result.as_junit())
    assert case[0].get("message") == "race at \\x1b[1mk.py\\x00" and case[0].text == "2 times"


class TestAutotuner:
    """An autotuned kernel keeps its first configuration, or the one with the best bound."""

    pytestmark = needs_emulator

    @pytest.mark.parametrize(("how", "block"), [("first", "16"), ("bound", "64")])
    def test_a_configuration_is_kept(self, how: str, block: str, tmp_path: Path) -> None:
        """Blocks as large as a wave have the best bound: in smaller ones lanes have no work."""
        (tmp_path / "tuned.py").write_text(TUNED)
        emulate = ("-m", "ratchet.cli", "emulate", "--autotune", how, "--json")
        done = run(*emulate, "--", sys.executable, "-W", "ignore", "tuned.py", folder=tmp_path)
        assert done.returncode == 0 and done.stderr.split()[-1] == block, done.stderr[-3000:]
        assert json.loads(done.stdout)["launches"] == 2


class TestSuite:
    """A suite goes on after a fault."""

    pytestmark = needs_emulator

    def test_what_does_not_run_is_a_line_and_the_suite_goes_on(self, tmp_path: Path) -> None:
        (tmp_path / "test_bad.py").write_text(BAD)
        emulate = ("-m", "ratchet.cli", "emulate", "--instructions", "100000", "--json", "--")
        suite = (sys.executable, "-W", "ignore", "-m", "pytest", "-q", "test_bad.py")
        done = run(*emulate, *suite, folder=tmp_path)
        assert "5 passed" in done.stderr, done.stderr[-3000:]
        document = json.loads(done.stdout)
        assert document["launches"] == 1 and len(document["faults"]) == 4

    def test_a_fault_fails_its_test_only(self, tmp_path: Path) -> None:
        (tmp_path / "test_negated.py").write_text(SUITE)
        plugin = ("-p", "ratchet.amd.emulator.pytest_plugin", "--ratchet-target", "gfx950")
        suite = ("-q", *plugin, "test_negated.py", str(EXAMPLE), "-k", "not 781 and not dtype1")

        def test() -> int:
            os.chdir(tmp_path)
            return pytest.main(["-W", "ignore", *suite])

        cache = str(tmp_path / "triton")
        done = in_fork(test, RATCHET_LEDGER=str(tmp_path / "db"), TRITON_CACHE_DIR=cache)
        assert done.returncode == 1 and "1 failed, 4 passed" in done.stdout, str(done)[-3000:]
        assert "test_negated.py:8" in done.stdout and "emulated AMD Instinct MI355X" in done.stdout
        assert "4 launches of 4 kernels" in done.stdout and "1 failed" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "gfx942"], "no COMMAND"),
        (["--target", "gfx906", "--", "true"], "target 'gfx906' is not emulated"),
        (["--autotune", "best", "--", "true"], "use first or bound"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]


@pytest.mark.compiler
def test_a_program_without_a_launch_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "--", "true"]) == 0
    assert "no kernel was launched" in capfd.readouterr().out
    assert main(["emulate", "--", "no-such-program"]) == 2
    assert "cannot start" in capfd.readouterr().err
