"""Whether `admission` can keep its promises with the engines that there are, and which of its settings do nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from forebay.config.placement import PlacementKind
from forebay.config.section import Class

if TYPE_CHECKING:
    from forebay.config.admission import Admission
    from forebay.config.engine import Engine
    from forebay.config.models import Config

_SILENT = ("openai", "ollama", "llamacpp")
"""Kinds whose pages never say how much their KV cache holds."""
BLOCK = 16
"""Tokens of a KV block where an engine does not say."""


def impossible(admission: Admission, engines: Iterable[Engine]) -> Iterator[str]:
    """What no engine could do even if it were empty."""
    for engine in engines:
        # an empty engine takes one step for a short prompt
        least = engine.decode_step + 1 / engine.prefill_tokens_per_s
        for cls in Class:
            promised = getattr(admission.ttft, cls)
            if promised < least:
                yield (
                    f"admission.ttft.{cls} promises {promised:g} s, and the empty engine {engine.name} needs "
                    f"{least:.3g} s for a prompt of one token (decode_step {engine.decode_step:g})"
                )
        if admission.tpot is not None and admission.tpot < engine.decode_step:
            yield (
                f"admission.tpot promises {admission.tpot:g} s a token, and the empty engine {engine.name} needs "
                f"{engine.decode_step:g} s (decode_step)"
            )
        if engine.kv_tokens is not None:
            blocks = max(1, engine.kv_tokens // BLOCK - 1)  # vLLM sets one aside
            for cls in Class:
                ceiling = getattr(admission.ceilings, cls)
                if blocks * ceiling < 1:
                    yield (
                        f"kv_tokens {engine.kv_tokens:,} of the engine {engine.name} leave no block of {BLOCK} tokens "
                        f"under admission.ceilings.{cls} ({ceiling:g})"
                    )


def _prompt_caches(config: Config) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    prefix = config.cache.prefix
    for name in sorted({"interval", "window", "memory_bytes"} & prefix.model_fields_set):
        if not prefix.watch:
            yield ("cache", "prefix", name), "not used: cache.prefix.watch is false", ""
    for i, engine in enumerate(config.engines):
        salt = engine.prompt_cache.cache_salt
        if salt is not None and config.placement.share_prefixes:
            message = "keeps prompts apart that placement.share_prefixes takes to be shared: set that to false"
            yield ("engines", i, "prompt_cache", "cache_salt"), message, salt.value


def idle_settings(config: Config) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """(path, what is wrong, what was found) of what is set in vain."""
    yield from _placement(config)
    yield from _prompt_caches(config)
    admission = config.admission
    if not admission.enabled:
        written = admission.model_fields_set - {"record"}
        if "enabled" not in written:  # switched off in so many words is meant
            for name in sorted(written):
                yield ("admission", name), "not used: admission.enabled is false", ""
        for i, engine in enumerate(config.engines):
            if engine.concurrency is not None:
                yield ("engines", i, "concurrency"), "not used: admission.enabled is false", f"{engine.concurrency:,}"
        return
    waits = type(admission.wait)()
    for cls in Class:
        wait, promise = getattr(admission.wait, cls), getattr(admission.ttft, cls)
        if wait > promise and wait != getattr(waits, cls) and not admission.ttft_multiple:
            yield ("admission", "wait", cls), f"no use over ttft.{cls} ({promise:g} s)", f"{wait:g}"
    starves, lasts = admission.queue.low_starvation, min(admission.wait.low, admission.ttft.low)
    if starves >= lasts:
        message = f"low never counts as normal: it waits for {lasts:g} s at most (wait.low, ttft.low)"
        yield ("admission", "queue", "low_starvation"), message, f"{starves:g}"
    soft = {"every", "up", "down", "least", "most", "up_over", "down_under"} & admission.scale.model_fields_set
    if soft and not any(engine.concurrency is not None for engine in config.engines):
        for name in sorted(soft):
            yield ("admission", "scale", name), "not used: no engine has a soft cap (engines[].concurrency)", ""
    for i, engine in enumerate(config.engines):
        if engine.kind in _SILENT and engine.kv_tokens is None and engine.api_key is None:  # no vendor's
            message = "has no metrics that would tell its KV cache: without kv_tokens it is taken for endless"
            yield ("engines", i, "kind"), message, ""
        if engine.max_num_batched_tokens < engine.max_num_seqs:
            message = f"fewer than max_num_seqs ({engine.max_num_seqs:,}): not every sequence has a token in a step"
            yield ("engines", i, "max_num_batched_tokens"), message, f"{engine.max_num_batched_tokens:,}"
    if admission.record is not None and not admission.record.parent.is_dir():
        yield ("admission", "record"), "its folder is not there: nothing will be recorded", ""


def _placement(config: Config) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    placement, best = config.placement, config.placement.policy is PlacementKind.BEST
    written = placement.model_fields_set
    if config.admission.enabled:
        if not best:
            yield ("placement", "policy"), "not used: with admission it is always best", placement.policy.value
    elif not best:
        for name in sorted(written - {"policy", "report_interval"}):
            yield ("placement", name), "not used: placement.policy is round_robin", ""
        return
    for i, engine in enumerate(config.engines):
        if engine.zone is not None and placement.zone is None:
            yield ("engines", i, "zone"), "not used: placement.zone does not say where the gateway stands", engine.zone
