"""A model directory of random weights, made usable for whole training steps: a tokenizer, a stop token, problems.

python benchmarks/worded_model.py 0.5b MODELS/qwen2.5-0.5b     # the sizes of Qwen2.5-0.5B or -1.5B; needs torch
"""

from __future__ import annotations

import itertools
import json
import shutil
import string
import sys
from pathlib import Path

import numpy as np

_PAD, _EOS = "<pad>", "<eos>"
_SPACE = "\u0120"  # a space, as byte-level tokenizers write it


def add_tokenizer(source: Path, target: Path) -> Path:
    """Copy ``source`` to ``target`` with a byte-level tokenizer that fills its vocabulary with words of letters.

    Each word of two letters after a space is one token, so that a prompt of n words has n tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    target.mkdir(parents=True)
    shutil.copy(source / "model.safetensors", target)
    config = json.loads((source / "config.json").read_text()) | {"pad_token_id": 0, "eos_token_id": 1}
    (target / "config.json").write_text(json.dumps(config))
    (target / "generation_config.json").write_text(json.dumps({"pad_token_id": 0, "eos_token_id": 1}))
    vocabulary, merges = [_PAD, _EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())], []
    for letters in range(1, 4):
        for word in itertools.product(string.ascii_letters, repeat=letters):
            if len(vocabulary) < config["vocab_size"]:
                start, last = _SPACE + "".join(word[:-1]), word[-1]
                merges.append((start, last))
                vocabulary.append(start + last)
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=_PAD, eos_token=_EOS, unk_token=_PAD, clean_up_tokenization_spaces=False
    ).save_pretrained(target)
    return target


def problems(count: int, words: int) -> list[dict[str, str]]:
    """Prompts of random words. The reward of a response needs no gold answer."""
    rng, letters = np.random.default_rng(0), list(string.ascii_lowercase)
    drawn = rng.choice(letters, (count, words, 2))
    return [{"prompt": "".join(f" {a}{b}" for a, b in row), "gold": ""} for row in drawn]


_SIZES = {
    "0.5b": dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, intermediate_size=4864),
    "1.5b": dict(hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, intermediate_size=8960),
}


def random_model(size: str, target: Path) -> None:
    """Write a network of a published size with random bfloat16 weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shared = dict(num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM(Qwen2Config(**_SIZES[size], **shared, rms_norm_eps=1e-6, rope_theta=1000000.0))
    model.to(torch.bfloat16).save_pretrained(target)


if __name__ == "__main__":
    random_model(sys.argv[1], Path(sys.argv[2]))
