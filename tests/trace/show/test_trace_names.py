"""Names of kernels, short and still told apart."""

from __future__ import annotations

import pytest
from made_up_trace import mt

from ratchet.trace.read.columns import DEVICE_KINDS
from ratchet.trace.show.names import short_kernel, short_kernels


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::elementwise_kernel<128, at::native::Add<float> >(int, char*)",
         "elementwise_kernel<128, Add<float>>"),
        ("(anonymous namespace)::CatArray<c10::BFloat16>", "CatArray<BFloat16>"),
        ("_ZN2ck16tensor_operation6device17kernel_batch_normIfEEvT_", "kernel_batch_norm<float>"),
        ("_ZN2ck12_GLOBAL__N_16kernelINS_4TileILi128ELi64EEELNS_4ModeE7ELb1EDF16_Li",
         "kernel<Tile<128, 64>, 7, 1, half, int>"),
        ("_ZN2ck", "ck"), ("_Z", "_Z"), ("_ZN" + "I" * 9000, "_ZN" + "I" * 25 + "…" + "I" * 27),
        ("std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::Half>::exists, void>::type "
         "vllm::fused_add_rms_norm_kernel<c10::Half, 8>(c10::Half*, c10::Half*, int)",
         "fused_add_rms_norm_kernel<Half, 8>"),
        ("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
         "at::native::neg_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::"
         "{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&, int)::{lambda(int)#1}>(int)",
         "elementwise_kernel<128, 4, neg_kernel_cuda(BFloat16)>"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_64x64>(cutlass_80::Params)",
         "cutlass_80_tensorop_bf16_64x64"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_GLS0_ISA942_IU1",
         "Cijk_Alik_Bljk_BBS MT256x192x64 ISA942"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)",
         "ncclKernel_AllReduce_RING_LL_Sum_float"),
        ("f<(a", "f<(a"), ("a>>b<", "a>>b<"), ("(<)>::{lambda(", "(<)>::{lambda("),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("aten::mm", "aten::mm"),
        ("triton_" + "x" * 80 + "_12", "triton_" + "x" * 21 + "…" + "x" * 24 + "_12"),
    ],
)  # fmt: skip
def test_kernel_names(name: str, short: str) -> None:
    assert short_kernel(name) == short


@pytest.mark.parametrize("name", mt.REAL_NAMES)
def test_no_two_kernels_of_a_recorded_trace_read_the_same(name: str) -> None:
    trace = mt.recorded(name)
    names = {trace.string(row) for row in trace.rows(*DEVICE_KINDS)}
    for width in (44, 90):
        short = short_kernels(sorted(names), width)
        assert len(set(short.values())) == len(names)
        assert max(map(len, short.values())) <= width


def test_tensile_kernels_of_one_tile_show_where_they_differ() -> None:
    name = "Cijk_Alik_Bljk_BBS_BH_MT256x192x64_MI16x16x1_SN_LDSB1_{}_ISA942_IU1_K1"
    short = short_kernels([name.format("LBSPPA1024"), name.format("LBSPPA512")], 44)
    assert list(short.values()) == [
        "Alik_Bljk_BBS MT256x192x64…LBSPPA1024_ISA94…",
        "Alik_Bljk_BBS MT256x192x64…LBSPPA512_ISA942…",
    ]  # fmt: skip
