"""What /v1/chat/completions and /v1/completions share: the fields the API worker acts on, ids, and usage.

The body itself goes to the replica as it came; vLLM's request classes there judge every other field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from app.cluster.messages import AnyEvent, Delta, Usage
from app.protocol.stageparams import StageParams


class StreamOptions(msgspec.Struct):
    """OpenAI's `stream_options`, and vLLM's `continuous_usage_stats`: usage in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None

    @property
    def usage_mode(self) -> UsageMode:
        """Where a stream carries usage."""
        if not self.include_usage:
            return "never"
        return "always" if self.continuous_usage_stats else "last"


class GenerationRequest(msgspec.Struct):
    """The fields of a request that the API worker acts on. `model` None: the model that is served.

    `modalities` and `audio` say who answers, which judges them.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1)] | None = None
    modalities: Any = None
    audio: Any = None
    sampling_params_list: StageParams | None = None

    @property
    def usage_mode(self) -> UsageMode:
        """Where a stream carries usage."""
        return "never" if self.stream_options is None else self.stream_options.usage_mode


UsageMode = Literal["never", "last", "always"]
"""Usage in no chunk of a stream; in one chunk of its own at the end; or there and in every chunk before."""


class Identity(msgspec.Struct, frozen=True):
    """What every chunk of an answer repeats. `created` is Unix time in seconds, `model` the name the client knows."""

    id: str
    created: int
    model: str

    def opening(self, kind: str) -> bytes:
        """The JSON object of an answer up to its `choices`, without a closing brace."""
        head = _Head(id=self.id, object=kind, created=self.created, model=self.model)
        return msgspec.json.encode(head)[:-1] + b","


class _Head(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str


class Tally:
    """Counts the tokens of one request: what the engine says, or the tokens of its deltas until it says something."""

    def __init__(self) -> None:
        self._usage = Usage(0, 0)
        self._reported = False

    def count(self, event: AnyEvent) -> None:
        """Take a Delta or a Usage into account; other events count nothing."""
        if isinstance(event, Delta):
            self.add(event.tokens)
        elif isinstance(event, Usage):
            self._usage, self._reported = event, True

    def add(self, tokens: int) -> None:
        """The tokens of a Delta. An engine that reports Usage reports it before the deltas that it covers."""
        if not self._reported:
            self._usage.completion_tokens += tokens

    def encode(self) -> bytes:
        """OpenAI's usage object."""
        prompt, completion = self._usage.prompt_tokens, self._usage.completion_tokens
        counts = b'"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d'
        details = members(self._usage.details)
        return b"{" + joined(counts % (prompt, completion, prompt + completion), details) + b"}"


def members(json_object: bytes) -> bytes:
    """What stands between the braces of an encoded JSON object; b"" of an empty or absent one."""
    return json_object.strip()[1:-1].strip()


def joined(*parts: bytes) -> bytes:
    """Members of one JSON object, of several pieces that may be empty."""
    return b",".join(part for part in parts if part)
