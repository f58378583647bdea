"""The embedded tokenizer: one token per character. It works without transformers, which takes half a second to load."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from fr3e_jax.json_object import read_json_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS = "<pad>", "<eos>"
CHARACTERS = "0123456789+-*/()=.>% \n"
_SETTINGS = {"eos_token": EOS, "pad_token": PAD, "unk_token": PAD, "tokenizer_class": "PreTrainedTokenizerFast"}
_WITHOUT_EFFECT = {"clean_up_tokenization_spaces", "model_max_length"}  # of a tokenizer_config.json


class CharacterTokenizer:
    """``<pad>`` (0), ``<eos>`` (1), and a token for each of ``CHARACTERS``.

    It has the part of transformers' ``PreTrainedTokenizerFast`` that `fr3e_jax.data.tokenizer.TextCodec` needs.
    """

    pad_token_id, eos_token_id = 0, 1

    def __init__(self) -> None:
        # It is a byte-level BPE without merges, because AutoTokenizer reads any tokenizer beside a config.json of model
        # type qwen2 as a Qwen2Tokenizer, which keeps only the vocabulary.
        spelled = [{" ": "Ġ", "\n": "Ċ"}.get(character, character) for character in CHARACTERS]
        self.backend_tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate([PAD, EOS, *spelled])}, []))
        self.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.backend_tokenizer.decoder = decoders.ByteLevel()
        # It adds nothing; transformers writes it, and `holds_character_tokenizer` looks for it.
        self.backend_tokenizer.post_processor = processors.TemplateProcessing("$A", "$A $B:1", [])
        self.backend_tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in (PAD, EOS)])
        self.all_special_tokens, self.all_special_ids = [PAD, EOS], [self.pad_token_id, self.eos_token_id]

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()

    def __call__(self, text: str, **options: Any) -> dict[str, list]:
        """``input_ids`` and ``offset_mapping``; of the options only these results are known."""
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=False)
        return {"input_ids": encoded.ids, "offset_mapping": encoded.offsets}

    def get_vocab(self) -> dict[str, int]:
        """The id of each token."""
        return self.backend_tokenizer.get_vocab()

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """The id of a token; None if there is no such token."""
        return self.backend_tokenizer.token_to_id(token)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of the ids."""
        return self.backend_tokenizer.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The text of tokens that are no special ones."""
        return self.backend_tokenizer.decoder.decode(tokens)

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the files of a tokenizer directory, as transformers does."""
        character_tokenizer().save_pretrained(directory)


def character_tokenizer() -> PreTrainedTokenizerFast:
    """The embedded tokenizer as one of transformers."""
    from transformers import PreTrainedTokenizerFast  # half a second, which only those pay who save it

    # Without an unk_token, Qwen2Tokenizer would add one beyond the model's embedding. No text ever maps to it.
    return PreTrainedTokenizerFast(
        tokenizer_object=CharacterTokenizer().backend_tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=PAD,
        clean_up_tokenization_spaces=False,
    )


def holds_character_tokenizer(directory: Path) -> bool:
    """Return whether ``tokenizer.json`` and ``tokenizer_config.json`` are those of the embedded tokenizer."""
    try:
        config = read_json_object(directory / "tokenizer_config.json")
        content = read_json_object(directory / "tokenizer.json")
    except (OSError, ValueError):
        return False
    settings = {name: value for name, value in config.items() if name not in _WITHOUT_EFFECT}
    return settings == _SETTINGS and content == json.loads(CharacterTokenizer().backend_tokenizer.to_str())
