"""A model in a folder, as Optimum exports one: a table of token vectors, written here field by field (onnx.proto3)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from forebay.cache.semantic.embedder import EmbedderMissing, open_embedder
from forebay.cache.semantic.embedders.probes import PROBES

SIZE = 16
WORDS = sorted({word for text in (*PROBES["en"], *PROBES["de"], "hello world") for word in text.strip("?").split()})
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def value_info(name: bytes, kind: int, *dims: bytes) -> bytes:
    shape = b"".join(field(1, field(2, dim)) for dim in dims)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, shape)))


def model(table: np.ndarray) -> bytes:
    """last_hidden_state = Gather(table, input_ids); float is 1, int64 7 in TensorProto.DataType."""
    rows, columns = table.shape
    tensor = field(1, rows) + field(1, columns) + field(2, 1) + field(8, b"table") + field(9, table.tobytes())
    node = field(1, b"table") + field(1, b"input_ids") + field(2, b"last_hidden_state") + field(4, b"Gather")
    unused = field(1, b"attention_mask") + field(2, b"seen") + field(4, b"Identity")
    graph = b"".join(
        (
            field(1, node),
            field(1, unused),
            field(2, b"g"),
            field(5, tensor),
            field(11, value_info(b"input_ids", 7, b"n", b"t")),
            field(11, value_info(b"attention_mask", 7, b"n", b"t")),
            field(12, value_info(b"last_hidden_state", 1, b"n", b"t", b"d")),
            field(12, value_info(b"seen", 7, b"n", b"t")),
        )
    )
    return field(1, 8) + field(7, graph) + field(8, field(2, 17))


def write(folder: Path, *, cls: bool = False, seed: int = 1) -> np.ndarray:
    vocabulary = {word: i for i, word in enumerate((*MARKS, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    table = np.random.default_rng(seed).normal(size=(len(vocabulary), SIZE)).astype(np.float32)
    (folder / "model.onnx").write_bytes(model(table))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_cls_token": cls, "pooling_mode_mean_tokens": not cls})
    )
    return table


def test_a_folders_model_makes_vectors_of_the_mean_of_its_tokens(tmp_path: Path) -> None:
    table = write(tmp_path / "m")
    embedder = open_embedder(f"onnx:{tmp_path}/m", "", 64)
    assert embedder.dimensions == SIZE
    ids = [2, *(len(MARKS) + WORDS.index(word) for word in ("hello", "world")), 3]
    mean = table[ids].mean(axis=0)
    alone, padded = embedder.encode(["hello world"]), embedder.encode(["hello world", "Cats like warm milk"])
    assert np.allclose(alone[0], mean / np.linalg.norm(mean), atol=1e-6)
    assert np.allclose(padded[0], alone[0], atol=1e-6)
    assert embedder.encode([]).shape == (0, SIZE)
    assert embedder.tokens("hello world") == 4


def test_the_first_token_where_the_folder_says_so(tmp_path: Path) -> None:
    table = write(tmp_path / "m", cls=True)
    found = open_embedder(f"onnx:{tmp_path}/m", "", 64).encode(["hello world"])
    assert np.allclose(found[0], table[2] / np.linalg.norm(table[2]), atol=1e-6)


def test_a_script_that_its_tokenizer_lacks_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m")
    embedder = open_embedder(f"onnx:{tmp_path}/m", "", 64)
    assert embedder.knows("en")
    assert not embedder.knows("zh")
    assert embedder.reads("hello world")
    assert not embedder.reads("怎么 开具 发票")


def test_another_models_vectors_have_another_id(tmp_path: Path) -> None:
    ids = set()
    for seed, cls in ((1, False), (2, False), (1, True)):
        write(tmp_path / "m", seed=seed, cls=cls)
        ids.add(open_embedder(f"onnx:{tmp_path}/m", "", 64).id)
    assert len(ids) == 3


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmbedderMissing, match=r"no model.onnx in .*nowhere"):
        open_embedder(f"onnx:{tmp_path}/nowhere", "", 64)
    write(tmp_path / "m")
    (tmp_path / "m" / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(EmbedderMissing, match="is no ONNX model"):
        open_embedder(f"onnx:{tmp_path}/m", "", 64)
    (tmp_path / "m" / "tokenizer.json").write_text("[]")
    with pytest.raises(EmbedderMissing, match="cannot be read"):
        open_embedder(f"onnx:{tmp_path}/m", "", 64)
