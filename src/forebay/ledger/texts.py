"""Texts as a database takes them."""

from __future__ import annotations


def clean(value: str) -> str:
    """PostgreSQL takes no NUL in a text."""
    return value.replace("\0", "\ufffd") if "\0" in value else value
