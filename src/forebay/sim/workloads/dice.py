"""Seeded generators, one for each purpose, so that drawing more for one does not change what another draws."""

from __future__ import annotations

from random import Random


def dice(seed: str, purpose: str) -> Random:
    return Random(f"{seed}/{purpose}")  # noqa: S311 - nothing is secret here
