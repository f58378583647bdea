"""Stop texts end answers exactly where the text completes them, in samples and in branches, however tokens spell it."""

from __future__ import annotations

import dataclasses

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fr3e_jax.api.policy import Policy

STOPS = ["答", "ab a", "b b"]
TOKENS = ["<eos>", "a", "b", "Ġ", *"çŃĶ", "ab", "Ġa", "çŃ", "ŃĶ", "ĶĠ"]  # the bytes of 答 are spelled çŃĶ


@pytest.fixture(scope="module")
def policies(tiny_run, tmp_path_factory):
    """Policies of the same random weights: without stop texts, and with them."""
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    directory = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>").save_pretrained(directory)
    config = tiny_run.config(model__tokenizer=str(directory), rollout__max_response_tokens=60)
    ended = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, stop_texts=STOPS))
    return Policy(config), Policy(ended)


def cut(policy, token_ids):
    """Tokens up to that which completes a stop text, and the text before it; None if none is complete."""
    for length in range(1, len(token_ids) + 1):
        text = policy.texts.codec.decode(token_ids[:length], special_tokens=True)
        places = [text.find(stop) for stop in STOPS if stop in text]
        if places:
            return token_ids[:length].tolist(), text[: min(places)]
    return None


def test_samples_and_branches_end_where_a_stop_text_is_complete(policies):
    free, ended = policies
    answers = free.sample(["a", "b a", "ab"], n=40, seed=3)
    stopped = ended.sample(["a", "b a", "ab"], n=40, seed=3)
    ends = [cut(free, answer.token_ids) for answer in answers]
    assert sum(end is not None for end in ends) > 10
    for answer, other, end in zip(answers, stopped, ends, strict=True):
        expected = (answer.token_ids.tolist(), answer.text) if end is None else end
        assert (other.token_ids.tolist(), other.text) == expected
        assert other.finished == (answer.finished or end is not None)
    seen = 0
    bases = [(a, b) for a, b, end in zip(answers, stopped, ends, strict=True) if end and len(b) > 4][:3]
    for base, other in bases:
        places = list(range(1, len(other)))  # some of them inside of the stop text
        free_states, states = (p.branch(c, places, n=3, seed=5) for p, c in ((free, base), (ended, other)))
        for free_state, state in zip(free_states, states, strict=True):
            for whole, branch in zip(free_state, state, strict=True):
                end = cut(free, whole.token_ids)
                seen += end is not None
                assert (branch.token_ids.tolist(), branch.text) == (end or (whole.token_ids.tolist(), whole.text))
    assert seen > 10
