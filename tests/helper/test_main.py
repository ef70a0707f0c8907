"""What is set before numpy is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.helper.main import KERNELS, ONE_THREAD, WIDE, kernels

FLAGS = f"fpu sse2 avx2 {' '.join(sorted(WIDE))}"


def about(vendor: str, flags: str) -> str:
    return f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: some: thing\nflags\t\t: {flags}\n\n" * 2


@pytest.mark.parametrize(
    ("cpuinfo", "chosen"),
    [
        (about("AuthenticAMD", FLAGS), "SkylakeX"),
        (about("AuthenticAMD", FLAGS.replace("avx512vl", "")), None),
        (about("AuthenticAMD", "fpu sse2 avx2 avx512f"), None),
        (about("GenuineIntel", FLAGS), None),  # it knows by itself
        ("processor\t: 0\nFeatures\t: fp asimd\n", None),
        ("", None),
    ],
)
def test_which_kernels_multiply(cpuinfo: str, chosen: str | None) -> None:
    assert kernels(cpuinfo) == chosen


@pytest.mark.skipif(kernels(Path("/proc/cpuinfo").read_text()) is None, reason="OpenBLAS chooses by itself here")
@pytest.mark.parametrize(("given", "expected"), [(None, b"SkylakeX"), ("Haswell", b"Haswell")])
def test_openblas_takes_them_and_what_somebody_has_set_stays(given: str | None, expected: bytes) -> None:
    env = {name: value for name, value in os.environ.items() if name not in (*ONE_THREAD, KERNELS)}
    if given is not None:
        env[KERNELS] = given
    asks = (
        "from forebay.helper.main import prepare; prepare()\n"
        "import ctypes, numpy\n"
        "maps = open('/proc/self/maps').read().split()\n"
        "file = next(one for one in maps if 'openblas' in one)\n"
        "name = ctypes.CDLL(file).scipy_openblas_get_corename64_\n"
        "name.restype = ctypes.c_char_p\n"
        "print(name().decode())\n"
    )
    ran = subprocess.run([sys.executable, "-c", asks], env=env, capture_output=True, check=True, timeout=30)
    assert ran.stdout.strip() == expected
