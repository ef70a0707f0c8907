"""The helper process: `python -m forebay.helper.main`, started by the supervisor where caches need it."""

from __future__ import annotations

import os
from typing import Final

ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""A question is too short to be shared between cores: BLAS threads that wait for each other take 200 ms for 2."""


def prepare() -> None:
    """Before numpy is loaded, which reads the environment then."""
    for variable in ONE_THREAD:
        os.environ[variable] = "1"


def main() -> None:
    prepare()
    from forebay.helper.running import run  # loads numpy

    run()


if __name__ == "__main__":
    main()
