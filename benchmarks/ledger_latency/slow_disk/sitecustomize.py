"""On the PYTHONPATH of a gateway: its worker's journal is on a disk whose fsync takes COMMIT_MS longer."""

import os
import sys
import time

if "forebay.gateway.worker" in sys.orig_argv:
    from forebay.ledger import journal_disk

    class _SlowDisk(journal_disk.Disk):
        def sync(self, fd: int) -> None:
            super().sync(fd)
            time.sleep(float(os.environ["COMMIT_MS"]) / 1e3)

    journal_disk.Disk = _SlowDisk  # type: ignore[misc]
