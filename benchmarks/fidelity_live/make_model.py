"""A Qwen2 of random weights for the engine under measurement: run by the engine's own Python, which has the libraries.

usage: make_model.py DIRECTORY. 19 M parameters: large enough that a step's time is arithmetic rather than the
interpreter's, small enough for hundreds of requests a minute on one core. Its words are nonsense, and each token is
whole text (its alphabet is ASCII), so that every token of an answer is an event of its stream.
"""

import sysconfig
from pathlib import Path
from sys import argv

LENGTH = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main(directory: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    texts = sorted(str(p) for p in Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ascii_ = sorted(
        {pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(i))[0][0] for i in range(128)}
    )
    trainer = trainers.BpeTrainer(
        vocab_size=4096, special_tokens=SPECIAL, initial_alphabet=ascii_, limit_alphabet=len(ascii_)
    )
    tokenizer.train(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0], model_max_length=LENGTH
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(fast),
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        bos_token_id=0,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = 2
    model.save_pretrained(directory)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(fast):,} tokens")


if __name__ == "__main__":
    main(Path(argv[1]))
