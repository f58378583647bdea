"""Tokenizers: one from a Hugging Face directory, or the embedded character tokenizer."""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from tokenizers.decoders import ByteLevel

from fr3e_jax.data.character_tokenizer import CharacterTokenizer, holds_character_tokenizer
from fr3e_jax.data.templates import MARK, PLAIN_CHAT, QUESTION, ChatOptions, dated
from fr3e_jax.hub import model_directory
from fr3e_jax.json_object import read_json_object
from fr3e_jax.model_folder import POINTER, is_pointer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

GENERATION_CONFIG = "generation_config.json"
_MOST_LAYERS = 10_000
THOUGHT = "<think>"
FALLBACK_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
FILES = (  # of a tokenizer directory, that are read
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
_COPIED = (  # patterns of what other programs read: llama.cpp and vLLM take tokenizer.model or tekken.json
    *("tokenizer*", "vocab*", "*.model", "*.model.v*", "*.tiktoken", "*.spm", "tekken.json", "unigram.json"),
    *("chat_template*", "additional_chat_templates/*.jinja", "chat_templates/*.jinja"),
)


class TextCodec:
    """A tokenizer as the rest of the package uses it.

    Attributes:
      tokenizer: the Hugging Face tokenizer, or the embedded one.
      stop_ids: ids that end a response: first those of `stop_at`, then ``stops_in_files``.
      stops_in_files: the tokenizer's end-of-text token, and those in generation_config.json.
      stop_texts: texts that end a response as stop tokens do, however tokens spell them.
      pad_id: filler for unused positions; the first stop id if the tokenizer has no padding token.
      rows: ids are below it in every text that is encoded.
      source: the directory it was loaded from; None for the embedded tokenizer.
      chat: the system message, options and date of the chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast | CharacterTokenizer,
        extra_stop_ids: tuple[int, ...] = (),
        source: Path | None = None,
        chat: ChatOptions = PLAIN_CHAT,
    ):
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no end-of-text token; set eos_token in its tokenizer_config.json")
        self.tokenizer, self.source, self.chat = tokenizer, source, chat
        self.stop_ids = self.stops_in_files = tuple(dict.fromkeys((tokenizer.eos_token_id, *extra_stop_ids)))
        self.pad_id = self.stop_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.rows = len(self)
        self.stop_texts: tuple[str, ...] = ()
        self._characters = _characters(tokenizer)
        # Llama's and Gemma's tokenizers put a token before every text, without which their models were never trained.
        bare = isinstance(tokenizer, CharacterTokenizer) or tokenizer.bos_token_id is None
        started = [] if bare else tokenizer("")["input_ids"][:1]
        self.opening = started if started == [getattr(tokenizer, "bos_token_id", None)] else []

    @classmethod
    def load(cls, directory: str = "", *, model: str = "", chat: ChatOptions = PLAIN_CHAT) -> TextCodec:
        """Load a Hugging Face directory or id of its hub, or the embedded tokenizer if ``directory`` is empty.

        The stop ids are the tokenizer's end of text and those in the generation_config.json of ``directory`` and of
        ``model``, the directory of the weights.

        Raises:
          FileNotFoundError: there is no tokenizer in ``directory``.
          ValueError: its files cannot be read.
        """
        if not directory:
            return cls(CharacterTokenizer(), chat=chat)
        path = model_directory(directory, "model.tokenizer")
        if not (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
            raise FileNotFoundError(
                f"{directory} has no tokenizer.json or tokenizer_config.json; set model.tokenizer to a Hugging Face "
                "tokenizer directory"
            )
        stops = _generation_stop_ids(path) + (_generation_stop_ids(model_directory(model)) if model else ())
        return cls(_read(path), stops, path, chat)

    def save(self, directory: str | Path) -> None:
        """Write a tokenizer directory: unchanged copies of the loaded files, or the embedded tokenizer's files.

        A chat template of the settings takes the place of the tokenizer's.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        if self.source is not None:
            for path in sorted(
                {path for name in (*FILES, *_COPIED) for path in self.source.glob(name) if path.is_file()}
            ):
                copy = directory / path.relative_to(self.source)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)
            if self.chat.source:
                (directory / "chat_template.jinja").write_text(self.chat.source, encoding="utf-8")
            return
        self.tokenizer.save_pretrained(directory)
        path = directory / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        # transformers 5 writes a class that version 4 lacks; both know this one.
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config.pop("backend", None)
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, continues: bool = False, tools: Sequence[Any] = ()
    ) -> str:
        """The text of a conversation before the model's answer, by the tokenizer's chat template.

        A system message at the beginning takes the place of that of the settings.

        Args:
          messages: dicts with ``"role"`` and ``"content"``.
          continues: the last message is the assistant's; the text ends with it, and the model continues it.
          tools: schemas of functions, in place of those of the settings.

        Raises:
          ValueError: the tokenizer has no chat template, or the template refuses these messages.
        """
        if isinstance(self.tokenizer, CharacterTokenizer) or not self.chat_template:
            raise ValueError(
                f"the tokenizer {'of ' + str(self.source) if self.source else 'embedded here'} has no chat template; "
                "set data.template to one that needs none or to a file (.jinja), or model.tokenizer to a chat model's"
            )
        if self.chat.system and (not messages or messages[0]["role"] != "system"):
            messages = [{"role": "system", "content": self.chat.system}, *messages]
        answer = str(messages[-1]["content"]) if continues else ""
        if self._takes_parts:
            messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
        try:
            options: dict[str, Any] = {"tools": list(tools)} if tools else {}
            text = self._applied(messages, continues=continues, **options)
            if continues and THOUGHT in answer:
                begun = self._applied(messages[:-1], **options)
                # Qwen's template puts an empty thought before the one that has begun.
                text = begun + answer if THOUGHT in text.removeprefix(begun).partition(answer.strip())[0] else text
            return text
        except Exception as error:  # a template may raise anything
            reason, owner = " ".join(str(error).split()), self.source or "the tokenizer"
            raise ValueError(
                f"the chat template of {'data.template' if self.chat.source else owner} does not take these messages "
                f"({type(error).__name__}: {reason}); mend it, or set data.template to one that needs none"
            ) from error

    @functools.cached_property
    def _takes_parts(self) -> bool:
        """Whether the chat template reads a content as a list of parts alone, and would leave out a text."""
        for content in (QUESTION, [{"type": "text", "text": QUESTION}]):
            with contextlib.suppress(Exception):  # reported when messages are rendered
                text = self._applied([{"role": "user", "content": content}])
                if QUESTION in text and "'type'" not in text:
                    return not isinstance(content, str)
        return False

    def prompts_the_model(self) -> bool:
        """Whether the chat template begins the model's turn where it is asked to."""
        asked = [{"role": "user", "content": QUESTION}]
        return self._applied(asked) != self._applied(asked, add_generation_prompt=False)

    @functools.cached_property
    def chat_template(self) -> str:
        """The source of the chat template, of the settings or the tokenizer; "" if there is none."""
        if self.chat.source or getattr(self.tokenizer, "chat_template", None) is None:
            return self.chat.source
        return cast("PreTrainedTokenizerFast", self.tokenizer).get_chat_template()

    def _applied(self, messages: Sequence[Mapping[str, Any]], *, continues: bool = False, **options: Any) -> str:
        """The text of a conversation by the chat template, at the date of the settings."""
        assert not isinstance(self.tokenizer, CharacterTokenizer)  # it has no template
        return str(
            self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                continue_final_message=continues,
                chat_template=dated(self.chat_template),
                **{"add_generation_prompt": not continues, **self.chat.options, **options},
            )
        )

    def __len__(self) -> int:
        """The number of ids: the highest and one."""
        return max(len(self.tokenizer), 1 + max(self.tokenizer.get_vocab().values()))

    def fit(self, rows: int) -> None:
        """Keep to the ids of an embedding of ``rows`` rows, of which the tokenizer may have more tokens.

        So it is with Gemma 3 of 1B, whose tokenizer is that of the networks with images, and where a padding token was
        added to a tokenizer alone.

        Raises:
          ValueError: a stop token is beyond the rows, or one that ordinary text has: none but added marks may be.
        """
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        marks = {i for i, token in added.items() if token.special or not token.content.strip().isalnum()}
        if any(i >= rows and i not in marks for i in self.tokenizer.get_vocab().values()):
            raise ValueError(
                f"the tokenizer has {len(self)} tokens, the model's embedding {rows}; "
                "set model.tokenizer to the model's own tokenizer"
            )
        if late := [stop for stop in self.stop_ids if stop >= rows]:
            raise ValueError(
                f"the stop token {late[0]} {self.decode(late[:1], special_tokens=True)!r} is beyond the model's "
                f"embedding of {rows} rows; correct rollout.stop_tokens, eos_token_id in {GENERATION_CONFIG} or "
                f"eos_token in tokenizer_config.json of {self.source or 'the model'}, or set model.tokenizer to its own"
            )
        self.rows = rows
        if self.pad_id >= rows:
            self.pad_id = self.stop_ids[0]

    def stop_at(self, tokens: Sequence[str], texts: Sequence[str]) -> None:
        """End responses also with these tokens (by text or id), of which the first also ends demonstrations, and texts.

        Raises:
          ValueError: there is no such token, or the vocabulary cannot spell a text.
        """
        vocabulary = self.tokenizer.get_vocab()
        chosen = [int(token) if token.isdecimal() else vocabulary.get(token, -1) for token in tokens]
        if unknown := [token for token, token_id in zip(tokens, chosen, strict=True) if not 0 <= token_id < len(self)]:
            added = [token.content for token in getattr(self.tokenizer, "added_tokens_decoder", {}).values()]
            nearest = difflib.get_close_matches(unknown[0], added, n=1)
            raise ValueError(
                f"rollout.stop_tokens has {unknown[0]!r}, which is no token of the tokenizer, nor an id below "
                + f"{len(self)}; "
                + (f"nearest: {nearest[0]!r}" if nearest else "rollout.stop_texts ends responses with any text")
            )
        self.stop_ids, self.stop_texts = tuple(dict.fromkeys((*chosen, *self.stop_ids))), tuple(texts)
        for text in texts:
            try:
                self.check_characters(text)
            except ValueError as error:
                raise ValueError(f"rollout.stop_texts: {error}") from None
            if not text:
                raise ValueError("rollout.stop_texts has an empty text, which would end every response at once")

    def _check_rows(self, ids: list[int]) -> list[int]:
        """``ids`` as they are; raises ValueError for one that the model's embedding lacks."""
        if late := [token for token in ids if token >= self.rows]:
            raise ValueError(
                f"the text has the token {self.decode(late[:1], special_tokens=True)!r} (id {late[0]}), and the "
                f"model's embedding has {self.rows} rows; change the text, or set model.path to a model with that token"
            )
        return ids

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` alone.

        Raises:
          ValueError: the vocabulary cannot spell a character, or the model's embedding lacks a token.
        """
        self.check_characters(text)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        # The wrapper's unk_token will not do: byte-level tokenizers declare one that their model never emits.
        unknown = getattr(self.tokenizer.backend_tokenizer.model, "unk_token", None)
        if unknown is not None:
            unknown_id = self.tokenizer.convert_tokens_to_ids(unknown)
            for token, (start, _) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
                if token == unknown_id:
                    raise _unknown(text, start, f"it would become {unknown}")
        return self._check_rows(encoded["input_ids"])

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a prompt: `encode`, after the token that the tokenizer opens every text with, if it has one.

        A chat template that writes this token itself adds no second one.
        """
        ids = self.encode(text)
        return ids if ids[: len(self.opening)] == self.opening else self._check_rows(self.opening) + ids

    def check_characters(self, text: str) -> None:
        """Raise ValueError at a character that no token spells, without encoding: half of a surrogate pair, or one
        that a tokenizer of single characters lacks."""
        if self._characters is not None:
            for position, character in enumerate(text):
                if character not in self._characters:
                    raise _unknown(text, position, f"expected only {''.join(sorted(self._characters))!r}")
        elif not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise _unknown(text, error.start, "half of a surrogate pair is no character") from None

    def encode_foreign(self, text: str, *, marks: bool = False) -> list[int]:
        """Token ids of text from elsewhere, without special tokens and what vocabulary or embedding cannot spell.

        So no output of a tool can end a response or open another turn of a conversation. The marks that the chat
        template writes are left out, too, unless ``marks``: that is for texts of the settings.
        """
        text = text.encode(errors="ignore").decode()  # without halves of surrogate pairs
        if self._characters is not None:
            text = "".join(character for character in text if character in self._characters)
        special = set(self.tokenizer.all_special_ids) | set(self.stop_ids)
        if not marks:
            special |= self._mark_ids
            while self._spelled_marks is not None and (shorter := self._spelled_marks.sub("", text)) != text:
                text = shorter  # in which another mark may have come together
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] if text else []
        return [token for token in ids if token not in special and token < self.rows]

    def without_marks(self, text: str) -> str:
        """Text from elsewhere without special tokens and marks of turns, for a place in the chat template."""
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        special = {*self.tokenizer.all_special_ids, *self.stop_ids, *self._mark_ids}
        marks = {added[i].content for i in special if i in added} - {""}
        pattern = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or "(?!)")
        while (shorter := (self._spelled_marks or pattern).sub("", pattern.sub("", text))) != text:
            text = shorter  # in which another mark may have come together
        return text

    @functools.cached_property
    def _template_text(self) -> str:
        """The source of the chat template, or of all if there are several, and a conversation, which it may spell."""
        template = self.chat.source or getattr(self.tokenizer, "chat_template", None) or ""
        text = template if isinstance(template, str) else "\n".join(map(str, template.values()))
        with contextlib.suppress(Exception):  # reported when messages are rendered
            text += self._applied([{"role": role, "content": QUESTION} for role in ("user", "assistant")])
        return text

    @functools.cached_property
    def _mark_ids(self) -> set[int]:
        """Added tokens that are special, or that the chat template writes."""
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        return {i for i, token in added.items() if token.special or token.content in self._template_text}

    @functools.cached_property
    def _spelled_marks(self) -> re.Pattern[str] | None:
        """The marks of the chat template that are no added tokens, so that ordinary tokens spell them."""
        added = {token.content for token in getattr(self.tokenizer, "added_tokens_decoder", {}).values()}
        marks = sorted(set(MARK.findall(self._template_text)) - added)
        return re.compile("|".join(map(re.escape, marks))) if marks else None

    def token_bytes(self, rows: int = 0) -> list[bytes]:
        """The bytes of each token as it stands inside a text, special tokens included; of ``rows`` ids if it is set.

        A token of bytes may be part of a character. A word that begins with a space keeps it, as a tokenizer's decode
        of the token alone would not.
        """
        if rows:
            return [*self.token_bytes()[:rows], *[b""] * (rows - len(self))]
        return self._spelled_singly if self._pieces is None else self._pieces[True].tolist()

    @functools.cached_property
    def _spelled_singly(self) -> list[bytes]:
        """`token_bytes` of a tokenizer whose texts are not its tokens' bytes in turn."""
        backend = self.tokenizer.backend_tokenizer
        if "ByteLevel" in repr(backend.decoder):  # within a sequence of decoders
            return _byte_level_tokens(backend)
        texts = [self.decode([token], special_tokens=True) for token in range(len(self))]
        before = next((i for i, text in enumerate(texts) if text.isascii() and text.isalnum()), None)
        if before is not None:
            texts = [
                self.decode([before, token], special_tokens=True).removeprefix(texts[before])
                for token in range(len(self))
            ]
        spelled = [text.encode(errors="replace") for text in texts]
        for token, token_id in self.tokenizer.get_vocab().items():
            if FALLBACK_BYTE.fullmatch(token):
                spelled[token_id] = bytes([int(token[3:5], 16)])
        return spelled

    def decode(self, ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """The text of ``ids``, without stop, padding and other special tokens unless ``special_tokens``."""
        numbers = np.asarray(ids, np.int64)
        if self._pieces is not None:
            pieces = self._pieces[special_tokens]
            # A network may have more ids than the tokenizer; those say nothing.
            return b"".join(pieces[numbers[numbers < len(pieces)]].tolist()).decode("utf-8", "replace")
        # The wrapper's decode takes several times as long for the same text, and a step decodes every rollout.
        return self.tokenizer.backend_tokenizer.decode(numbers.tolist(), skip_special_tokens=not special_tokens)

    @functools.cached_property
    def _pieces(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The bytes of each token, without and with special tokens; None unless texts are their tokens' bytes in turn.

        Joining them takes a fifteenth of the time of the tokenizer's own decode, which spells each token anew.
        """
        backend = self.tokenizer.backend_tokenizer
        if not isinstance(backend.decoder, ByteLevel):
            return None
        special = {token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special}
        pieces = _byte_level_tokens(backend)
        plain = [b"" if token_id in special else piece for token_id, piece in enumerate(pieces)]
        return np.array(plain, object), np.array(pieces, object)


def _byte_level_tokens(backend: Any) -> list[bytes]:
    """The bytes of each token of a byte-level vocabulary, special tokens included."""
    byte_of = _bytes_of_characters()

    def spelled(token: str) -> bytes:
        try:
            return bytes([byte_of[character] for character in token])
        except KeyError:  # an added token with other characters
            return token.encode()

    every = {token_id: spelled(token) for token, token_id in backend.get_vocab(with_added_tokens=True).items()}
    return [every.get(token_id, b"") for token_id in range(max(every, default=-1) + 1)]


def _bytes_of_characters() -> dict[str, int]:
    """The byte of each character in which byte-level tokenizers spell their tokens (GPT-2's alphabet).

    Printable characters of Latin-1 stand for their own byte, the other bytes for characters from 256 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _read(path: Path) -> PreTrainedTokenizerFast | CharacterTokenizer:
    file = path / "tokenizer_config.json"
    if file.is_file() and (auto_map := read_json_object(file).get("auto_map")):
        raise ValueError(
            f"{file} names custom code ({json.dumps(auto_map)}), which is never run; set model.tokenizer to a "
            "directory whose tokenizer.json needs none"
        )
    _check_layers(path / "config.json")
    more = [name for name in FILES[2:] if (path / name).exists()]
    if not more and holds_character_tokenizer(path):
        return CharacterTokenizer()
    from transformers import AutoTokenizer  # half a second, which runs with the embedded tokenizer save

    try:
        # Without the last argument, a directory with code of its own makes transformers ask on standard input.
        loaded = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        return cast("PreTrainedTokenizerFast", loaded)
    except Exception as error:  # the Rust library raises plain exceptions
        if pointers := [name for name in FILES if (path / name).is_file() and is_pointer(path / name)]:
            raise ValueError(f"{path / pointers[0]} {POINTER}") from None
        reason = " ".join(str(error).split())  # some messages of transformers have several lines
        raise ValueError(
            f"the tokenizer in {path} cannot be read ({type(error).__name__}: {reason}); copy its files again, or set "
            "model.tokenizer to another directory"
        ) from error


def _check_layers(file: Path) -> None:
    """Refuse a config.json with an absurd number of layers: transformers lists them all to find a tokenizer's class."""
    layers = read_json_object(file).get("num_hidden_layers") if file.is_file() else None
    if isinstance(layers, int) and layers > _MOST_LAYERS:
        raise ValueError(f"{file}: num_hidden_layers={str(layers)[:20]} is beyond {_MOST_LAYERS}; copy the file again")


def _characters(tokenizer: PreTrainedTokenizerFast | CharacterTokenizer) -> frozenset[str] | None:
    """The alphabet of a tokenizer whose tokens are all single characters; None for any other."""
    tokens = tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)
    if any(len(token) > 1 for token in tokens) or len(tokens) >= 256:  # 256 tokens are bytes, which spell everything
        return None
    return frozenset(tokenizer.convert_tokens_to_string([token]) for token in tokens)


def _unknown(text: str, position: int, expected: str) -> ValueError:
    start, end = max(position - 40, 0), position + 40
    shown = text if len(text) <= 80 else "..." * (start > 0) + text[start:end] + "..." * (end < len(text))
    return ValueError(
        f"character {text[position]!r} at position {position} of {shown!r} is not in the tokenizer's vocabulary: "
        f"{expected}; change the text, or set model.tokenizer to a tokenizer that has it"
    )


def _generation_stop_ids(path: Path) -> tuple[int, ...]:
    file = path / GENERATION_CONFIG
    eos = read_json_object(file).get("eos_token_id") if file.is_file() else None
    stops = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if wrong := [stop for stop in stops if type(stop) is not int or stop < 0]:
        raise ValueError(
            f"{file} has eos_token_id={json.dumps(wrong[0])}; expected a token id (a whole number of at least 0), or "
            "a list of them"
        )
    return tuple(stops)
