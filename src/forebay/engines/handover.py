"""How a kind of engine hands a prompt's KV from one engine to another, as far as a gateway has a part in it.

- vLLM: the prefill engine is asked first, with max_tokens 1 and `kv_transfer_params` that say do_remote_decode. Its
  answer's `kv_transfer_params` go to the decode engine as they are (vllm-project/vllm at 030ea52e,
  examples/disaggregated/disaggregated_serving/disagg_proxy_multiturn.py). Both can also serve whole requests.
- SGLang: both are asked at once, with the prefill engine's bootstrap host and port and a random room below 2^63
  (sgl-project/sglang at 001c2ae0, python/sglang/srt/disaggregation/mini_lb.py). Neither can serve a whole request.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final


class Handover(Enum):
    TRANSFER_PARAMS = "kv_transfer_params"
    BOOTSTRAP = "bootstrap"


def handover_of(kind: str) -> Handover | None:
    """By the adapter's kind; None where it has none that is known."""
    return _BY_KIND.get(kind)


_BY_KIND: Final = MappingProxyType({"vllm": Handover.TRANSFER_PARAMS, "sglang": Handover.BOOTSTRAP})
