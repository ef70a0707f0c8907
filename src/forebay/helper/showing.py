"""What people see of the cache: statistics, and entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.cache import answers
from forebay.cache import language as languages
from forebay.cache.messages import Look
from forebay.cache.semantic.index import IndexUnavailable
from forebay.cache.stores.store import Record, within

if TYPE_CHECKING:
    from forebay.helper.service import Service

MOST: Final = 1_000
"""Partitions or entries in one answer."""
PAGES: Final = 400
"""Of a store's questions that are looked through for one partition."""
EXCERPT: Final = 200
"""Characters of an answer among others."""
WHOLE: Final = 20_000
"""Characters of the answer of one entry."""


def shown_stats(service: Service, look: Look) -> bytes:
    most = min(max(look.most, 1), MOST)
    meaning = service.meaning
    shown = service.counts.shown(look.partition, most)
    by_partition: dict[str, Any] = {}
    semantic: dict[str, Any] = {"state": service.state}
    if meaning is not None:
        with meaning.deciding:
            learned = meaning.decider.stats(look.partition or None)
            by_partition = {name: meaning.decider.stats(name) for name in shown}
        try:
            questions, taken = len(meaning.index), meaning.index.memory_bytes()
        except IndexUnavailable as e:
            questions, taken = None, None
            semantic["state"] = str(e)
        semantic |= {
            "embedder": meaning.embedder.id,
            "index": meaning.rules.index,
            "questions": questions,
            "most_questions": meaning.rules.entries,
            "bytes": taken,
            "embedding_seconds": meaning.embedding,
            "mode": meaning.rules.mode,
            "delta": meaning.rules.delta,
            "learned": learned,
        }
    return msgspec.json.encode(
        {
            "total": service.counts.total(look.partition),
            "partitions": {
                name: {**msgspec.to_builtins(count), "learned": by_partition.get(name, [])}
                for name, count in shown.items()
            },
            "store": service.store.stats(),
            "semantic": semantic,
            "waiting": service.queues(),
        }
    )


def shown_entries(service: Service, look: Look, alike: Mapping[str, float] | None) -> bytes:
    """`alike`: entries and their cosine with the question looked for, the nearest first. Raises StoreGone."""
    most = min(max(look.most, 1), MOST)
    now = service.clock.wall()
    if look.entry:
        record = service.store.get(look.entry)
        fit = [record] if record is not None and within(record.partition, look.partition) else []
        return msgspec.json.encode([_entry(one, now, alike or {}, WHOLE) for one in fit])
    names: Iterable[str] = alike if alike is not None else _listed(service, look.partition)
    records = (record for name in names if (record := service.store.get(name)) is not None)
    chosen = islice((record for record in records if within(record.partition, look.partition)), most)
    return msgspec.json.encode([_entry(one, now, alike or {}, EXCERPT) for one in chosen])


def _listed(service: Service, partition: str) -> Iterable[str]:
    for page in islice(service.store.questions(), PAGES):
        for known in page:
            if within(known.partition, partition):
                yield known.entry


def _entry(record: Record, now: float, alike: Mapping[str, float], characters: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "entry": record.entry,
        "partition": record.partition,
        "question": record.question[:characters],
        "model": record.model,
        "version": record.version,
        "tags": record.tags,
        "sources": record.sources,
        "age": now - record.created,
        "fresh_for": record.created + record.ttl - now,
        "compared": bool(record.scope),
        "bytes": len(record.answer),
    }
    if record.entry in alike:
        shown["similarity"] = alike[record.entry]
    answer = answers.decode(record.answer)
    if answer is not None:
        text = answers.text_of(answer)
        shown |= {
            "language": languages.of(record.question) if record.scope else "",
            "finish_reason": answer.finish_reason,
            "tokens": answer.tokens,
            "answer": text[:characters],
            "cut": len(text) > characters,
        }
    return shown
