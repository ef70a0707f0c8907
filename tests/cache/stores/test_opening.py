"""Which store the configuration names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forebay.cache.stores.disk import Disk
from forebay.cache.stores.opening import open_store
from forebay.cache.stores.redis_store import RedisStore
from forebay.cache.stores.store import StoreError
from forebay.cache.stores.tiered import Tiered
from forebay.clock import ManualClock
from forebay.config.cache import Cache

REDIS = "redis://127.0.0.1:1/0"
PGVECTOR = {"enabled": True, "semantic": {"enabled": True, "index": "pgvector"}}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, Disk),
        ({"redis": REDIS}, Tiered),
        ({"redis": REDIS, "disk_bytes": 0}, RedisStore),
    ],
)
def test_the_store_that_is_named(fields: dict[str, object], kind: type, tmp_path: Path) -> None:
    store = open_store(Cache.model_validate(fields), "", tmp_path, ManualClock().wall, wait=0.01)
    assert type(store) is kind
    assert store.stats().name == store.name
    store.close()


def test_without_any_the_file_is_small(tmp_path: Path) -> None:
    store = open_store(Cache(disk_bytes=0), "", tmp_path, ManualClock().wall, wait=0.01)
    assert store.stats().most_bytes == 1 << 20
    store.close()


def test_pgvector_needs_a_postgresql(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="needs a PostgreSQL"):
        open_store(Cache.model_validate(PGVECTOR), "", tmp_path, ManualClock().wall, wait=0.01)


@pytest.mark.parametrize(
    ("missing", "module", "fields"),
    [("redis", "redis_store", {"redis": REDIS}), ("postgres", "postgres_store", PGVECTOR)],
)
def test_an_extra_that_is_missing_is_named(
    missing: str, module: str, fields: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, f"forebay.cache.stores.{module}", None)
    with pytest.raises(StoreError, match=rf"pip install 'forebay\[{missing}\]'"):
        open_store(Cache.model_validate(fields), "", tmp_path, ManualClock().wall, wait=0.01)
