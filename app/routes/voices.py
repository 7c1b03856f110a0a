"""/v1/audio/voices: voices that clients upload, list and delete; and what a speech request finds under a name."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, delete, get, post
from litestar.params import FromPath

from app.media import dataurl
from app.media.errors import MediaError
from app.media.soundtypes import sound_type
from app.pipeline.connection import ReplicaLostError, api_error
from app.pipeline.graph import NO_REPLICA
from app.protocol.errors import ApiError, invalid, unsupported
from app.protocol.fields import FieldDecoder
from app.protocol.speechtask import SpeechCard, VoiceSample, encode_sample
from app.protocol.voices import (
    MAX_SAMPLE,
    REFUSED,
    VoiceUpload,
    built_in,
    check_free,
    created,
    deleted,
    listed,
    of_model,
    sample_of,
    uploaded,
)
from app.routes.body import json_body, media_type
from app.routes.gate import refuse_foreign_page
from app.routes.multipart import read_form
from app.routes.openapi import ERRORS
from app.routes.state import orchestrator, voices
from app.routes.submission import refuse_while_stopping
from app.routes.voicedocs import UploadOperation
from app.store.voices import (
    VoiceExistsError,
    VoiceRecord,
    VoicesFullError,
    VoicesMissingError,
    VoicesUnavailableError,
)

logger = logging.getLogger("app.routes")

_decoder = FieldDecoder(VoiceUpload, REFUSED)


@post(
    "/v1/audio/voices",
    status_code=200,
    operation_class=UploadOperation,
    operation_id="createVoice",
    responses=ERRORS,
    raises=[],
    tags=["audio"],
    summary="Upload a voice to imitate",
)
async def create_voice(request: Request[Any, Any, Any]) -> Response[Any]:
    """Kept only if the served model can imitate it; otherwise a voice that has its name already stays as it was."""
    refuse_while_stopping(request)
    refuse_foreign_page(request)
    card = _card(request.app)
    asked, sample = await _read(request)
    kind = sound_type(sample) if sample else ""
    if kind is None:
        formats = "WAV, FLAC, Ogg, MP3, AAC, MP4 and WebM"
        raise invalid("audio_sample", f"is none of the sound files that are understood, which are {formats}")
    record = asked.record(sample, kind, int(time.time()))
    check_free(card, record.name)
    if not card.cloning:
        raise unsupported("audio_sample", f"the served model imitates nobody; its voices are {', '.join(card.voices)}")
    await _try_out(request.app, record)
    with _told():
        await voices(request.app).save(record)
    return Response(created(record))


@get(
    "/v1/audio/voices",
    responses=ERRORS,
    raises=[],
    tags=["audio"],
    operation_id="listVoices",
    summary="The voices that can be asked for",
)
async def list_voices(request: Request[Any, Any, Any]) -> Response[Any]:
    """Those of the model, and those that clients have uploaded."""
    card = _card(request.app)
    try:
        with _told():
            records = await voices(request.app).list()
    except _NotInstalledError:  # so nothing can have been uploaded
        records = []
    return Response(listed(card, records))


@get(
    "/v1/audio/voices/{name:str}",
    responses=ERRORS,
    raises=[],
    tags=["audio"],
    operation_id="retrieveVoice",
    summary="One voice",
)
async def retrieve_voice(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[Any]:
    """The voice of that name, in whatever case.

    Raises:
        ApiError: 404, there is none.
    """
    card = _card(request.app)
    if built_in(card, name):
        return Response(of_model(card, name))
    with _told():
        record = await voices(request.app).get(name)
    if record is None:
        raise _unknown(name)
    return Response(uploaded(record))


@delete(
    "/v1/audio/voices/{name:str}",
    status_code=200,
    responses=ERRORS,
    raises=[],
    tags=["audio"],
    operation_id="deleteVoice",
    summary="Delete an uploaded voice",
)
async def delete_voice(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[Any]:
    """No request that comes later can use it; one that runs goes on.

    Raises:
        ApiError: 404, there is none; 400, it is one of the model's own.
    """
    refuse_foreign_page(request)
    if built_in(_card(request.app), name):
        raise invalid("name", f"{name!r} is a voice of the served model, which cannot be deleted")
    with _told():
        found = await voices(request.app).delete(name)
    if not found:
        raise _unknown(name)
    return Response(deleted(name))


async def voice_sample(app: Litestar, name: str, param: str = "voice") -> VoiceSample | None:
    """The uploaded voice of that name; None where there is none, or the model has one of its own by that name.

    `param` is the field in which the client named it.

    Raises:
        ApiError: 503, the database cannot be used; 404, the served model does not speak.
    """
    card = _card(app)
    if not name or built_in(card, name) or not card.cloning:
        return None
    try:
        with _told():
            record = await voices(app).get(name)
    except _NotInstalledError:
        return None
    return sample_of(record, param) if record is not None else None


def _card(app: Litestar) -> SpeechCard:
    """What the stage that has the voices can do.

    Raises:
        ApiError: 404, there is none; 503, none of its replicas is up.
    """
    return msgspec.json.decode(orchestrator(app).voice_card(), type=SpeechCard)


async def _read(request: Request[Any, Any, Any]) -> tuple[VoiceUpload, bytes]:
    """The fields of an upload, and its recording (empty where an embedding takes its place)."""
    if media_type(request) != "multipart/form-data":
        body = await json_body(request)
        return await asyncio.to_thread(_from_json, body)  # base64 of 10 MiB takes a while
    fields: dict[str, str] = {}
    sample: bytes | None = None
    for part in await read_form(request):
        if part.name in fields or (part.name == "audio_sample" and sample is not None):
            raise invalid(part.name, "is given twice")
        if part.name == "audio_sample":
            if not part.is_file:
                raise invalid(part.name, "must be a file; a data URL can be sent in a JSON body")
            sample = _sized(part.data)
        elif part.is_file:
            raise invalid(part.name, "is not a file")
        else:
            fields[part.name] = part.text
    return _decoder.convert(fields), sample or b""


def _from_json(body: bytes) -> tuple[VoiceUpload, bytes]:
    asked = _decoder.decode(body)
    if asked.audio_sample is None:
        return asked, b""
    if not asked.audio_sample.startswith("data:"):
        raise invalid("audio_sample", "must be a data URL (data:audio/wav;base64,...), or a file in a form")
    if len(asked.audio_sample) > MAX_SAMPLE * 4 // 3 + 1024:
        raise _oversized()
    try:
        return asked, _sized(dataurl.decode(asked.audio_sample, MAX_SAMPLE + 1024)[1])
    except MediaError as error:
        raise api_error(error.at("audio_sample").failed) from None


def _sized(sample: bytes) -> bytes:
    if not sample:
        raise invalid("audio_sample", "is empty")
    if len(sample) > MAX_SAMPLE:
        raise _oversized()
    return sample


def _oversized() -> ApiError:
    message = f"audio_sample: is larger than {MAX_SAMPLE} bytes, the limit for recordings of voices."
    return ApiError(413, message, param="audio_sample", code="media_too_large")


async def _try_out(app: Litestar, record: VoiceRecord) -> None:
    """Have the replicas that speak judge the voice, as they would for a request.

    Raises:
        ApiError: 400, it cannot be decoded, is too short or too long, or not what the model takes; 503, 504.
    """
    param = "speaker_embedding" if record.embedding else "audio_sample"
    answers = await orchestrator(app).call_stage("speech", "check_voice", encode_sample(sample_of(record, param)))
    for answer in answers:
        if isinstance(answer, TimeoutError):
            raise ApiError(504, "a replica took too long to judge the voice", code="timeout")
        if isinstance(answer, BaseException) and not isinstance(answer, ReplicaLostError):
            raise answer
    if not any(isinstance(answer, bytes) for answer in answers):
        raise ApiError(503, "the replicas that could judge the voice were lost; try again", code=NO_REPLICA)


class _NotInstalledError(ApiError):
    """What keeps voices is missing."""

    def __init__(self) -> None:
        message = "This server cannot keep voices: install SQLAlchemy beside it (pip install 'omni-app[voices]')."
        super().__init__(501, message, code="voices_not_installed")


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong in the store, as a client is told of it; the database's own words are for the log."""
    try:
        yield
    except VoicesMissingError:
        raise _NotInstalledError from None
    except VoicesUnavailableError as error:
        logger.error("the database of voices (--voices-database) cannot be used: %s", error)
        message = "The database of voices cannot be used now; the server's log has the cause."
        raise ApiError(503, message, code="voices_unavailable", headers={"Retry-After": "2"}) from None
    except VoiceExistsError:
        message = "name: there is a voice of this name, and this server replaces none (--voices-policy immutable)."
        raise ApiError(409, message, param="name", code="voice_exists") from None
    except VoicesFullError as error:
        message = f"The voice cannot be kept: {error}. Delete one that is not needed."
        raise ApiError(409, message, code="voices_full") from None


def _unknown(name: str) -> ApiError:
    return ApiError(404, f"There is no voice {name[:64]!r}.", param="name", code="voice_not_found")
