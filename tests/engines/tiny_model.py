"""`python tiny_model.py FOLDER`: a Qwen2 of 8 million random weights, for a server that needs speed and no sense.

Run with the interpreter of a vLLM environment, whose torch and transformers it uses. The vocabulary is learned from
this Python's own library, so nothing is fetched.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 4096
CONTEXT = 2048
LAYERS = 12
"""Enough that 1,500 tokens take some seconds: with two layers an answer is over before anyone has looked."""
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}"
    + START
    + "{{ m['role'] }}\n{{ m['content'] }}"
    + END
    + "\n{% endfor %}{% if add_generation_prompt %}"
    + START
    + "assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:100]
    pairs.train(
        [str(p) for p in texts],
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[PAD, START, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pairs, eos_token=END, pad_token=PAD, model_max_length=CONTEXT, chat_template=TEMPLATE
    )


def main(folder: Path) -> None:
    words = tokenizer()
    words.save_pretrained(folder)
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(words),
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            bos_token_id=words.pad_token_id,
            eos_token_id=words.eos_token_id,
            tie_word_embeddings=True,
        )
    )
    model.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
