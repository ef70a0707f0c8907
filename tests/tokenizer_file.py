"""A tokenizer.json that is made in a moment."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers


def make_tokenizer(folder: Path) -> Path:
    """One that has seen little: one token for many a Chinese byte."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["the water of the reservoir"] * 10, trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path
