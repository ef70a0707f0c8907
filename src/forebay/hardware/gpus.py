"""The GPUs known by name, from the vendors' data sheets (NVIDIA V100, A100, H100, H200, H20, DGX B200, GB200 NVL72,
L40S, L4, A10, A30, A40, T4, RTX A6000; NVIDIA GA102, Ada, RTX Blackwell and RTX Blackwell PRO architecture papers; AMD
Instinct MI300X, MI325X). Huawei's Ascend 910B is not among them: published figures contradict each other.

Memory is what `torch.cuda.get_device_properties().total_memory` shows, about. Links are
what all-reduces reach in the tables of aiconfigurator-core 0.12 (systems/data/*/comm; A100, H100, B200, L40S, RTX PRO
6000), and like the nearest of those elsewhere: NVLink about 0.65 of its label. Through PCIe the host decides: two RTX
PRO 6000 reach 15 GB/s at 20 µs in the tables of vLLM 0.19, taken here, and 37 GB/s at 4 µs on the host of vLLM 0.24.
Prices are examples of on-demand offers at their date; no decision should rest on them. What an engine takes outside of
its allocator was measured on H100s and an RTX 4090; cards with GDDR memory take after the latter.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from .shapes import Gpu

_DATE = "2025-10"


def _gpu(
    name: str,
    title: str,
    memory_gib: float,
    bandwidth_gb: float,
    tflops: tuple[float, float | None, float | None],
    link: tuple[float, float, bool],
    price: float,
    reserve: int = 270_000_000,
) -> Gpu:
    """From GiB, GB/s, dense TFLOP/s in (bf16, fp8, int8), (GB/s, µs, switched) and USD an hour."""
    bf16, fp8, int8 = tflops
    return Gpu(
        name,
        title,
        int(memory_gib * (1 << 30)),
        bandwidth_gb * 1e9,
        bf16 * 1e12,
        None if fp8 is None else fp8 * 1e12,
        None if int8 is None else int8 * 1e12,
        link[0] * 1e9,
        link[1] * 1e-6,
        link[2],
        price,
        _DATE,
        reserve,
    )


_GDDR = 650_000_000

GPUS: Final = (
    #    name, title, GiB, GB/s, (bf16, fp8, int8) TFLOP/s, (GB/s, µs, switched), USD an hour
    _gpu("a100_sxm", "NVIDIA A100 SXM 80 GB", 79.1, 2039, (312, None, 624), (190, 5, True), 1.80),
    _gpu("a100_pcie", "NVIDIA A100 PCIe 80 GB", 79.1, 1935, (312, None, 624), (19, 7.5, False), 1.60),
    _gpu("h100_sxm", "NVIDIA H100 SXM 80 GB", 79.2, 3350, (989, 1979, 1979), (330, 4.5, True), 2.80),
    _gpu("h100_pcie", "NVIDIA H100 PCIe 80 GB", 79.1, 2000, (756, 1513, 1513), (37, 7.5, False), 2.30),
    _gpu("h200_sxm", "NVIDIA H200 SXM 141 GB", 139.8, 4800, (989, 1979, 1979), (330, 4.5, True), 3.60),
    _gpu("b200_sxm", "NVIDIA B200 SXM 180 GB", 178.3, 8000, (2250, 4500, 4500), (500, 5, True), 5.50),
    _gpu("gb200", "NVIDIA GB200 (one GPU)", 184.0, 8000, (2500, 5000, 5000), (500, 5, True), 7.00),
    _gpu("h20_sxm", "NVIDIA H20 SXM 96 GB", 95.1, 4000, (148, 296, 296), (330, 4.5, True), 1.40),
    _gpu("a100_sxm_40", "NVIDIA A100 SXM 40 GB", 39.39, 1555, (312, None, 624), (190, 5, True), 1.10),
    _gpu("a100_pcie_40", "NVIDIA A100 PCIe 40 GB", 39.39, 1555, (312, None, 624), (19, 7.5, False), 1.00),
    _gpu("v100_sxm", "NVIDIA V100 SXM2 32 GB", 31.74, 900, (125, None, None), (95, 6, True), 0.60),
    _gpu("v100_pcie", "NVIDIA V100 PCIe 32 GB", 31.74, 900, (112, None, None), (10, 10, False), 0.50),
    _gpu("l40s", "NVIDIA L40S 48 GB", 44.42, 864, (362, 733, 733), (19, 7.5, False), 1.10, _GDDR),
    _gpu("l4", "NVIDIA L4 24 GB", 22.0, 300, (121, 242, 242), (19, 7.5, False), 0.70, _GDDR),
    _gpu("a10", "NVIDIA A10 24 GB", 22.0, 600, (125, None, 250), (19, 7.5, False), 0.75, _GDDR),
    _gpu("a30", "NVIDIA A30 24 GB", 23.6, 933, (165, None, 330), (19, 7.5, False), 0.80),
    _gpu("a40", "NVIDIA A40 48 GB", 44.4, 696, (149.7, None, 299.3), (19, 7.5, False), 0.45, _GDDR),
    _gpu("t4", "NVIDIA T4 16 GB", 14.6, 320, (65, None, 130), (10, 10, False), 0.40, _GDDR),
    _gpu("rtx_a6000", "NVIDIA RTX A6000 48 GB", 47.5, 768, (154.8, None, 309.7), (19, 7.5, False), 0.55, _GDDR),
    _gpu("rtx_3090", "NVIDIA GeForce RTX 3090", 23.58, 936, (71, None, 284), (12, 20, False), 0.22, _GDDR),
    _gpu("rtx_4090", "NVIDIA GeForce RTX 4090", 23.51648, 1008, (165.2, 330.3, 660.6), (12, 20, False), 0.45, _GDDR),
    _gpu("rtx_5090", "NVIDIA GeForce RTX 5090", 31.36, 1792, (209.5, 419, 838), (15.1, 20, False), 0.70, _GDDR),
    _gpu(
        "rtx_pro_6000",
        "NVIDIA RTX PRO 6000 Blackwell Server",
        94.97,
        1597,
        (503.8, 1007.6, 1007.6),
        (15.1, 20, False),
        1.80,
        _GDDR,
    ),
    _gpu("mi300x", "AMD Instinct MI300X", 191.5, 5300, (1307, 2615, 2615), (300, 8, True), 2.80),
    _gpu("mi325x", "AMD Instinct MI325X", 255.5, 6000, (1307, 2615, 2615), (300, 8, True), 3.20),
)

ALIASES: Final = MappingProxyType(
    {
        "a100": "a100_sxm",
        "a100_40": "a100_sxm_40",
        "a800": "a100_sxm",
        "h100": "h100_sxm",
        "h200": "h200_sxm",
        "h20": "h20_sxm",
        "b200": "b200_sxm",
        "gb200_sxm": "gb200",
        "gb200_nvl72": "gb200",
        "v100": "v100_sxm",
        "a6000": "rtx_a6000",
        "a10g": "a10",
        "3090": "rtx_3090",
        "4090": "rtx_4090",
        "5090": "rtx_5090",
        "rtx3090": "rtx_3090",
        "rtx4090": "rtx_4090",
        "rtx5090": "rtx_5090",
        "rtxpro6000": "rtx_pro_6000",
        "rtx_pro_6000_server": "rtx_pro_6000",
        "rtx_pro_6000_blackwell": "rtx_pro_6000",
        "rtx_pro_6000_blackwell_server": "rtx_pro_6000",
        "rtx_pro_6000_blackwell_server_edition": "rtx_pro_6000",
    }
)
"""Other names, in lower case with `_` between the parts."""
