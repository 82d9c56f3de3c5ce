"""Matrix kernels' names, as their libraries write them."""

from __future__ import annotations

import pytest

from ratchet.trace.answers.kernels import Tiled, tile_of

TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1_SN_LDSB1_ISA942_WG"
NAMES = {
    TENSILE: Tiled("256x32x64", "gfx942"),
    "Cijk_Ailk_Bljk_SB_MT64x96x16_MI32x32x1x2_SE_1LDSB0_GSU4_GSUASB_ISA90a_IU1": Tiled(
        "64x96x16", "gfx90a", "4"
    ),
    "Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI16_GSUAMB_ISA942_SK3_SKXCCM8": Tiled(
        "128x128x32", "gfx942", "stream-K"
    ),
    "volta_sgemm_128x32_nn": Tiled("128x32", "sm70"),
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn": Tiled("128x64", "sm80"),
    "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32_stage3_warpsize2x2x1_kernel": Tiled(
        "128x128x32", "sm80"
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>(Params)": Tiled(
        "128x256x16", "sm80"
    ),
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN": Tiled("128x256x64"),
    "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT": Tiled("64x8x64", "", "split-K"),
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu": Tiled("16x128x256", "", "1"),
    "void cublasLt::splitKreduce_kernel<32, 16, int>(cublasLt::cublasSplitKParams<float>)": Tiled(),
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>": Tiled(),
    "triton_poi_fused_add_3": Tiled(),
    "": Tiled(),
}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_name_says(name: str) -> None:
    assert tile_of(name) == NAMES[name]
