"""What /v1/chat/completions and /v1/completions share: the fields the API worker acts on, ids, and usage.

The body itself goes to the replica as it came; vLLM's request classes there judge every other field.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from app.cluster.messages import AnyEvent, Delta, Usage


class StreamOptions(msgspec.Struct):
    """OpenAI's `stream_options`, and vLLM's `continuous_usage_stats`: usage in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct):
    """The fields of a request that the API worker acts on. `model` None: the model that is served."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1)] | None = None

    @property
    def usage_mode(self) -> UsageMode:
        """Where a stream carries usage."""
        options = self.stream_options
        if options is None or not options.include_usage:
            return "never"
        return "always" if options.continuous_usage_stats else "last"


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
    """Counts the tokens of one request: the engine's last Usage, and what came after it."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._details = b""

    def count(self, event: AnyEvent) -> None:
        """Take a Delta or a Usage into account; other events count nothing."""
        if isinstance(event, Delta):
            self.completion_tokens += event.tokens
        elif isinstance(event, Usage):
            self.prompt_tokens = event.prompt_tokens
            self.completion_tokens = event.completion_tokens
            self._details = event.details

    def encode(self) -> bytes:
        """OpenAI's usage object."""
        counts = b'"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d' % (
            self.prompt_tokens,
            self.completion_tokens,
            self.prompt_tokens + self.completion_tokens,
        )
        return b"{" + joined(counts, members(self._details)) + b"}"


def members(json_object: bytes) -> bytes:
    """What stands between the braces of an encoded JSON object; b"" of an empty or absent one."""
    return json_object.strip()[1:-1].strip()


def joined(*parts: bytes) -> bytes:
    """Members of one JSON object, of several pieces that may be empty."""
    return b",".join(part for part in parts if part)
