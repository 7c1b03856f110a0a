"""/v1/videos: videos that are made in the background, listed, fetched and deleted; and one that is waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from litestar import Request, Response, delete, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from app.cluster.messages import AnyEvent
from app.cluster.messages import Video as Piece
from app.protocol.errors import ApiError, invalid
from app.protocol.fields import FieldDecoder
from app.protocol.models import served_name
from app.protocol.pictures import PictureSource
from app.protocol.videos import (
    PAGE,
    REFUSED,
    DeletedVideo,
    SyncVideoRequest,
    Video,
    VideoRequest,
    page_of,
)
from app.protocol.videotask import VideoTask, encode_task
from app.routes.auth import caller
from app.routes.body import decode_body, json_body, media_type
from app.routes.multipart import Part, read_form
from app.routes.openapi import ERRORS
from app.routes.sse import Headers
from app.routes.state import generated, model_names, video_work, videos
from app.routes.submission import Delivery, Submission, attended, refuse_while_stopping, respond, submit
from app.routes.videodocs import SyncOperation, VideoOperation
from app.routes.videowork import no_video, passes
from app.store.videos import VideoRecord

if TYPE_CHECKING:
    from app.pipeline.request import AnswerStream

T = TypeVar("T", bound=VideoRequest)

_decoder = FieldDecoder(VideoRequest, REFUSED | {"stream": "is for /v1/videos/sync; a video made here is polled for"})
_sync = FieldDecoder(SyncVideoRequest, REFUSED)

_REFERENCES = ("input_reference", "input_reference[image_url]")
_TYPE = "video/mp4"
_RETURN_S = 600.0
"""How long a video whose replica was lost waits for another one; a large model takes minutes to load."""
_PAUSE_S = 0.5


@post(
    "/v1/videos",
    status_code=200,
    operation_class=VideoOperation,
    operation_id="createVideo",
    responses=ERRORS,
    raises=[],
    tags=["videos"],
    summary="Begin to make a video",
)
async def create_video(request: Request[Any, Any, Any]) -> Response[Any]:
    """The video is made in the background; its object tells how far it is. What cannot be made is refused at once."""
    refuse_while_stopping(request)
    asked, picture = await _read(request, _decoder)
    model = served_name(model_names(request.app), asked.model)
    task = asked.task(picture, streamed=False)
    submission = Submission("video", encode_task(task), asked.model or "")
    answer = await attended(request, submit(request, submission))
    try:
        making = await videos(request.app).begin(caller(request), _video(model, asked, task))
    except OSError:
        await answer.aclose("failed")
        raise
    video_work(request.app).begin(videos(request.app), making, answer, lambda: _again(request, submission))
    return Response(making.record.video)


async def _again(request: Request[Any, Any, Any], submission: Submission) -> AnswerStream:
    """Nobody waits at the line, so there is time until a replica is back."""
    deadline = time.monotonic() + _RETURN_S
    while True:
        try:
            return await submit(request, submission)
        except ApiError as error:
            if not passes(error) or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_PAUSE_S)


@post(
    "/v1/videos/sync",
    status_code=200,
    media_type=_TYPE,
    operation_class=SyncOperation,
    operation_id="createVideoSync",
    responses=ERRORS,
    raises=[],
    tags=["videos"],
    summary="Make a video and wait for it",
)
async def make_video(request: Request[Any, Any, Any]) -> Response[Any]:
    """The file; with `"stream": true`, which the server has to be started for, in pieces while it is decoded."""
    refuse_while_stopping(request)
    asked, picture = await _read(request, _sync)
    served_name(model_names(request.app), asked.model)
    streamed = bool(asked.stream)
    submission = Submission("video", encode_task(asked.task(picture, streamed=streamed)), asked.model or "")
    file = VideoFile()
    return await respond(request, submission, Delivery(file.whole, file.pieces, opening=file.opening), stream=streamed)


@get(
    "/v1/videos",
    responses=ERRORS,
    raises=[],
    tags=["videos"],
    operation_id="listVideos",
    summary="The videos of this API key",
)
async def list_videos(
    request: Request[Any, Any, Any],
    after: FromQuery[str | None] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=100)] = PAGE,
    order: FromQuery[Literal["asc", "desc"]] = "desc",
) -> Response[Any]:
    """A page of them; `after` is the id of the last one of the page before."""
    found = await videos(request.app).listed(caller(request))
    return Response(page_of(found, after=after, limit=limit, descending=order == "desc"))


@get(
    "/v1/videos/{video_id:str}",
    responses=ERRORS,
    raises=[],
    tags=["videos"],
    operation_id="retrieveVideo",
    summary="One video",
)
async def retrieve_video(request: Request[Any, Any, Any], video_id: FromPath[str]) -> Response[Any]:
    """How far it is, or why it has not been made.

    Raises:
        ApiError: 404, there is none of that id, or none any more.
    """
    return Response((await _found(request, video_id)).video)


@delete(
    "/v1/videos/{video_id:str}",
    status_code=200,
    responses=ERRORS,
    raises=[],
    tags=["videos"],
    operation_id="deleteVideo",
    summary="Delete a video, or stop making it",
)
async def delete_video(request: Request[Any, Any, Any], video_id: FromPath[str]) -> Response[Any]:
    """
    Raises:
        ApiError: 404, there is none of that id.
    """
    record = await _found(request, video_id)
    await videos(request.app).delete(record)
    return Response(DeletedVideo(video_id))


@get(
    "/v1/videos/{video_id:str}/content",
    media_type=_TYPE,
    responses=ERRORS,
    raises=[],
    tags=["videos"],
    operation_id="retrieveVideoContent",
    summary="The file of a video",
)
async def get_content(
    request: Request[Any, Any, Any], video_id: FromPath[str], variant: FromQuery[str] = "video"
) -> Response[bytes]:
    """
    Raises:
        ApiError: 400, another variant than the video itself; 404, there is no such video, or it is not ready.
    """
    if variant != "video":
        raise invalid("variant", "must be video; no other pictures are made of it")
    record = await _found(request, video_id)
    if record.video.status == "failed":
        reason = record.video.error.message if record.video.error else ""
        raise ApiError(404, f"The video has not been made: {reason}", param="video_id", code="video_failed")
    if not record.file:
        message = f"The video is not ready: it is {record.video.status}, {record.video.progress} %."
        raise ApiError(404, message, param="video_id", code="video_not_ready")
    found = await generated(request.app).read(record.file)
    if found is None:
        raise ApiError(404, "The file of this video has expired.", param="video_id", code="file_not_found")
    return _file_response(found[0], video_id)


async def _found(request: Request[Any, Any, Any], video_id: str) -> VideoRecord:
    record = await videos(request.app).get(caller(request), video_id)
    if record is None:
        message = "There is no such video; videos are forgotten some time after they have been made."
        raise ApiError(404, message, param="video_id", code="video_not_found")
    return record


async def _read(request: Request[Any, Any, Any], decoder: FieldDecoder[T]) -> tuple[T, PictureSource | None]:
    """The body, JSON or a form, and the picture in the form."""
    if media_type(request) != "multipart/form-data":
        return await decode_body(decoder, await json_body(request)), None
    fields: dict[str, str] = {}
    pictures: list[PictureSource] = []
    for part in await read_form(request):
        if part.name in _REFERENCES:
            pictures.append(_source(part))
        elif part.is_file:
            raise invalid(part.name, "is not a file")
        elif part.name in fields:
            raise invalid(part.name, "is given twice")
        else:
            fields[part.name] = part.text
    if len(pictures) > 1:
        raise invalid("input_reference", "there can be only one")
    return decoder.convert(fields), pictures[0] if pictures else None


def _source(part: Part) -> PictureSource:
    if part.is_file:
        return PictureSource(data=part.data, param="input_reference")
    return PictureSource(url=part.text, param="input_reference")


def _video(model: str, asked: VideoRequest, task: VideoTask) -> Video:
    return Video(
        model=model,
        created_at=int(time.time()),
        prompt=task.prompt,
        size=asked.size or "",
        seconds=f"{task.seconds:g}" if task.seconds else "",
        num_frames=task.frames,
        fps=task.fps,
        seed=task.seed,
    )


class VideoFile:
    """Writes one answer that is a file, as a whole or in pieces."""

    def __init__(self) -> None:
        self._first = b""

    async def whole(self, stream: AnswerStream) -> Response[bytes]:
        """The response with all of it.

        Raises:
            ApiError: 500, there is no video.
        """
        content = b"".join([piece async for events in stream if (piece := _pieces(events))])
        if not content:
            raise no_video()
        return _file_response(content, "video")

    async def opening(self, stream: AnswerStream) -> Headers:
        """The headers, once there is a first piece: until then a failure still has a status.

        Raises:
            ApiError: 500, there is no video.
        """
        async for events in stream:
            if first := _pieces(events):
                self._first = first
                return [(b"content-type", _TYPE.encode()), (b"x-accel-buffering", b"no")]
        raise no_video()

    async def pieces(self, stream: AnswerStream) -> AsyncIterator[bytes]:
        """The pieces, as they are made."""
        yield self._first
        async for events in stream:
            if piece := _pieces(events):
                yield piece


def _pieces(events: list[AnyEvent]) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, Piece))


def _file_response(content: bytes, name: str) -> Response[bytes]:
    headers = {"Content-Disposition": f'attachment; filename="{name}.mp4"', "X-Content-Type-Options": "nosniff"}
    return Response(content, media_type=_TYPE, headers=headers)
