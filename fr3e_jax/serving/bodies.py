"""The bodies of requests, checked: what the routes take, and the answer to what they do not.

Bodies are those of the OpenAI API. A field that would change the answer and is not served is refused (422); so is an
unknown one (400), with the nearest name, because a misspelt ``max_token`` must not pass in silence.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError


class RequestError(Exception):
    """A request that gets an error.

    Attributes:
      param: the field at fault, or None.
      status: of HTTP.
      code: a word for programs.
    """

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str = "invalid_value"):
        super().__init__(message)
        self.param, self.status, self.code = param, status, code

    def body(self) -> dict[str, Any]:
        """The error as the OpenAI API writes it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


_IGNORED = {  # they change no token
    *("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"),
    *("prompt_cache_retention", "verbosity"),
}
_UNSERVED = {
    *("frequency_penalty", "presence_penalty", "logit_bias", "suffix", "best_of", "prediction", "reasoning_effort"),
    *("tools", "tool_choice", "functions", "function_call", "response_format", "modalities", "audio"),
}
_NOTHING = (None, 0, "", [], {}, "none", "auto", ["text"], {"type": "text"})  # values that ask for nothing
_EXPECTED = {  # of fields of several types
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
    "stop": "a text or a list of at most 16 texts, none of them empty",
}

_Token = Annotated[int, Field(ge=0)]
_Text = Annotated[str, Field(min_length=1)]


class _StreamOptions(BaseModel):
    include_usage: bool = False
    include_obfuscation: bool = False


class Body(BaseModel):
    """The fields of all routes that sample."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    model: str | None = None
    n: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    seed: int | None = Field(None, ge=0, lt=2**31)
    stop: _Text | Annotated[list[_Text], Field(max_length=16)] | None = None
    stop_token_ids: Annotated[list[_Token], Field(max_length=16)] | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    return_token_ids: bool = False

    @property
    def stop_texts(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class CompletionBody(Body):
    """``/v1/completions``."""

    prompt: str | list[str] | list[_Token] | list[list[_Token]]
    echo: bool | None = False
    logprobs: int | None = Field(None, ge=0, le=20)


class ChatBody(Body):
    """``/v1/chat/completions``."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=20)


class BranchBody(Body):
    """``/v1/branches``: answers that begin with the first ``token`` tokens of an earlier answer."""

    id: str
    choice: int = Field(0, ge=0)
    token: int = Field(ge=0)
    logprobs: int | None = Field(None, ge=0, le=20)


_Any = TypeVar("_Any", bound=Body)


def read_body(kind: type[_Any], content: bytes) -> _Any:
    """The body of a request.

    Raises:
      Refused: it is no JSON, has a wrong field, or asks for what is not served.
    """
    try:
        fields = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: {error}; expected an object", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise RequestError(f"the body is a {type(fields).__name__}; expected an object", code="invalid_json")
    if fields.get("best_of") == (fields.get("n") or 1):
        del fields["best_of"]
    if unserved := [name for name in _UNSERVED & fields.keys() if fields[name] not in _NOTHING]:
        raise RequestError(f"{unserved[0]} is not served; leave it out", unserved[0], status=422, code="not_served")
    fields = {name: value for name, value in fields.items() if name not in _IGNORED | _UNSERVED}
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _refused(kind, error.errors()[0]) from None


def _refused(kind: type[Body], error: Any) -> RequestError:
    name, field = str(error["loc"][0]), ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, kind.model_fields, n=1)
        advice = f"nearest: {near[0]}" if near else f"expected some of {', '.join(kind.model_fields)}"
        return RequestError(f"there is no field {name!r}; {advice}", name, code="unknown_field")
    if error["type"] == "missing":
        return RequestError(f"{field} is missing", name, code="missing_field")
    if name in _EXPECTED:
        return RequestError(f"{name} is not {_EXPECTED[name]}", name)
    return RequestError(f"{field} is {repr(error['input'])[:80]}: {error['msg'].lower()}", name)
