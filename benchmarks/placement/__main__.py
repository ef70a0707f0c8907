"""make bench-placement"""

from __future__ import annotations

import sys

from benchmarks.common import run
from benchmarks.placement.main import main

if __name__ == "__main__":
    run(lambda: main(sys.argv[1:]))
