"""The models refuse by themselves what the loader refuses with a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from forebay.config.models import Address, Config, default_state_dir

ENGINE = {"name": "a", "url": "http://h"}
KEY = {"name": "a", "key": "0123456789abcdefghij"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"engines": [ENGINE, ENGINE]}, "two engines have the same name"),
        ({"callers": {"keys": [KEY, {**KEY, "key": "0123456789abcdefghijk"}]}}, "two keys have the same name"),
        ({"callers": {"keys": [KEY, {**KEY, "name": "b"}]}}, "two keys have the same text"),
        ({"callers": {"anonymous": {"any_key": True}}}, "any_key needs enabled: true"),
        (
            {"callers": {"anonymous": {"any_key": True, "enabled": True}}, "listeners": [{"address": "10.0.0.1:80"}]},
            "callers.anonymous.any_key is for loopback listeners only",
        ),
        ({"models": {"a": {"aliases": ["b"]}, "b": {}}}, "the alias b is taken by a model of that name"),
        ({"models": {"a": {"aliases": ["c"]}, "b": {"aliases": ["c"]}}}, "the alias c is taken by a"),
    ],
)
def test_what_does_not_fit_together(value: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Config.model_validate(value)
    assert [error["msg"] for error in raised.value.errors()] == [message]


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1:80", True),
        ("127.9.9.9:80", True),
        ("localhost:0", True),
        ("[::1]:80", True),
        ("unix:/run/f.sock", True),
        ("0.0.0.0:80", False),
        ("[::]:80", False),
        ("10.0.0.1:65535", False),
        ("gateway.example:80", False),
    ],
)
def test_addresses(text: str, loopback: bool) -> None:
    address = Address.parse(text)
    assert str(address) == text
    assert address.loopback is loopback
    assert Address.model_validate(address.model_dump()) == address


def test_secrets_are_in_no_repr() -> None:
    config = Config.model_validate(
        {
            "database": "postgresql://u:sesame1@h/d",
            "engines": [{**ENGINE, "api_key": "sesame2"}],
            "callers": {"keys": [{**KEY, "key": "sesame3-0123456789abc"}]},
            "listeners": [{"address": "127.0.0.1:1", "tls": {"cert": "c", "key": "k", "key_password": "sesame4"}}],
        }
    )
    assert "sesame" not in repr(config)


def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert default_state_dir() == Path("/home/me/.local/state/forebay")
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert default_state_dir() == Path("/xdg/forebay")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/private")
    assert default_state_dir() == Path("/var/lib/private/forebay")
