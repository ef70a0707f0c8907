"""One POST to a receiver of alerts, through the system's proxies (HTTPS_PROXY and the like). Blocks."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from typing import Any, Final

from forebay.admin.payloads import Answer, Fate, Post, Verdict, masked, verdict
from forebay.config.alerts import Receiver
from forebay.errors import shown

MAX_ANSWER: Final = 4_096
"""Bytes of an answer that are read."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like another: the body, which is signed for this receiver, goes nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Poster:
    """The way to one receiver. Reads its `ca` when it is made: raises OSError."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        context = ssl.create_default_context(cafile=None if receiver.ca is None else str(receiver.ca))
        self._opener = urllib.request.build_opener(_NoRedirects(), urllib.request.HTTPSHandler(context=context))

    def send(self, post: Post, seconds: float) -> Verdict:
        """What became of it; never raises for what the network or the other side did. `seconds`: for each step."""
        request = urllib.request.Request(post.url, post.body, dict(post.headers), method="POST")  # noqa: S310 - http(s)
        try:
            with self._opener.open(request, timeout=seconds) as response:
                answer = _answer(response)
        except urllib.error.HTTPError as e:  # every answer but a 2xx
            with e:
                answer = _answer(e)
        except (OSError, http.client.HTTPException, ValueError) as e:
            return Verdict(Fate.AGAIN, self._why(e, seconds))
        return verdict(self.receiver, answer)

    def _why(self, error: Exception, seconds: float) -> str:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            return f"no answer within {seconds:g} s"
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, ssl.SSLError):
            return f"not reached: {cause.strerror}"
        return f"not reached: {shown(masked(self.receiver, str(cause) or type(cause).__name__), 200)}"

    def __repr__(self) -> str:
        return f"<Poster {self.receiver.name} at {self.receiver.host}>"


def _answer(response: Any) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status, headers, response.read(MAX_ANSWER))
