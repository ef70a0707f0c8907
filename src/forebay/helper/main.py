"""The helper process: `python -m forebay.helper.main`, started by the supervisor where caches need it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""A question is too short to be shared between cores: BLAS threads that wait for each other take 200 ms for 2."""

KERNELS: Final = "OPENBLAS_CORETYPE"
WIDE: Final = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
"""What OpenBLAS's kernels for Skylake-X need."""


def kernels(cpuinfo: str) -> str | None:
    """The kernels that OpenBLAS shall use; None: those that it chooses. Of AMD's later processors it knows no name,
    and multiplies half as wide as they can: a question of 60 tokens then takes 0.3 ms more.
    `cpuinfo`: as in /proc/cpuinfo."""
    about = dict[str, str]()
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        about.setdefault(name.strip(), value.strip())
    if about.get("vendor_id") == "AuthenticAMD" and WIDE.issubset(about.get("flags", "").split()):
        return "SkylakeX"
    return None


def prepare() -> None:
    """Before numpy is loaded, which reads the environment then."""
    for variable in ONE_THREAD:
        os.environ[variable] = "1"
    try:
        chosen = kernels(Path("/proc/cpuinfo").read_text("utf-8", "replace"))
    except OSError:
        chosen = None
    if chosen is not None:
        os.environ.setdefault(KERNELS, chosen)


def main() -> None:
    prepare()
    from forebay.helper.running import run  # loads numpy

    run()


if __name__ == "__main__":
    main()
