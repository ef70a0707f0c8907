"""A plan on one screen of a terminal: the number, the formula with its values, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import shown as printable
from forebay.plan.report_metrics import dollars, seconds

if TYPE_CHECKING:
    from rich.console import Console

MOST: Final = 600
"""Characters of a note."""
CHANGES: Final = 6
"""Changes shown; all are in the JSON."""
LEAST_GAIN: Final = 0.01
"""Of a change that is shown."""
WIDE: Final = 100
"""Columns of a terminal; with fewer, what explains a number is below it."""

Line = tuple[str, str, str]
"""What it is, the number, how it comes about."""


def title(document: Mapping[str, Any]) -> str:
    q = document["question"]
    ways = [f"{name.upper()} {q[name]}" for name in ("tp", "pp", "dp") if q[name] > 1]
    on = f"{document['replica']['gpus']} × " if document["replica"]["gpus"] > 1 else ""
    return f"{q['model']} ({q['dtype']}, KV {q['kv_dtype']}) on {on}{q['gpu_title']}" + (
        f", {', '.join(ways)}" if ways else ""
    )


def a_second(rate: float) -> str:
    """Requests a second, to three digits, and never as a power of ten where that is long to read."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def promise(document: Mapping[str, Any]) -> str:
    slo = document["question"]["slo"]
    text = f"P{slo['percent']:g} of TTFT ≤ {seconds(slo['ttft_s'])}"
    return text + (f" and of TPOT ≤ {seconds(slo['tpot_s'])}" if slo["tpot_s"] is not None else "")


def answer(document: Mapping[str, Any]) -> str:
    """The one sentence."""
    fleet, replica, cost, traffic = (document[key] for key in ("fleet", "replica", "cost", "question"))
    traffic = traffic["traffic"]
    who = (
        f"{traffic['users']:,.0f} users ({a_second(fleet['peak'])} requests/s)"
        if traffic["users"] is not None
        else f"{a_second(fleet['peak'])} requests/s at the peak"
    )
    gpus = "1 GPU" if fleet["gpus"] == 1 else f"{fleet['gpus']:,} GPUs"
    spare = fleet["replicas"] - fleet["needed"]
    replicas = ""
    if replica["gpus"] > 1 or spare:
        count = "1 replica" if fleet["replicas"] == 1 else f"{fleet['replicas']:,} replicas"
        replicas = f" ({count} of {replica['gpus']}" + (f", {spare:,} spare)" if spare else ")")
    money = f", {dollars(cost['hourly'])} an hour" if cost["hourly"] is not None else ""
    return f"{who} need {gpus}{replicas}{money}."


def lines(document: Mapping[str, Any]) -> Iterator[tuple[str, list[Line]]]:
    """Sections of lines."""
    yield "Memory of one GPU", list(_memory(document))
    yield "One replica", list(_replica(document))
    yield "All of them", list(_fleet(document))


def _gb(size: float) -> str:
    return (
        f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"
    )


def _memory(document: Mapping[str, Any]) -> Iterator[Line]:
    memory, q = document["memory"], document["question"]
    per = memory["per_gpu_bytes"]
    taken = f"{_gb(per['total'])} · {q['gpu_memory_utilization']:g} - weights {_gb(per['weights'])}"
    taken += f" - activations {_gb(per['activations'])}"
    rest = per["usable"] - per["weights"] - per["activations"] - per["kv"]
    yield "KV cache", _gb(per["kv"]), f"{taken} - graphs, workspaces {_gb(rest)}"
    text = next((f["text"] for f in memory["formulas"] if f["name"].lower() == "kv bytes per token"), "")
    yield (
        "KV a token",
        _gb(memory["kv_bytes_per_token"]),
        text.partition(" = ")[2] if document["replica"]["gpus"] == 1 else f"{text.partition(' = ')[2]} on each GPU",
    )
    yield (
        "KV tokens",
        f"{memory['kv_tokens']:,}",
        f"{memory['num_blocks']:,} blocks; the longest request: {memory['longest']:,}",
    )
    slots = memory["slots"]
    other = "".join(f"; of {s['tokens_each']:,} tokens: {s['whole']:,}" for s in slots[1:])
    yield (
        "MaxConcurrentSlots",
        f"{slots[0]['whole']:,}",
        f"{slots[0]['exact']:,.2f} requests of {slots[0]['tokens_each']:,} tokens{other}",
    )


def _replica(document: Mapping[str, Any]) -> Iterator[Line]:
    rates, replica, q = document["rates"], document["replica"], document["question"]
    formula, simulated = replica["formula"], replica["simulated"]
    percent = q["slo"]["percent"]
    yield (
        "prefill",
        f"{rates['prefill_tokens_per_s']:,.0f} tokens/s",
        f"{q['max_num_batched_tokens']:,} tokens in a step of {seconds(rates['prefill_step_s'])}",
    )
    yield (
        "decode",
        f"{rates['decode_tokens_per_s']:,.0f} tokens/s",
        f"{rates['decode_sequences']:,.1f} sequences in a step of {seconds(rates['decode_step_s'])}; "
        f"one alone: {rates['decode_tokens_per_s_alone']:,.0f} tokens/s",
    )
    limits = ", ".join(f"{one['name']} {a_second(one['requests_per_s'])}" for one in _once(replica["limits"]))
    yield "most throughput", f"{a_second(replica['most_requests_per_s'])} requests/s", f"each limit alone: {limits}"
    by = f"formulas: {a_second(replica['requests_per_s_by_formula'])}"
    if simulated is not None:
        runs = f"{len(replica['runs'])} × {simulated['requests']:,.0f} requests"
        by += f"; simulated ({runs}): {a_second(replica['requests_per_s'])}"
    yield "at the promise", f"{a_second(replica['requests_per_s'])} requests/s", by
    at = (
        formula
        if simulated is None
        else {
            "ttft_s": simulated["ttft"],
            "ttft_p50_s": simulated["ttft_p50"],
            "tpot_s": simulated["tpot"],
            "tpot_p50_s": simulated["tpot_p50"],
        }
    )
    yield (
        f"TTFT P{percent:g}",
        seconds(at["ttft_s"]),
        f"P50 {seconds(at['ttft_p50_s'])}; mean of "
        + " + ".join(f"{name} {seconds(part)}" for name, part in formula["ttft_parts_s"].items() if part >= 5e-4),
    )
    yield (
        f"TPOT P{percent:g}",
        seconds(at["tpot_s"]),
        f"P50 {seconds(at['tpot_p50_s'])}, {1 / at['tpot_p50_s']:,.0f} tokens/s for each",
    )
    think = q["traffic"]["think_s"]
    yield (
        "users",
        f"{replica['users']:,.0f}",
        f"rate · (think {think:g} s + answered {seconds(simulated['e2e'] if simulated else formula['e2e_mean_s'])})",
    )
    yield "binding", replica["binding"]["name"], replica["binding"]["why"]


def _once(limits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seen: dict[str, dict[str, Any]] = {}
    for one in limits:
        seen.setdefault(one["name"], one)
    return list(seen.values())


def _fleet(document: Mapping[str, Any]) -> Iterator[Line]:
    fleet, cost, replica, q = document["fleet"], document["cost"], document["replica"], document["question"]
    yield (
        "replicas",
        f"{fleet['replicas']:,}",
        f"⌈ {fleet['peak']:,.4g} / {replica['requests_per_s']:,.4g} ⌉"
        + (f" + {fleet['replicas'] - fleet['needed']:,} spare" if fleet["replicas"] > fleet["needed"] else "")
        + f" on {fleet['nodes']:,} × {q['gpus_per_node']} GPUs",
    )
    if fleet["hours"]:
        counts = [hour["replicas"] for hour in fleet["hours"]]
        yield "by hour", f"{min(counts):,} to {max(counts):,}", " ".join(f"{n}" for n in counts)
    spared = fleet["headroom_less_one"]
    lost = "its replica" if fleet["lost"] == 1 else f"its {fleet['lost']} replicas"
    holds = "the promise holds" if spared >= 0 else "the promise breaks at the peak; --spare-nodes 1 keeps it"
    yield "a node dies", f"{spared:+.0%}", f"headroom without {lost} (with all: {fleet['headroom']:+.0%}): {holds}"
    if cost["hourly"] is None:
        yield "cost", "–", "the GPU has no price: give --price USD an hour"
        return
    yield (
        "cost",
        f"{dollars(cost['million_output'])}/M output",
        f"{fleet['gpus']:,} GPUs · ${cost['gpu_hour']:g} ({cost['gpu_hour_is']}) over "
        f"{a_second(fleet['mean'])} requests/s in the mean; {dollars(cost['million_tokens'])}/M of all tokens",
    )
    scaled = (
        f"; {dollars(cost['daily_by_hour'])} a day where replicas follow the hours"
        if cost["daily_by_hour"] is not None
        else ""
    )
    each = "–" if cost["valid_request"] is None else dollars(cost["valid_request"])
    yield (
        "a valid request",
        each,
        f"{fleet['valid']:.1%} are served as promised; {dollars(cost['daily'])} a day{scaled}",
    )


def change_rows(document: Mapping[str, Any]) -> list[Line]:
    """What to change, the best first."""
    out = []
    for change in document["changes"]:
        cost = f", {dollars(change['hourly'])}/h" if change["hourly"] is not None else ""
        gpus = f"{change['gpus']:,} GPUs{cost}" if change["gpus"] else f"{a_second(change['rate'])} requests/s"
        out.append(
            (change["name"], gpus, f"{a_second(change['rate'])} requests/s a replica, {change['gain']:+.0%} a GPU")
        )
    return out


def _helps(change: Mapping[str, Any]) -> bool:
    return bool(change["gain"] >= LEAST_GAIN)


def show(document: Mapping[str, Any], console: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    q = document["question"]
    console.print(Text(printable(title(document), MOST), style="bold"))
    lengths = ", ".join(
        f"{what} of {q[key]['mean']:,.0f} tokens (P95 {q[key]['p95']:,.0f})"
        for what, key in (("prompts", "prompt"), ("answers", "output"))
    )
    hit = f", {q['cache_hit']:.0%} of prompt tokens cached" if q["cache_hit"] else ""
    console.print(Text(f"{lengths}{hit}; {promise(document)}"))
    console.print(Text(answer(document), style="bold green"))
    sections = list(lines(document))
    helpful = [row for row, change in zip(change_rows(document), document["changes"], strict=True) if _helps(change)]
    if helpful:
        sections.append(("What to change first", helpful[:CHANGES]))
    if console.width < WIDE:
        for name, rows in sections:
            console.print(Text(name, style="underline"))
            for what, number, how in rows:
                console.print(Text.assemble(f"{what}  ", (number, "bold")))
                console.print(Padding(Text(printable(how, MOST), style="dim"), (0, 0, 0, 2)))
    else:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True, style="bold")
        table.add_column(style="dim", overflow="fold")
        for name, rows in sections:
            table.add_row(Text(name, style="underline"), "", "")
            for what, number, how in rows:
                table.add_row(Text(what), Text(number), Text(printable(how, MOST)))
        console.print(table)
    for rule in document["rules_of_thumb"]:
        console.print(
            Text(f"not here: “{rule['rule']}” says {rule['says']}; it is {rule['true']}: {rule['why']}", style="yellow")
        )
    console.print(Text(f"step time: {printable(document['step_time']['note'], MOST)}", style="dim"))
    for note in document["notes"]:
        console.print(Text(f"note: {printable(note, MOST)}", style="yellow"))
