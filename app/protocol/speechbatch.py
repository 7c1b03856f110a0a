"""/v1/audio/speech/batch: several texts in one request, each with a result of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from app.cluster.messages import Usage
from app.protocol.errors import ApiError, ErrorObject, invalid
from app.protocol.fields import FieldDecoder
from app.protocol.speech import REFUSED, VOICE_FIELDS, Manner
from app.protocol.speechanswers import usage_object

REFUSED_HERE = REFUSED | {
    "stream": "a batch is answered as a whole",
    "stream_format": "a batch is answered as a whole",
    "model": "it stands beside items, for all of them",
}


class BatchRequest(Manner, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/audio/speech/batch: the items, each judged by itself, and what holds for those that do not say it."""

    items: list[msgspec.Raw]
    model: str | None = None
    user: str | None = None

    def check(self, most: int) -> None:
        """
        Raises:
            ApiError: 400, no items, or more than `most`.
        """
        if not 1 <= len(self.items) <= most:
            raise invalid("items", f"must be 1 to {most} (--speech-batch-max-items), got {len(self.items)}")


class BatchItem(Manner, kw_only=True, forbid_unknown_fields=True):
    """One text, and how it differs from the others."""

    input: str

    def over(self, defaults: Manner) -> BatchItem:
        """The item with what it does not say itself. Whose voice it is counts as one thing."""
        own_voice = any(getattr(self, name) is not None for name in VOICE_FIELDS)
        taken = {
            name: getattr(defaults, name)
            for name in _SHARED
            if getattr(self, name) is None and not (own_voice and name in VOICE_FIELDS)
        }
        return msgspec.structs.replace(self, **taken)


class Spoken(msgspec.Struct, frozen=True):
    """A result that worked; `data` is the file in base64."""

    data: bytes
    media_type: str
    sample_rate: int
    usage: Usage


Result = Spoken | ApiError

_SHARED = tuple(field.name for field in msgspec.structs.fields(Manner))
_items = FieldDecoder(BatchItem, REFUSED_HERE)


def decode_item(raw: msgspec.Raw, defaults: Manner) -> BatchItem:
    """One item of a batch.

    Raises:
        ApiError: 400; `param` is the field within the item.
    """
    return _items.decode(bytes(raw)).over(defaults)


def encode_results(identity: str, results: Sequence[Result]) -> bytes:
    """The body of the response.

    Raises:
        ApiError: no item has worked: 400 where all are the client's mistakes, else what is wrong here.
    """
    failed = [result for result in results if isinstance(result, ApiError)]
    if len(failed) == len(results):
        raise _nothing(failed)
    counts = {"id": identity, "total": len(results), "succeeded": len(results) - len(failed), "failed": len(failed)}
    pieces: list[bytes] = [msgspec.json.encode(counts)[:-1], b',"results":[']  # joined once: sound is large
    for index, result in enumerate(results):
        pieces += [b"," if index else b"", *_encoded(index, result)]
    return b"".join([*pieces, b"]}"])


def _encoded(index: int, result: Result) -> tuple[bytes, ...]:
    if isinstance(result, ApiError):
        told: dict[str, Any] = {"index": index, "status": "error", "error": _placed(index, result)}
        return (msgspec.json.encode(told),)
    told = {
        "index": index,
        "status": "success",
        "media_type": result.media_type,
        "sample_rate": result.sample_rate,
        "usage": usage_object(result.usage),
    }
    return msgspec.json.encode(told)[:-1], b',"audio_data":"', result.data, b'"}'


def _placed(index: int, error: ApiError) -> ErrorObject:
    """The error of an item; `param` leads there from the root of the request."""
    own = error.body.error
    return msgspec.structs.replace(own, param=f"items[{index}].{own.param}" if own.param else f"items[{index}]")


def _nothing(failed: Sequence[ApiError]) -> ApiError:
    """What is wrong with a batch of which nothing could be spoken: the first error that is ours, or the first."""
    index, error = next(((i, x) for i, x in enumerate(failed) if _ours(x)), (0, failed[0]))
    placed = _placed(index, error)
    message = (
        f"None of the {len(failed)} items could be spoken. The first that failed so, items[{index}]: {placed.message}"
    )
    status = error.status if _ours(error) else 400
    kind = placed.type if status == error.status else None
    return ApiError(status, message, type=kind, param=placed.param, code=placed.code, headers=error.headers)


def _ours(error: ApiError) -> bool:
    return error.status >= 500 or error.status == 429
