"""What a calibration found, on a terminal."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table

from forebay.errors import shown
from forebay.plan.calibrate import Calibration

MOST: Final = 400
"""Characters of a line that the engine has a say in."""


def print_report(url: str, found: Calibration, console: Console) -> None:
    profile = found.profile
    engine, error = profile.engine, profile.error
    said = f" {engine.version}" if engine.version else ""
    console.print(shown(f"{url}: {engine.kind}{said} serving {engine.model}", MOST), markup=False, highlight=False)
    facts = {
        "block size": engine.block_size,
        "KV tokens": engine.kv_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "context": engine.max_model_len,
    }
    known = [f"{name} {'unknown' if value is None else f'{value:,}'}" for name, value in facts.items()]
    ahead = {None: "unknown", True: "ahead", False: "when the last has ended"}[engine.async_scheduling]
    console.print("  " + ", ".join([*known, f"steps scheduled {ahead}"]), highlight=False)
    table = Table()
    for name in ("", "point", "samples", "measured ms", "fitted ms", "error"):
        table.add_column(name, justify="left" if name in ("", "point") else "right")
    axis = ""
    for point in sorted(found.fit.points, key=lambda p: (p.axis, p.measured)):
        if point.axis != axis:
            table.add_section()
        table.add_row(
            point.axis if point.axis != axis else "",
            point.name,
            f"{point.samples}",
            f"{point.measured * 1e3:,.2f}",
            f"{point.fitted * 1e3:,.2f}",
            f"{point.error:+.1%}",
        )
        axis = point.axis
    console.print(table)
    c, host = profile.coefficients, profile.host
    points = ", ".join(f"{seconds * 1e3:.2f} at {tokens:,}" for tokens, seconds in c.curve)
    console.print(f"A step, by its tokens: {points} ms; in between on straight lines", highlight=False)
    for name, seconds in (
        ("each sequence that samples", c.per_sequence),
        ("each chunk of prefill", c.per_chunk),
        ("1,000 tokens of context that decode", c.per_context_token * 1e3),
        ("1,000,000 pairs of attention in prefill", c.per_attention_pair * 1e6),
        ("host, a request", host.per_request),
        ("host, 1,000 prompt tokens", host.per_prompt_token * 1e3),
    ):
        console.print(f"  {name}: {seconds * 1e3:,.3f} ms", highlight=False)
    by_axis = ", ".join(f"{name} {value:.1%}" for name, value in error.mape.items())
    console.print(
        f"R² {error.r2:.5f}; mean error {by_axis}; {error.samples} samples of {error.points} points in "
        f"{found.rounds} rounds, {found.seconds:.0f} s",
        highlight=False,
    )
    for note in profile.notes:
        console.print(f"  note: {shown(note, MOST)}", markup=False, highlight=False)
