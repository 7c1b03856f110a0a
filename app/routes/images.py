"""POST /v1/images/generations, /v1/images/edits, /v1/images/variations."""

from __future__ import annotations

import asyncio
import re
import time
import zipfile
from collections.abc import AsyncIterator, Collection
from io import BytesIO
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, Response, post

from app.cluster.messages import Picture
from app.protocol.errors import ApiError
from app.protocol.fields import FieldDecoder
from app.protocol.imageanswers import Collected, ImageEvents, Setting
from app.protocol.images import (
    REFUSED,
    EditRequest,
    GenerationRequest,
    ImageRequest,
    Task,
    VariationRequest,
    check_inputs,
    check_source,
    checked_prompt,
    picture_task,
)
from app.protocol.models import served_name
from app.protocol.pictures import PictureSource, PictureTask, encode_task
from app.protocol.sse import named_error_frame
from app.routes.body import decode_body, json_body, media_type
from app.routes.files import MEDIA_TYPES, link_to
from app.routes.imagedocs import EditOperation, GenerationOperation, VariationOperation
from app.routes.multipart import Part, read_form, require_form
from app.routes.openapi import ERRORS
from app.routes.state import model_names, orchestrator
from app.routes.submission import Delivery, Submission, refuse_while_stopping, respond

if TYPE_CHECKING:
    from app.pipeline.request import AnswerStream

_generation = FieldDecoder(GenerationRequest, REFUSED)
_edit = FieldDecoder(EditRequest, REFUSED)
_variation = FieldDecoder(VariationRequest, REFUSED)

_INPUT = re.compile(r"(image|images|url)(\[\d*\])?", re.ASCII)
_MASKS = ("mask", "mask_image")


@post(
    "/v1/images/generations",
    status_code=200,
    operation_class=GenerationOperation,
    operation_id="createImage",
    responses=ERRORS,
    raises=[],
    tags=["images"],
    summary="Draw pictures",
)
async def create_image(request: Request[Any, Any, Any]) -> Response[Any]:
    """Pictures for a prompt, or a stream of previews and pictures with `"stream": true`."""
    return await draw(request, await json_body(request))


@post(
    "/v1/images/edits",
    status_code=200,
    operation_class=EditOperation,
    operation_id="createImageEdit",
    responses=ERRORS,
    raises=[],
    tags=["images"],
    summary="Change pictures",
)
async def create_image_edit(request: Request[Any, Any, Any]) -> Response[Any]:
    """Pictures for a prompt and one or several pictures, with a mask where only a part is to change."""
    refuse_while_stopping(request)
    if media_type(request) == "multipart/form-data":
        fields, images, mask = _sorted(await read_form(request), _MASKS)
        asked = _edit.convert(fields)
    else:
        asked = await decode_body(_edit, await json_body(request))
        images, mask = asked.sources(), asked.mask_source()
    check_inputs(images)
    if mask is not None:
        check_source(mask)
    return await _draw(request, "image_edit", asked, checked_prompt(asked.prompt), images, mask)


@post(
    "/v1/images/variations",
    status_code=200,
    operation_class=VariationOperation,
    operation_id="createImageVariation",
    responses=ERRORS,
    raises=[],
    tags=["images"],
    summary="Draw variations of a picture",
)
async def create_image_variation(request: Request[Any, Any, Any]) -> Response[Any]:
    """Pictures that resemble a given one."""
    refuse_while_stopping(request)
    require_form(request)
    fields, images, _ = _sorted(await read_form(request), ())
    asked = _variation.convert(fields)
    check_inputs(images)
    return await _draw(request, "image_variation", asked, asked.prompt or "", images)


async def draw(request: Request[Any, Any, Any], body: bytes) -> Response[Any]:
    """Answer the body of a generation.

    Raises:
        ApiError: whatever the worker or the replica refuses.
        ClientGoneError: the client left before there was an answer.
    """
    refuse_while_stopping(request)
    asked = await decode_body(_generation, body)
    return await _draw(request, "image", asked, checked_prompt(asked.prompt))


def usual_steps(request: Request[Any, Any, Any]) -> int | None:
    """How many steps the served pipeline takes unless asked, None where it does not say."""
    card = orchestrator(request.app).capabilities().card
    steps = msgspec.json.decode(card).get("parameters", {}).get("num_inference_steps") if card else None
    return steps if isinstance(steps, int) else None


def _sorted(
    parts: list[Part], masks: Collection[str]
) -> tuple[dict[str, str], list[PictureSource], PictureSource | None]:
    """The fields of a form, its pictures in their order, and its mask.

    Raises:
        ApiError: 400, a field that is a file, or one that is there twice.
    """
    fields: dict[str, str] = {}
    images: list[PictureSource] = []
    found: list[PictureSource] = []
    for part in parts:
        if _INPUT.fullmatch(part.name):
            images.append(_source(part))
        elif part.name in masks:
            found.append(_source(part))
        elif part.is_file:
            raise ApiError(400, f"{part.name}: is not a file.", param=part.name, code="invalid_value")
        elif part.name in fields:
            raise ApiError(400, f"{part.name} is given twice.", param=part.name, code="invalid_value")
        else:
            fields[part.name] = part.text
    if len(found) > 1:
        raise ApiError(400, "There can be only one mask.", param=found[1].param, code="invalid_value")
    return fields, images, found[0] if found else None


def _source(part: Part) -> PictureSource:
    if part.is_file:
        return PictureSource(data=part.data, param=part.name)
    return PictureSource(url=part.text, param=part.name)


async def _draw(
    request: Request[Any, Any, Any],
    task: Task,
    asked: ImageRequest,
    prompt: str,
    images: list[PictureSource] | None = None,
    mask: PictureSource | None = None,
) -> Response[Any]:
    asked.check()
    served_name(model_names(request.app), asked.model)
    picture = picture_task(
        asked,
        prompt,
        steps=usual_steps(request),
        images=images,
        mask=mask,
        base64=asked.response_format in (None, "b64_json"),
        previews=asked.partial_images or 0,
        progress=bool(asked.stream),
    )
    submission = Submission(task, encode_task(picture), asked.model or "")
    return await respond(request, submission, _delivery(request, task, asked, picture), stream=bool(asked.stream))


def _delivery(request: Request[Any, Any, Any], task: Task, asked: ImageRequest, picture: PictureTask) -> Delivery:
    background = "transparent" if picture.transparent else "opaque"
    setting = Setting(int(time.time()), picture.format, asked.level, background)

    async def whole(stream: AnswerStream) -> bytes | Response[Any]:
        answer = Collected()
        async for events in stream:
            answer.add(events)
        if asked.response_format == "file":
            return await _as_file(answer.pictures)
        if asked.response_format == "url":
            links = [await link_to(request, item.data, item.format) for item in answer.pictures]
            return answer.encode(setting, links)
        return answer.encode(setting)

    async def frames(stream: AnswerStream) -> AsyncIterator[bytes]:
        writer = ImageEvents("image_generation" if task == "image" else "image_edit", setting)
        async for events in stream:
            if frame := writer.write(events):
                yield frame

    return Delivery(whole, frames, named_error_frame)


async def _as_file(pictures: list[Picture]) -> Response[bytes]:
    """The one picture itself, or several in an archive."""
    if len(pictures) == 1:
        picture = pictures[0]
        return _attachment(bytes(picture.data), f"image.{picture.format}", MEDIA_TYPES[picture.format])
    return _attachment(await asyncio.to_thread(_zipped, pictures), "images.zip", "application/zip")


def _attachment(content: bytes, name: str, kind: str) -> Response[bytes]:
    return Response(content, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def _zipped(pictures: list[Picture]) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # stored: pictures do not become smaller
        for picture in pictures:
            archive.writestr(f"image_{picture.index}.{picture.format}", picture.data)
    return buffer.getvalue()
