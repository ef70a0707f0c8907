"""What bounds an answer beside max_tokens."""

from __future__ import annotations

import json

import pytest

from forebay.api.openai import without_own_bound


@pytest.mark.parametrize("name", ["n_predict", "n_pr\\u0065dict", "\\u006e_predict"])
def test_llama_cpp_s_own_bound_is_taken_out(name: str) -> None:
    body = b'{"model":"m","%b":100000,"max_tokens":5,"messages":[]}' % name.encode()
    assert json.loads(without_own_bound(body)) == {"model": "m", "max_tokens": 5, "messages": []}


def test_other_bodies_stay_as_they_are() -> None:
    body = b'{ "model" : "m", "messages": [{"role":"user","content":"n_predict"}]}'
    assert without_own_bound(body) is body
