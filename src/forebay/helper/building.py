"""Opens what the configuration names: store, embedder, index, decider."""

from __future__ import annotations

import logging
from math import inf
from pathlib import Path
from random import Random
from typing import Final, cast

import msgspec

from forebay.cache.semantic import verifier
from forebay.cache.semantic.deciding import Decider, StateError
from forebay.cache.semantic.embedder import POLICY, Embedder, open_embedder
from forebay.cache.semantic.guard import FEATURES, compare
from forebay.cache.semantic.index import Index, Space
from forebay.cache.semantic.judge import reckoned
from forebay.cache.semantic.readings import Readings
from forebay.cache.stores import opening
from forebay.cache.stores.store import SharedStore, Store
from forebay.cache.stores.tiered import position_in
from forebay.clock import Clock
from forebay.config.cache import Cache, IndexKind, Semantic
from forebay.config.models import Config
from forebay.helper.meaning import Meaning

log = logging.getLogger("forebay.cache")

WAIT: Final = 0.01
"""Seconds that a look-up waits for a store at most, whatever its budget."""

OTHERS: Final = 300.0
"""Seconds between looks for questions that other hosts put into the shared store, where the index is this host's."""
SHARED: Final = ("redis", "postgres")
"""Stores that have no file before them, which would keep their position."""


def learned_file(state_dir: Path) -> Path:
    """What the bound has learned; `Decider.dump`."""
    return state_dir / "cache-learned.json"


def counts_file(state_dir: Path) -> Path:
    return state_dir / "cache-counts.json"


def position_file(state_dir: Path) -> Path:
    return state_dir / "cache-position.json"


def vectors_folder(state_dir: Path) -> Path:
    return state_dir / "vectors"


def open_store(config: Config, clock: Clock) -> Store:
    """Raises StoreError."""
    rules = config.cache
    wait = min(WAIT, rules.semantic.budget / 2)
    store = opening.open_store(rules, config.database, config.state_dir, clock.wall, wait=wait)
    if store.name in SHARED:
        cast("SharedStore", store).position = position_in(position_file(config.state_dir))
    return store


def save_position(store: Store, state_dir: Path) -> None:
    """Up to where a shared store has said what other hosts dropped. Raises OSError."""
    if store.name in SHARED:
        written(position_file(state_dir), msgspec.json.encode(cast("SharedStore", store).position))


def same_embedder(old: Semantic, new: Semantic) -> bool:
    fields = ("embedder", "embedder_key", "longest")
    return all(getattr(old, name) == getattr(new, name) for name in fields)


def embedder_of(config: Config) -> Embedder:
    """Takes a second or two. Raises EmbedderMissing, EmbedderUnavailable."""
    rules = config.cache.semantic
    return open_embedder(rules.embedder, rules.embedder_key, rules.longest)


def open_meaning(config: Config, embedder: Embedder, store: Store, clock: Clock, rng: Random) -> Meaning:
    """Raises VerifierError, StoreError, IndexUnavailable, OSError, and ImportError where a package is missing."""
    rules = config.cache.semantic
    index = _index(config, Space(embedder.id, embedder.dimensions, POLICY), clock)
    try:
        readings = Readings()
        decider = _decider(config.cache, embedder, learned_file(config.state_dir), readings)
    except BaseException:
        index.close()
        raise
    alone = store.name == "disk" or rules.index is not IndexKind.FAISS
    meaning = Meaning(rules, embedder, index, decider, store, clock, rng, inf if alone else OTHERS, readings)
    meaning.refill()
    return meaning


def _index(config: Config, space: Space, clock: Clock) -> Index:
    rules = config.cache.semantic
    wait = rules.budget / 2
    match rules.index:
        case IndexKind.FAISS:
            from forebay.cache.semantic.faiss_index import FaissIndex

            index = FaissIndex(vectors_folder(config.state_dir), space, rules.entries)
            if index.opened.why:
                log.warning(
                    "the index of questions is made anew (%s); the old file is %s", index.opened.why, index.opened.aside
                )
            elif index.opened.damaged:
                log.warning("%d vectors were damaged, and are made anew", index.opened.damaged)
            return index
        case IndexKind.PGVECTOR:
            from forebay.cache.semantic.pgvector_index import PgvectorIndex

            return PgvectorIndex(config.database, space, rules.entries, clock.wall, wait=wait)
        case IndexKind.REDIS:
            from forebay.cache.semantic.redis_index import RedisIndex

            return RedisIndex(config.cache.redis, space, rules.entries, clock.wall, wait=wait)


def _decider(rules: Cache, embedder: Embedder, file: Path, readings: Readings) -> Decider:
    semantic = rules.semantic
    if semantic.verifier is not None:
        rated: verifier.Verifying = verifier.load(semantic.verifier, semantic.embedder, FEATURES)
    else:
        rated = verifier.shipped(semantic.embedder, FEATURES)
    decider = Decider(semantic, embedder.id, rated, compare, reckoned(semantic.embedder), readings.read)
    try:
        if not decider.load(file.read_bytes()):
            log.warning(
                "what the semantic cache had learned was of another embedder, verifier or delta: it begins anew"
            )
    except FileNotFoundError:
        pass
    except (OSError, StateError) as e:
        log.warning("%s cannot be used, and the semantic cache learns anew: %s", file, e)
        _set_aside(file)
    return decider


def _set_aside(file: Path) -> None:
    try:
        file.replace(file.with_name(file.name + ".damaged"))
    except OSError as e:
        log.warning("%s cannot be set aside: %s", file, e.strerror)


def written(file: Path, data: bytes) -> None:
    """Whole or not at all. Raises OSError."""
    new = file.with_name(file.name + ".new")
    new.touch(mode=0o600)
    new.write_bytes(data)
    new.replace(file)
