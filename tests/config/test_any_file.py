"""Whatever a file holds, it is a configuration or it is refused in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forebay.config.load import advise, loads
from forebay.config.models import Config
from forebay.config.problems import ConfigError
from forebay.config.schema import model_schema


def keys(schema: dict[str, Any]) -> Iterator[str]:
    for section in [schema, *schema["$defs"].values()]:
        yield from section.get("properties", ())


KEYS = st.sampled_from(sorted(set(keys(model_schema())))) | st.text(max_size=5)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(
        ["127.0.0.1:1", "unix:/a", "http://h", "a", "${A}", "${B:-1}", "0.0.0.0:1", "localhost:1", "::", "[::]:1"]
    )
)
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5))


def settle(text: str) -> None:
    try:
        config = loads(text, "f", {"A": "1"})
    except ConfigError as e:
        assert e.problems
        for problem in e.problems:
            assert str(problem).isprintable()
            assert problem.message
    else:
        assert isinstance(config, Config)
        advise(config)


@given(st.dictionaries(st.sampled_from(sorted(model_schema()["properties"])), TREES, max_size=6))
def test_any_tree(tree: dict[str, Any]) -> None:
    settle(json.dumps(tree))


@given(st.text(max_size=100))
def test_any_text(text: str) -> None:
    settle(text)
