"""What a sandbox opens for a GPU, and nothing more: files, groups, limits, system calls, CLI."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet.base.errors import RatchetError
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.sandbox import accelerator, bubblewrap, confine, isolation
from ratchet.judge.sandbox.accelerator import Accelerator, groups_of, may_use_gpu
from ratchet.judge.sandbox.confine import AF_UNIX, NUMBERS, Instruction
from ratchet.judge.sandbox.view import TORCH_WORKER

NVIDIA = Accelerator(
    torch_name="cuda:0", dialect="cuda", name="a GPU", folders=("/run/opengl-driver/lib",)
)
AMD = Accelerator(torch_name="cuda:0", dialect="hip", name="a GPU")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Files that stand for the devices' own."""
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm", "kfd", "dri/renderD128", "dri/card0"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    moved = {
        dialect: tuple(path.replace("/dev", str(tmp_path)) for path in paths)
        for dialect, paths in accelerator.NODES.items()
    }
    monkeypatch.setattr(accelerator, "NODES", moved)
    return tmp_path


def words_of(gpu: Accelerator | None) -> list[str]:
    if bubblewrap.program() is None:
        pytest.skip("bubblewrap does not work on this machine")
    made = isolation.make_sandbox(
        TORCH_WORKER,
        threads=2,
        memory_bytes=1 << 30,
        limit_s=10,
        accelerator=gpu,
    )
    return list(made.program)


def limits_of(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(words[-1])
    return found


def bound(words: list[str], option: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == option]


def test_nvidias_files_are_bound_after_the_new_dev_and_before_it_is_closed(nodes: Path) -> None:
    words = words_of(NVIDIA)
    wanted = [str(nodes / name) for name in ("nvidiactl", "nvidia0", "nvidia-uvm")]
    assert bound(words, "--dev-bind-try") == wanted
    made, first = words.index("--dev"), words.index("--dev-bind-try")
    closed = [at for at, word in enumerate(words) if word == "--remount-ro"]
    assert made < first < words.index(wanted[-1]) < closed[0]
    assert words[closed[0] + 1] == "/dev"


def test_amds_files_and_the_topology_that_its_driver_reads(nodes: Path) -> None:
    words = words_of(AMD)
    assert bound(words, "--dev-bind-try") == [str(nodes / "kfd"), str(nodes / "dri")]
    assert "/sys/devices" in bound(words, "--ro-bind-try")
    seen = {one for one in bound(words, "--ro-bind-try") if one.startswith("/sys")}
    assert seen <= set(accelerator.SYSTEM["hip"])  # never all of /sys
    assert "/sys" not in bound(words, "--ro-bind-try")


def test_folders_of_the_driver_are_seen(nodes: Path) -> None:
    assert "/run/opengl-driver/lib" in bound(words_of(NVIDIA), "--ro-bind-try")


def test_without_a_gpu_nothing_is_opened() -> None:
    words = words_of(None)
    assert "--dev-bind-try" not in words
    assert not [one for one in bound(words, "--ro-bind-try") if one.startswith("/sys")]
    limits = limits_of(words)
    assert limits["address_space_bytes"] == 1 << 30
    assert (limits["groups"], limits["local_sockets"]) == ([], False)


def test_a_drivers_address_space_has_no_limit_and_its_socket_is_allowed(nodes: Path) -> None:
    limits = limits_of(words_of(NVIDIA))
    assert limits["address_space_bytes"] is None
    assert limits["local_sockets"] is True
    assert limits["filtered"] is confine.known()


def test_groups_are_those_of_files_that_not_everybody_may_open(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give files to groups")
    os.chown(nodes / "kfd", 0, 4711)
    (nodes / "kfd").chmod(0o660)
    os.chown(nodes / "dri/renderD128", 0, 4712)
    (nodes / "dri/renderD128").chmod(0o660)
    (nodes / "nvidia0").chmod(0o666)
    os.chown(nodes / "nvidia-uvm", 0, 0)
    (nodes / "nvidia-uvm").chmod(0o660)
    assert groups_of(AMD.nodes) == [4711, 4712]
    assert groups_of([str(nodes / "nvidia0")]) == []
    assert groups_of([str(nodes / "nvidia-uvm")]) == []  # never root's own group
    words = words_of(AMD)
    assert words[words.index("--groups") + 1] == "4711,4712"
    assert "--clear-groups" not in words


def test_torch_finds_a_users_name_and_folders_for_what_it_compiles() -> None:
    made = isolation.make_sandbox(TORCH_WORKER, threads=1, memory_bytes=1, limit_s=1)
    made.clean()
    asked = "import getpass, os; os.getuid = lambda: 4711; print(getpass.getuser())"
    done = subprocess.run(
        [sys.executable, "-c", asked], env=dict(made.environment), capture_output=True, text=True
    )
    assert done.stdout == "candidate\n", done.stderr
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert Path(made.environment[name]).is_relative_to(made.environment["TMPDIR"])


def test_settings_that_choose_a_gpu_reach_the_sandbox(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    made = isolation.make_sandbox(
        TORCH_WORKER, threads=1, memory_bytes=1, limit_s=1, accelerator=AMD
    )
    made.clean()
    assert made.environment["HIP_VISIBLE_DEVICES"] == "1"
    assert "AWS_SECRET_ACCESS_KEY" not in made.environment


# The filter of system calls, as the kernel would run it (linux/filter.h).


def answer(program: list[Instruction], number: int, *arguments: int) -> int:
    data = {0: number, 4: confine.ARCHITECTURE}
    data |= {16 + 8 * place: value & 0xFFFF_FFFF for place, value in enumerate(arguments)}
    place, held = 0, 0
    while True:
        code, if_true, if_false, operand = program[place]
        place += 1
        if code == confine.LOAD:
            held = data.get(operand, 0)
        elif code == confine.RETURN:
            return operand
        else:
            met = {
                confine.IF_EQUAL: held == operand,
                confine.IF_AT_LEAST: held >= operand,
                confine.IF_ANY_BIT: bool(held & operand),
            }[code]
            place += if_true if met else if_false


@pytest.mark.parametrize("local", [False, True])
def test_only_local_sockets_and_only_where_they_are_asked_for(local: bool) -> None:
    program = confine.program(4711, among_others=False, local_sockets=local)
    allowed = confine.ALLOW if local else confine.DENY
    assert answer(program, NUMBERS["socket"], AF_UNIX) == allowed
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_VSOCK):
        assert answer(program, NUMBERS["socket"], family) == confine.DENY
    for name in ("ptrace", "unshare", "bpf", "mount", "process_vm_readv"):
        assert answer(program, NUMBERS[name]) == confine.DENY


def test_a_local_socket_of_datagrams_reaches_others_and_is_none_of_the_drivers() -> None:
    program = confine.program(4711, among_others=True, local_sockets=True)
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC):
        assert answer(program, NUMBERS["socket"], AF_UNIX, kind) == confine.ALLOW
    for kind in (socket.SOCK_DGRAM, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, socket.SOCK_RAW):
        assert answer(program, NUMBERS["socket"], AF_UNIX, kind) == confine.DENY
    assert answer(program, NUMBERS["connect"], 3) == confine.DENY
    enclosed = confine.program(4711, among_others=False, local_sockets=True)
    assert answer(enclosed, NUMBERS["connect"], 3) == confine.ALLOW


@pytest.mark.parametrize(("abi", "said"), [(0, True), (5, True), (6, False), (7, False)])
def test_without_namespaces_a_gpu_is_used_and_open_sockets_are_said(
    abi: int, said: bool, nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation.bubblewrap, "program", lambda: None)
    monkeypatch.setattr(isolation.keeper, "abi", lambda: abi)
    assert ("local sockets" in isolation.isolation_name(NVIDIA)) is said
    assert "local sockets" not in isolation.isolation_name(None)


IOCTL, MMAP, BIND, LISTEN = 16, 9, 49, 50


@pytest.mark.parametrize("number", [IOCTL, MMAP, BIND, LISTEN])
def test_what_a_driver_starts_with_is_allowed(number: int) -> None:
    program = confine.program(4711, among_others=False, local_sockets=True)
    assert answer(program, number) == confine.ALLOW


def test_the_filter_in_force_lets_a_local_socket_be_bound() -> None:
    if not confine.known():
        pytest.skip("system calls are filtered on x86-64 alone")
    body = """
import socket
from ratchet.base.process import families
from ratchet.judge.sandbox import confine
families.prctl(families.PR_SET_NO_NEW_PRIVS, 1)
confine.deny_needless(among_others=False, local_sockets=True)
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.bind("\\0cuda-uvmfd-test")
made.listen(1)
try:
    socket.socket(socket.AF_INET)
except PermissionError:
    print("denied")
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60)
    assert done.stdout == "denied\n", done.stderr


# Which kernels look for a GPU.


@pytest.mark.parametrize(
    ("language", "asked", "there", "wanted"),
    [
        ("triton", "auto", True, True),
        ("triton", "auto", False, False),
        ("triton", "cpu", True, False),
        ("torch", "auto", True, False),
        ("torch", "cuda", True, True),
        ("torch", "cuda:1", False, True),  # then the verdict says that there is none
        ("cpp", "auto", True, False),
        ("cpp", "cuda", True, False),
    ],
)
def test_a_gpu_is_for_triton_or_for_who_asks(
    language: Any, asked: str, there: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "all_nodes", lambda: ["/dev/kfd"] if there else [])
    kernel = Kernel(name="x", language=language, source="", entry="x")
    assert may_use_gpu(kernel, asked) is wanted


def test_a_device_is_one_that_there_can_be() -> None:
    from ratchet.judge.terms import parse_device

    assert [parse_device(one) for one in ("auto", "cpu", "cuda", "cuda:3")] == [
        *("auto", "cpu", "cuda", "cuda:3")
    ]
    for text in ("gpu", "cpu:0", "cuda:", "cuda:x", ""):
        with pytest.raises(RatchetError, match="use auto, cpu, cuda or cuda:N"):
            parse_device(text)


def test_files_that_everybody_may_open_are_known_by_their_mode(tmp_path: Path) -> None:
    path = tmp_path / "node"
    path.touch()
    path.chmod(stat.S_IRUSR | stat.S_IWUSR | accelerator.ANYBODY)
    assert groups_of([str(path)]) == []
