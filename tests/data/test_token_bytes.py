"""Marks of calls and turns are seen in tokens of every kind of tokenizer, outside ASCII and after a space, too."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.tools.automaton import call_table

TEXTS = [
    "x CALL(1) xCALL(2) CALL 答: 筑。 ответ: да",
    "the answer → 3 「x」 and CALL( again",
    "【x】 ответ:5 🙂 naïve",
] * 3


def byte_level():
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    )
    return backend


def byte_level_in_sequence():
    backend = byte_level()
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    return backend


def pieces(decoder):
    """A vocabulary as sentencepiece makes it: words with their space, and bytes for all other characters."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), "▁CALL", "▁CALL(", "CALL", "CALL(", "▁x"]
    words += ["▁", *"abcdefghijklmnopqrstuvwxyzCAL()0123456789.:"]
    vocabulary = {word: n for n, word in enumerate(words)}
    merges = [("C", "A"), ("CA", "L"), ("CAL", "L"), ("▁", "CALL"), ("▁CALL", "("), ("CALL", "("), ("▁", "x")]
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    backend = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoder
    return backend


def llama_decoder():
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def metaspace_decoder():
    return decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])


TOKENIZERS = {
    "byte level": byte_level,
    "byte level in a sequence": byte_level_in_sequence,
    "sentencepiece": lambda: pieces(llama_decoder()),
    "metaspace": lambda: pieces(metaspace_decoder()),
}
MARKS = [
    ("【", "】"), ("", "。"), ("ответ:", "."), (" CALL(", ")"), ("CALL(", ")"), ("答: ", "。"), ("", "筑"),
    ("「", "」"), ("→", "\n"), ("🙂", "🙂"), (" ответ", "да"), ("ï", "e"), (" x", "y"),
]  # fmt: skip


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize(("begin", "end"), MARKS)
def test_a_call_is_complete_exactly_where_its_text_is(kind, begin, end):
    codec = TextCodec(PreTrainedTokenizerFast(tokenizer_object=TOKENIZERS[kind](), eos_token="</s>"))
    table = call_table(begin, end, codec.token_bytes())
    for text in (f"x{begin}a{end} b", f"a x {begin.strip()}1{end}x", f"x CALL(y xCALL( 、【 答。 {end}{begin}c"):
        ids = codec.encode(text)
        bytes_of = [codec.token_bytes()[i] for i in ids]
        for length in range(len(ids) + 1):
            start = b"".join(bytes_of[:length])
            _, begun, rest = start.partition(begin.encode()) if begin else (b"", True, start)
            assert (table.run(np.array(ids[:length], np.int32)) == table.done) == bool(begun and end.encode() in rest)
        assert b"".join(bytes_of).decode().removeprefix(" ") == text
