"""What a head says, in another class: everything else stays, compiled or not."""

from __future__ import annotations

from forebay.api.routes import CHAT
from forebay.cache.key import Wish
from forebay.config.models import Class
from forebay.gateway.front import Front
from pure import pure


def test_in_another_class_everything_else_stays() -> None:
    front = Front(
        7,
        b"mine",
        b"cors",
        class_=Class.VIP,
        route=CHAT,
        block=b"block",
        explains=True,
        explains_cache=True,
        wish=Wish(),
        kept_as=(("faq",), ("doc:1",)),
        session=5,
        tags=(("team", "search"),),
        usage=True,
        feedback=True,
        answer=lambda _: (200, b"", b""),
    )
    lower = front.lowered(Class.LOW)
    assert (front.class_, lower.class_) == (Class.VIP, Class.LOW)
    for name in set(pure("forebay.gateway.front").Front.__slots__) - {"class_", "entry", "series"}:
        assert getattr(lower, name) == getattr(front, name), name
