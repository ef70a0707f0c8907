"""The GPUs known by name, from the vendors' data sheets (NVIDIA A100, H100, H200, DGX B200, GB200 NVL72, L40S, L4, A10,
A30, T4; NVIDIA Ada and RTX Blackwell PRO architecture papers; AMD Instinct MI300X).

Memory is what `torch.cuda.get_device_properties().total_memory` shows, about. Links are
what all-reduces reach in the tables of aiconfigurator-core 0.12 (systems/data/*/comm; A100, H100, B200, L40S, RTX PRO
6000), and like the nearest of those elsewhere: NVLink about 0.65 of its label. Through PCIe the host decides: two RTX
PRO 6000 reach 15 GB/s at 20 µs in the tables of vLLM 0.19, taken here, and 37 GB/s at 4 µs on the host of vLLM 0.24.
Prices are examples of on-demand offers at their date; no decision should rest on them.
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
    )


GPUS: Final = (
    #    name, title, GiB, GB/s, (bf16, fp8, int8) TFLOP/s, (GB/s, µs, switched), USD an hour
    _gpu("a100_sxm", "NVIDIA A100 SXM 80 GB", 79.1, 2039, (312, None, 624), (190, 5, True), 1.80),
    _gpu("a100_pcie", "NVIDIA A100 PCIe 80 GB", 79.1, 1935, (312, None, 624), (19, 7.5, False), 1.60),
    _gpu("h100_sxm", "NVIDIA H100 SXM 80 GB", 79.2, 3350, (989, 1979, 1979), (330, 4.5, True), 2.80),
    _gpu("h100_pcie", "NVIDIA H100 PCIe 80 GB", 79.1, 2000, (756, 1513, 1513), (37, 7.5, False), 2.30),
    _gpu("h200_sxm", "NVIDIA H200 SXM 141 GB", 139.8, 4800, (989, 1979, 1979), (330, 4.5, True), 3.60),
    _gpu("b200_sxm", "NVIDIA B200 SXM 180 GB", 178.3, 8000, (2250, 4500, 4500), (500, 5, True), 5.50),
    _gpu("gb200", "NVIDIA GB200 (one GPU)", 184.0, 8000, (2500, 5000, 5000), (500, 5, True), 7.00),
    _gpu("l40s", "NVIDIA L40S 48 GB", 44.5, 864, (362, 733, 733), (19, 7.5, False), 1.10),
    _gpu("l4", "NVIDIA L4 24 GB", 22.0, 300, (121, 242, 242), (19, 7.5, False), 0.70),
    _gpu("a10", "NVIDIA A10 24 GB", 22.0, 600, (125, None, 250), (19, 7.5, False), 0.75),
    _gpu("a30", "NVIDIA A30 24 GB", 23.6, 933, (165, None, 330), (19, 7.5, False), 0.80),
    _gpu("t4", "NVIDIA T4 16 GB", 14.6, 320, (65, None, 130), (10, 10, False), 0.40),
    _gpu("rtx_4090", "NVIDIA GeForce RTX 4090", 23.51648, 1008, (165.2, 330.3, 660.6), (12, 20, False), 0.45),
    _gpu(
        "rtx_pro_6000",
        "NVIDIA RTX PRO 6000 Blackwell Server",
        94.97,
        1597,
        (503.8, 1007.6, 1007.6),
        (15.1, 20, False),
        1.80,
    ),
    _gpu("mi300x", "AMD Instinct MI300X", 191.5, 5300, (1307, 2615, 2615), (300, 8, True), 2.80),
)

ALIASES: Final = MappingProxyType(
    {
        "a100": "a100_sxm",
        "h100": "h100_sxm",
        "h200": "h200_sxm",
        "b200": "b200_sxm",
        "gb200_sxm": "gb200",
        "gb200_nvl72": "gb200",
        "rtx4090": "rtx_4090",
        "rtxpro6000": "rtx_pro_6000",
        "rtx_pro_6000_server": "rtx_pro_6000",
        "rtx_pro_6000_blackwell_server_edition": "rtx_pro_6000",
    }
)
"""Other names, in lower case with `_` between the parts."""
