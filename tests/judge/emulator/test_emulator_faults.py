"""What the emulator refuses, and the accesses and endless loops that it stops: one line each."""

from __future__ import annotations

import pytest
from small_assembly import run, text_of

from ratchet.errors import KernelError
from ratchet.judge.emulator.decode import decode


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("v_frobnicate_b32 v4, v1", "the instruction v_frobnicate_b32 is not emulated"),
        ("v_add_f32_e64 v4, v1, v2 wobble:3", "the modifier wobble:3 is not emulated"),
        ("v_add_u32_e32 v4, v1", "v_add_u32 has 2 operands and not 3"),
        ("v_add_u32_e32 v4, v1, ttmp3", "the operand 'ttmp3' is not known"),
        ("v_add_u32_e32 s4, v1, v2", "the operand s4 cannot be written"),
        ("v_mov_b32_e32 v4, v300", "the register v300 does not exist"),
        ("v_add_f64 v[4:5], v1, v[2:3]", "the operand v1 has not 2 registers"),
        ("s_branch .LBB9_9", "the branch's label '.LBB9_9' is not known"),
        ("v_mfma_f64_16x16x4_f64 v[4:11], v[0:1], v[2:3], 0", "is not emulated"),
        ("v_mfma_f32_32x32x16_bf16 v[4:19], v[0:3], v[4:7], 0", "is not emulated for gfx942"),
        ("v_pk_add_f16 v4, v1, 1.0", "the high half of a constant is not defined"),
        ("buffer_load_dword v4, v0, s[8:11], 0 idxen", "the modifier idxen is not emulated"),
    ],
)
def test_what_is_not_known_is_named(body: str, words: str) -> None:
    with pytest.raises(KernelError) as error:
        decode(text_of(body))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("amdhsa--gfx942", "amdhsa--gfx1100", "code for gfx1100 is not emulated"),
        ("wavefront_size: 64", "wavefront_size: 32", "waves of 32 lanes are not emulated"),
        (".name:           small", ".label: small", "describes 0 kernels"),
        (".size:           8", ".sizes:          8", "arguments is damaged"),
        ('.amdgcn_target "amdgcn-amd-amdhsa--gfx942"', ".target sm_90", "not for an AMD GPU"),
    ],
)
def test_a_text_that_is_no_kernel_for_these_targets_is_refused(
    old: str, new: str, words: str
) -> None:
    text = text_of("s_nop 0")
    assert old in text
    with pytest.raises(KernelError, match=words):
        decode(text.replace(old, new))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "global_load_dword v4, v0, s[6:7] offset:1024",
            "at small.py:8 (global_load_dword): an access of 4 bytes ends",
        ),
        ("v_mov_b32_e32 v6, 0\nv_mov_b32_e32 v7, 0\nglobal_load_dword v4, v[6:7], off",
         "lies in no tensor"),
        ("ds_read_b32 v4, v0 offset:1024", "is outside the 1024 bytes of LDS"),
        ("scratch_load_dword v4, off, off offset:8", "is outside a lane's 8 bytes of scratch"),
        (".LBB0_1:\ns_branch .LBB0_1", "ran for 100000 instructions without an end"),
        ("s_trap 2", "a device assertion failed"),
    ],
)  # fmt: skip
def test_a_fault_names_the_source_line(body: str, words: str) -> None:
    with pytest.raises(KernelError) as error:
        run(body, scratch=8)
    assert words in str(error.value)
    assert "in the kernel small at small.py:8" in str(error.value)


def test_a_register_that_was_never_written_is_poisoned() -> None:
    found, _, _ = run("v_mov_b32_e32 v4, v99")
    assert found == [0xFFF7BAD5] * 64
