"""A sentence encoder in a folder, as ONNX: `BAAI/bge-small-zh-v1.5`, `intfloat/multilingual-e5-small` and the like.

The folder is laid out as Sentence Transformers and Optimum write it: `model.onnx` (or `onnx/model.onnx`),
`tokenizer.json`, and `1_Pooling/config.json`, which says how a text's vector is made of its tokens'. Without that file
it is their mean. `config_sentence_transformers.json` may name a prompt that every text begins with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from forebay.cache.semantic.embedder import EmbedderMissing
from forebay.cache.semantic.embedders.probes import languages
from forebay.cache.semantic.index import Vectors

UNREADABLE: Final = 0.34
"""Share of unknown tokens from which a text is not read."""
BATCH: Final = 32


class Onnx:
    """`longest`: tokens of a text that are looked at. Raises EmbedderMissing where the folder cannot be used."""

    def __init__(self, folder: Path, longest: int) -> None:
        model = next((file for file in (folder / "model.onnx", folder / "onnx" / "model.onnx") if file.is_file()), None)
        if model is None:
            raise EmbedderMissing(f"cache.semantic.embedder: there is no model.onnx in {folder}")
        try:
            words = (folder / "tokenizer.json").read_bytes()
            self._tokenizer = Tokenizer.from_buffer(words)
            pooling = _read(folder / "1_Pooling" / "config.json")
            self._prompt = _prompt(_read(folder / "config_sentence_transformers.json"))
            weights = model.read_bytes()
        except Exception as e:  # tokenizers raises nothing narrower
            raise EmbedderMissing(f"cache.semantic.embedder: {folder} cannot be read: {e}") from e
        self._tokenizer.enable_truncation(max(longest, 8))
        self._tokenizer.enable_padding()
        self._unknown = next(
            (i for sign in ("[UNK]", "<unk>") if (i := self._tokenizer.token_to_id(sign)) is not None), -1
        )
        self._first = bool(pooling.get("pooling_mode_cls_token"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as e:  # its errors have no common base
            raise EmbedderMissing(f"cache.semantic.embedder: {model} is no ONNX model: {e}") from e
        self._inputs = {given.name for given in self._session.get_inputs()}
        outputs = [given.name for given in self._session.get_outputs()]
        self._output = "sentence_embedding" if "sentence_embedding" in outputs else outputs[0]
        digest = blake2b(digest_size=8)
        for part in (weights, words, json.dumps([pooling, self._prompt], sort_keys=True).encode()):
            digest.update(part)
        self.id: Final = f"onnx:{folder.name}@{digest.hexdigest()}"
        self.dimensions = self.encode(("warm",)).shape[1]
        self._languages = languages(self.encode, self.dimensions)

    def knows(self, language: str) -> bool:
        return language in self._languages

    def reads(self, text: str) -> bool:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids.count(self._unknown) <= UNREADABLE * len(ids)

    def tokens(self, text: str) -> int:
        """Of what it looks at: no more than `longest`, where a longer text is cut."""
        return sum(self._tokenizer.encode(text).attention_mask)

    def encode(self, texts: Sequence[str], seconds: float = inf) -> Vectors:
        parts = [self._batch(texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)]
        return np.concatenate(parts) if parts else np.empty((0, self.dimensions), np.float32)

    def _batch(self, texts: Sequence[str]) -> Vectors:
        found = self._tokenizer.encode_batch([self._prompt + text for text in texts])
        given = {
            "input_ids": np.array([one.ids for one in found], np.int64),
            "attention_mask": np.array([one.attention_mask for one in found], np.int64),
            "token_type_ids": np.array([one.type_ids for one in found], np.int64),
        }
        (out,) = self._session.run([self._output], {name: given[name] for name in self._inputs})
        if out.ndim == 3:
            if self._first:
                out = out[:, 0]
            else:
                mask = given["attention_mask"][:, :, None].astype(np.float32)
                out = (out * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1.0)
        with np.errstate(all="ignore"):
            made: Vectors = (out / np.linalg.norm(out, axis=1, keepdims=True)).astype(np.float32)
        return made

    def close(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"<Onnx {self.id}>"


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    found = json.loads(file.read_bytes())
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} holds no object")
    return found


def _prompt(settings: dict[str, Any]) -> str:
    prompts = settings.get("prompts") or {}
    name = settings.get("default_prompt_name") or "query"
    return str(prompts.get(name, "")) if isinstance(prompts, dict) else ""
