"""Workloads: traces read, requests made up, and both reshaped, as streams of `Ask` in order of arrival.

`open_workload` gives one from a path or a specification. A `Workload` is a name and a source; a source can be streamed
any number of times and always gives the same. Nothing is ever held whole: a trace of any size costs a line at a time.
"""

from __future__ import annotations

from forebay.sim.workloads.errors import WorkloadError
from forebay.sim.workloads.own import write
from forebay.sim.workloads.source import Listed, Size, Source, Tally, Workload
from forebay.sim.workloads.spec import open_workload
from forebay.sim.workloads.trace import Scan, Trace, prescan
from forebay.sim.workloads.transforms import Merged

__all__ = [
    "Listed",
    "Merged",
    "Scan",
    "Size",
    "Source",
    "Tally",
    "Trace",
    "Workload",
    "WorkloadError",
    "open_workload",
    "prescan",
    "write",
]
