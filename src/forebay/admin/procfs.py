"""What Linux says of a process, as metric families."""

from __future__ import annotations

import os
from pathlib import Path

from forebay.state.messages import FamilySnapshot

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_families(role: str, pid: int) -> tuple[FamilySnapshot, ...]:
    """Memory (bytes), CPU time (seconds), open files and their limit; nothing where the process has gone or is somebody
    else's."""
    folder = Path("/proc") / str(pid)
    try:
        # Fields after the command's name, which is in parentheses and may hold spaces (proc_pid_stat(5)).
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / _TICKS
        memory = int(fields[21]) * _PAGE
        limits = (folder / "limits").read_text()
        most = int(limits.partition("Max open files")[2].split()[0])  # never "unlimited": fs.nr_open is above it
        files = len(os.listdir(folder / "fd"))  # noqa: PTH208 - names only, without a Path each
    except (OSError, IndexError, ValueError):
        return ()
    label, value = ("process",), (role,)
    return (
        FamilySnapshot(
            "forebay_process_cpu_seconds_total",
            "CPU time used, user and system.",
            "counter",
            label,
            (),
            ((value, cpu),),
        ),
        FamilySnapshot(
            "forebay_process_resident_memory_bytes", "Resident memory.", "gauge", label, (), ((value, memory),)
        ),
        FamilySnapshot("forebay_process_open_fds", "Open file descriptors.", "gauge", label, (), ((value, files),)),
        FamilySnapshot(
            "forebay_process_max_fds", "File descriptors it may open.", "gauge", label, (), ((value, most),)
        ),
    )
