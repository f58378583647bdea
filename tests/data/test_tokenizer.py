"""The embedded tokenizer has one token per character, loses nothing silently, and is the same however it is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from fr3e_jax.data.character_tokenizer import CHARACTERS, CharacterTokenizer, character_tokenizer
from fr3e_jax.data.tokenizer import TextCodec
from tests.data.test_foreign_text import codec as layout

TEXT = "3+4*2 - 5>\n(6/.5)=12%" + CHARACTERS


def test_ids_are_pad_eos_then_one_per_character():
    codec = TextCodec.load()
    assert codec.encode(CHARACTERS) == list(range(2, 2 + len(CHARACTERS)))
    assert (codec.pad_id, codec.stop_ids, len(codec)) == (0, (1,), 2 + len(CHARACTERS))
    assert len(codec) <= 32


def test_decoding_restores_the_text_without_special_tokens():
    codec = TextCodec.load()
    assert codec.decode(codec.encode(TEXT)) == TEXT
    assert codec.decode([codec.pad_id, *codec.encode("1 2"), codec.stop_ids[0], codec.pad_id]) == "1 2"
    assert codec.encode("") == [] and codec.decode([]) == ""


@pytest.mark.parametrize("special_tokens", [True, False])
def test_decoded_text_equals_that_of_transformers(special_tokens):
    codec = TextCodec.load()
    ids = np.array([codec.pad_id, *codec.encode("1 + 2.\n 3 )"), codec.stop_ids[0], codec.pad_id], np.int32)
    whole = character_tokenizer()
    wanted = whole.decode(ids, skip_special_tokens=not special_tokens, clean_up_tokenization_spaces=False)
    assert codec.decode(ids, special_tokens=special_tokens) == wanted
    assert ("<pad>" in wanted) == special_tokens


WARM_STARTS = Path(__file__).resolve().parents[2] / "warm_starts"


@pytest.mark.parametrize("name", ["order", "order_16", "order_long"])
def test_the_embedded_tokenizer_of_a_directory_is_that_of_transformers(name):
    """It is known by its files and read without transformers."""
    codec = TextCodec.load(str(WARM_STARTS / name))
    assert isinstance(codec.tokenizer, CharacterTokenizer)
    wanted = TextCodec(AutoTokenizer.from_pretrained(WARM_STARTS / name), codec.stop_ids[1:], codec.source)
    for fact in ("pad_id", "stop_ids", "_characters"):
        assert getattr(codec, fact) == getattr(wanted, fact), fact
    assert (len(codec), codec.token_bytes()) == (len(wanted), wanted.token_bytes())
    own, whole = codec.tokenizer, wanted.tokenizer
    assert set(own.all_special_ids) == set(whole.all_special_ids) and own.get_vocab() == whole.get_vocab()
    for text in (TEXT, CHARACTERS * 3, "", "\n\n  %"):
        assert codec.encode(text) == wanted.encode(text)
    for text in ("1<eos>+2", "<pad>3", "x4\ud800é5"):
        assert codec.encode_foreign(text) == wanted.encode_foreign(text)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("tokenizer_config.json", '"unk_token"', '"chat_template": "{{ messages }}", "unk_token"'),
        ("tokenizer_config.json", '"eos_token": "<eos>"', '"eos_token": "9"'),
        ("tokenizer.json", '"special": true', '"special": false'),
        ("tokenizer.json", '"normalizer": null', '"normalizer": {"type": "Lowercase"}'),
        ("chat_template.jinja", None, "{{ messages }}"),
    ],
)
def test_a_directory_that_differs_from_the_embedded_tokenizer_is_read_by_transformers(tmp_path, file, old, new):
    TextCodec.load().save(tmp_path)
    assert isinstance(TextCodec.load(str(tmp_path)).tokenizer, CharacterTokenizer)
    text = (tmp_path / file).read_text() if old else ""
    assert old is None or old in text
    (tmp_path / file).write_text(text.replace(old, new) if old else new)
    assert isinstance(TextCodec.load(str(tmp_path)).tokenizer, PreTrainedTokenizerFast)


@pytest.fixture(scope="module")
def byte_level() -> TextCodec:
    """A tokenizer as Qwen's: bytes of several characters are split among tokens, and some tokens are added."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = ["the cat sat on the mat — naïve 漢字 🙂🙃 été\t\x01\xad\n"] * 5
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    whole.add_tokens(["<think> 漢", AddedToken("<|im|>", special=True), "Ġodd"])
    return TextCodec(whole)


@pytest.mark.parametrize("special_tokens", [True, False])
def test_random_tokens_decode_as_with_the_tokenizer_itself(byte_level, special_tokens):
    """Cut characters, lone bytes, added and special tokens, and ids beyond the vocabulary, which say nothing."""
    rng = np.random.default_rng(0)
    for length in [0, 1, *rng.integers(1, 60, 2_000)]:
        ids = rng.integers(0, len(byte_level) + 3, length).astype(np.int32)
        backend = byte_level.tokenizer.backend_tokenizer
        wanted = backend.decode(ids.tolist(), skip_special_tokens=not special_tokens)
        assert byte_level.decode(ids, special_tokens=special_tokens) == wanted, ids.tolist()


@pytest.mark.parametrize(
    ("text", "character", "position"), [("3x4", "x", 1), ("1+2é", "é", 3), ("7\r\n", "\r", 1), ("1<eos>", "<", 1)]
)
def test_unknown_character_is_an_error_with_position_and_vocabulary(text, character, position):
    with pytest.raises(ValueError) as raised:
        TextCodec.load().encode(text)
    message = str(raised.value)
    assert message.startswith(f"character {character!r} at position {position} of {text!r} is not in the tokenizer")
    assert all(repr(known)[1:-1] in message for known in CHARACTERS)


@pytest.mark.parametrize("config", [None, {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}])
def test_saved_tokenizer_is_identical_when_loaded_beside_any_model(tmp_path, config):
    """Saved by the codec, for transformers 4 and 5."""
    original = character_tokenizer()
    TextCodec.load().save(tmp_path)
    saved = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert saved["tokenizer_class"] == "PreTrainedTokenizerFast" and "backend" not in saved
    if config:
        (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encode(TEXT) == original.encode(TEXT) == TextCodec.load(str(tmp_path)).encode(TEXT)
    assert loaded.decode(loaded.encode(TEXT)) == TEXT
    assert loaded.get_vocab() == original.get_vocab()
    assert (loaded.pad_token_id, loaded.eos_token_id, len(loaded)) == (0, 1, len(original))
    with pytest.raises(ValueError, match="character 'x' at position 1"):
        TextCodec.load(str(tmp_path)).encode("3x4")


def test_stop_ids_include_those_of_the_generation_config(tmp_path):
    character_tokenizer().save_pretrained(tmp_path)
    for stops, expected in (([1, 19, 1], (1, 19)), (19, (1, 19)), (None, (1,))):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
        assert TextCodec.load(str(tmp_path)).stop_ids == expected


def test_stop_ids_include_those_of_a_separate_weights_directory(tmp_path):
    character_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    codec = TextCodec.load(str(tmp_path / "tokenizer"), model=str(tmp_path / "weights"))
    assert codec.stop_ids == (1, 7) and TextCodec.load(str(tmp_path / "tokenizer")).stop_ids == (1,)


def test_directory_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer\.json or tokenizer_config\.json; set model\."):
        TextCodec.load(str(tmp_path))


def word_tokenizer(**special):
    vocabulary = {"[UNK]": 0, "</s>": 1, "two": 2, "plus": 3}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", **special)


def test_text_that_needs_the_unknown_token_is_an_error():
    codec = TextCodec(word_tokenizer(eos_token="</s>"))
    assert codec.encode("two plus two") == [2, 3, 2]
    with pytest.raises(ValueError, match=r"character 's' at position 9 of 'two plus six' .*would become \[UNK\]"):
        codec.encode("two plus six")


def test_tokenizer_without_padding_pads_with_its_stop_token_and_without_a_stop_token_is_an_error():
    assert TextCodec(word_tokenizer(eos_token="</s>")).pad_id == 1
    with pytest.raises(ValueError, match="no end-of-text token; set eos_token"):
        TextCodec(word_tokenizer())


CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{{ '<|me|>' if add_generation_prompt }}"


def chat_directory(path, template=CHAT):
    """A tokenizer directory as another program leaves it: odd formatting, its own template, further files."""
    character_tokenizer().save_pretrained(path)
    (path / "chat_template.jinja").write_text(template)
    config = json.loads((path / "tokenizer_config.json").read_text()) | {"added_by": "somebody"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "merges.txt").write_text("#version: 0.2\n")
    (path / "notes.txt").write_text("not a tokenizer's")
    return path


def test_conversation_is_rendered_up_to_the_answer(tmp_path):
    codec = TextCodec.load(str(chat_directory(tmp_path)))
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}]
    assert codec.render_chat(messages) == "<|system|>Add.\n<|user|>1+1\n<|me|>"


# The chat templates of Llama 3 and Gemma as their tokenizers have them, for conversations without tools and dates.
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def opening_tokenizer(path, template):
    """A byte-level tokenizer that opens every text with <bos>, as Llama's and Gemma's do."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens(["<bos>", "<eos>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 256)]
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>")
    wrapped.chat_template = template
    wrapped.save_pretrained(path)
    return TextCodec.load(str(path))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            LLAMA3,
            "<bos><|start_header_id|>user<|end_header_id|>\n\n1+1<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (GEMMA, "<bos><start_of_turn>user\n1+1<end_of_turn>\n<start_of_turn>model\n"),
    ],
    ids=["llama3", "gemma"],
)
def test_prompt_begins_once_with_the_token_that_opens_every_text(tmp_path, template, text):
    codec = opening_tokenizer(tmp_path, template)
    chat = codec.render_chat([{"role": "user", "content": " 1+1 "}])
    assert chat == text
    ids = codec.encode_prompt(chat)
    assert ids == codec.encode(chat) and ids[0] == 256 and 256 not in ids[1:]
    assert codec.encode_prompt("1+1") == [256, *codec.encode("1+1")] and 256 not in codec.encode("1+1")
    if template is GEMMA:
        with pytest.raises(ValueError, match="does not take these messages .TemplateError: System role not supported"):
            codec.render_chat([{"role": "system", "content": "Add."}])


def test_prompt_of_a_tokenizer_without_an_opening_token_is_its_text():
    assert TextCodec.load().encode_prompt(TEXT) == TextCodec.load().encode(TEXT)


def test_missing_or_refusing_chat_template_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="the tokenizer embedded here has no chat template; set data.template"):
        TextCodec.load().render_chat([{"role": "user", "content": "1"}])
    codec = TextCodec.load(str(chat_directory(tmp_path, "{{ raise_exception('users only') }}")))
    with pytest.raises(ValueError, match=f"template of {tmp_path} does not take these messages .TemplateError: users"):
        codec.render_chat([{"role": "user", "content": "1"}])


def test_loaded_tokenizer_is_saved_unchanged(tmp_path):
    source = chat_directory(tmp_path / "source")
    TextCodec.load(str(source)).save(tmp_path / "copy")
    copied = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    wanted = {path.name: path.read_bytes() for path in source.iterdir() if path.name != "notes.txt"}
    assert copied == wanted and {"chat_template.jinja", "tokenizer.json", "merges.txt"} <= copied.keys()


def test_unknown_character_in_a_long_text_is_shown_with_its_surroundings_only():
    with pytest.raises(ValueError) as raised:
        TextCodec.load().encode("1+" * 10_000 + "x" + "+1" * 10_000)
    assert "character 'x' at position 20000 of '...1+1+" in str(raised.value) and len(str(raised.value)) < 400


def test_half_of_a_surrogate_pair_is_an_unknown_character_and_foreign_text_loses_it():
    """A tokenizer of all bytes spells every character, and raises TypeError for a text that no encoding has."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<eos>"]
    bytewise = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    codec = TextCodec(PreTrainedTokenizerFast(tokenizer_object=bytewise, eos_token="<eos>"))
    assert len(codec.encode("1é")) == 3
    for read in (codec.encode, codec.check_characters):
        with pytest.raises(ValueError, match=r"^character '\\ud800' at position 2 of '1é\\ud8002' is not in the"):
            read("1é\ud8002")
    assert codec.encode_foreign("1é\ud8002") == codec.encode("1é2")


def directory_with_code(path, *, model_type: str):
    """A tokenizer directory whose files name a class in a file of their own; importing it writes ``ran``."""
    TextCodec.load().save(path)
    config = json.loads((path / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    code = {"AutoConfig": "own.OwnConfig", "AutoTokenizer": ["own.Own", None]}
    (path / "config.json").write_text(json.dumps({"model_type": model_type, "auto_map": code}))
    (path / "own.py").write_text(f"open({str(path / 'ran')!r}, 'w')\nOwn = OwnConfig = None\n")
    return path


@pytest.mark.parametrize("model_type", ["own", "qwen2"])
@pytest.mark.parametrize("answer", [b"y\n", None], ids=["yes", "closed"])
def test_code_of_a_tokenizer_directory_is_refused_without_a_question(tmp_path, model_type, answer):
    path = directory_with_code(tmp_path, model_type=model_type)
    script = f"""if True:
        import os, sys
        from fr3e_jax.data.tokenizer import TextCodec
        if {answer is None}:
            os.close(0)
        try:
            TextCodec.load({str(path)!r})
        except ValueError as error:
            sys.exit(str(error))
    """
    ended = subprocess.run([sys.executable, "-c", script], input=answer or b"", capture_output=True, timeout=300)
    lines = ended.stderr.decode().splitlines()
    assert ended.returncode == 1 and ended.stdout == b"" and not (path / "ran").exists()
    assert len(lines) == 1 and str(path) in lines[0] and "custom code" in lines[0]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1]", "holds a list"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"eos_token_id": "1"}', 'eos_token_id="1"'),
        (b'{"eos_token_id": [1, -1]}', "eos_token_id=-1"),
        (b'{"eos_token_id": 1.0}', "eos_token_id=1.0"),
        (b'{"eos_token_id": {"a": 1}}', "eos_token_id={"),
    ],
)
def test_broken_generation_config_is_named_in_one_line(tmp_path, content, named):
    TextCodec.load().save(tmp_path)
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(ValueError) as error:
        TextCodec.load(str(tmp_path))
    message = str(error.value)
    assert str(tmp_path / "generation_config.json") in message and named in message and "\n" not in message


def test_deeply_nested_tokenizer_config_is_named_in_one_line(tmp_path):
    TextCodec.load().save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="tokenizer_config.json.*nested too deeply"):
        TextCodec.load(str(tmp_path))


def test_absurd_number_of_layers_beside_a_tokenizer_is_refused_at_once(tmp_path):
    """transformers would list a billion layers to find the tokenizer's class."""
    character_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "num_hidden_layers": 1000000000}')
    with pytest.raises(ValueError, match="config.json: num_hidden_layers=1000000000 is beyond 10000"):
        TextCodec.load(str(tmp_path))


@pytest.mark.parametrize(
    ("special", "ordinary", "rows", "named", "pad_id"),
    [
        (["<image_soft_token>"], [], 257, {}, 256),  # Gemma 3
        (["<a>", "<b>", "<c>"], [], 257, {}, 256),
        (["[PAD]"], [], 257, {"pad_token": "[PAD]"}, 256),  # a padding token that was added to the tokenizer alone
        ([], ["<think>"], 257, {}, 256),
        (["<a>"], [], 300, {}, 256),
    ],
)
def test_added_tokens_beyond_the_embedding_are_errors_in_texts_and_dropped_from_foreign_ones(
    special, ordinary, rows, named, pad_id
):
    codec = layout(special, ordinary, **named)
    codec.fit(rows)
    assert codec.pad_id == pad_id and codec.encode("a b") == codec.encode_prompt("a b")
    mark = (special + ordinary)[-1]
    if rows < len(codec):
        with pytest.raises(ValueError, match=rf"the token '.*' \(id {len(codec) - 1}\), and .* has {rows} rows"):
            codec.encode_prompt(f"a{mark}b")
    assert codec.decode(codec.encode_foreign(f"a{mark}b")) == "ab"


@pytest.mark.parametrize(
    ("rows", "ordinary", "expected"),
    [
        (
            256,
            [],
            "the stop token 256 '<eos>' is beyond the model's embedding of 256 rows; correct rollout.stop_tokens",
        ),
        (257, ["word"], "the tokenizer has 258 tokens, the model's embedding 257; set model.tokenizer to"),
        (100, [], "the tokenizer has 257 tokens, the model's embedding 100"),
    ],
)
def test_an_embedding_without_a_row_for_words_or_a_stop_token_is_refused(rows, ordinary, expected):
    with pytest.raises(ValueError) as refused:
        layout([], ordinary).fit(rows)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    "files",
    [
        ["tokenizer.model", "special_tokens_map.json", "added_tokens.json"],
        ["vocab.json", "merges.txt", "qwen.tiktoken"],
        ["tekken.json", "tokenizer.model.v3"],
        ["spiece.model", "sentencepiece.bpe.model", "source.spm", "vocab.txt"],
        ["chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja"],
    ],
)
def test_every_file_of_a_tokenizer_is_copied_and_no_other(tmp_path, files):
    for name in (*files, "model.safetensors", "README.md", "config.json"):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_text(name)
    codec = TextCodec.load()
    codec.source = tmp_path / "source"
    codec.save(tmp_path / "copy")
    copies = {path.relative_to(tmp_path / "copy").as_posix(): path for path in (tmp_path / "copy").rglob("*.*")}
    assert copies.keys() == {*files} and all(path.read_text() == name for name, path in copies.items())
