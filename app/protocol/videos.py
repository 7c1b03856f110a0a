"""/v1/videos: what a request may hold, the task made of it, and what clients see of a video while it is made."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from app.protocol.decoding import check_arguments
from app.protocol.errors import invalid
from app.protocol.images import ImageReference, Steering, Text, check_source, parsed_size, source_of
from app.protocol.lora import lora_choices
from app.protocol.pictures import PictureSource
from app.protocol.videotask import VideoTask

MAX_SECONDS = 600.0
MAX_FRAMES = 10_000
PAGE = 20
_NUMBER = re.compile(r"\d{1,4}(\.\d{1,6})?", re.ASCII)

REFUSED = {
    "n": "a request makes one video; send several",
    "num_outputs_per_prompt": "a request makes one video; send several",
    "width": "write it as size, WIDTHxHEIGHT",
    "height": "write it as size, WIDTHxHEIGHT",
    "quality": "num_inference_steps says how much work is put into it",
    "image_reference": "its name here is input_reference",
    "input_references": "a video begins with one picture; its name here is input_reference",
    "video_reference": "no pipeline here makes a video of a video",
    "source_video": "no pipeline here makes a video of a video",
    "audio_reference": "videos are silent here",
    "source_audio": "videos are silent here",
    "generate_sound": "videos are silent here",
    "sound_duration": "videos are silent here",
    "control_reference": "no pipeline here is led by another video",
    "enable_frame_interpolation": "frames are those of the model; ask for more of them by num_frames",
    "negative_prompt_2": "put it into extra_params",
    "steps": "its name here is num_inference_steps",
    "extra_args": "its name here is extra_params",
    "extra_body": "clients put its members at the root of the body",
    "return_stage_metrics": "/metrics has them",
    "boundary_ratio": "put it into extra_params",
    "file_id": "this server keeps no files of clients; send a URL or a data URL",
}
"""Fields that clients of OpenAI's or vllm-omni's send, and why they are refused here."""


class VideoRequest(Steering, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/videos. None: not given. `user` has no effect.

    `seconds` may be written as a number or as OpenAI does it, "4". In a form the picture that a video begins with is a
    part of the name input_reference, which never comes here.
    """

    prompt: Text | None = None
    model: str | None = None
    seconds: str | float | None = None
    size: str | None = None
    num_frames: Annotated[int, msgspec.Meta(ge=1, le=MAX_FRAMES)] | None = None
    fps: Annotated[float, msgspec.Meta(ge=1, le=240)] | None = None
    input_reference: str | ImageReference | None = None
    user: str | None = None

    def task(self, picture: PictureSource | None, *, streamed: bool) -> VideoTask:
        """The task for a replica; `picture` is what came as a part of a form.

        Raises:
            ApiError: 400, a value, or two that do not go together; `param` is the field.
        """
        if picture is None and self.input_reference is not None:
            picture = source_of(self.input_reference, "input_reference")
        if picture is not None:
            check_source(picture)
        elif not (self.prompt or "").strip():
            raise invalid("prompt", "must say what the video shows")
        if self.seconds is not None and self.num_frames is not None:
            raise invalid("num_frames", "says how long the video is, as seconds does; give one of them")
        width, height = parsed_size(self.size)
        extra = dict(self.extra_params or {})
        check_arguments(extra, "extra_params")
        return VideoTask(
            prompt=self.prompt or "",
            negative_prompt=self.negative_prompt,
            width=width,
            height=height,
            seconds=_seconds(self.seconds),
            frames=self.num_frames or 0,
            fps=self.fps or 0.0,
            seed=self.seed,
            num_inference_steps=self.num_inference_steps,
            guidance_scale=self.guidance_scale,
            guidance_scale_2=self.guidance_scale_2,
            true_cfg_scale=self.true_cfg_scale,
            flow_shift=self.flow_shift,
            lora=lora_choices(self.lora),
            extra=extra,
            images=[picture] if picture is not None else [],
            progress=not streamed,
            streamed=streamed,
        )


class SyncVideoRequest(VideoRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/videos/sync. `stream`: the file comes while it is made, in fragments."""

    stream: bool | None = None


def _seconds(given: str | float | None) -> float:
    if given is None:
        return 0.0
    if isinstance(given, str) and not _NUMBER.fullmatch(given):
        raise invalid("seconds", f'must be a number, such as "4"; got {given[:40]!r}')
    seconds = float(given)
    if not 0 < seconds <= MAX_SECONDS:
        raise invalid("seconds", f"must be more than 0 and at most {MAX_SECONDS:g}; got {seconds:g}")
    return seconds


class VideoError(msgspec.Struct):
    """Why a video has not been made."""

    code: str
    message: str


class Video(msgspec.Struct, kw_only=True):
    """OpenAI's video object; the last four are ours. Times in Unix seconds, `progress` in percent.

    `size`, `seconds`, `fps` and `num_frames` are what was asked for until the video is there, and then what it is; 0 or
    "" where the pipeline chooses.
    """

    id: str = ""
    object: Literal["video"] = "video"
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"] = "queued"
    progress: int = 0
    created_at: int
    completed_at: int | None = None
    expires_at: int | None = None
    prompt: str = ""
    size: str = ""
    seconds: str = ""
    remixed_from_video_id: str | None = None
    error: VideoError | None = None
    fps: float = 0.0
    num_frames: int = 0
    seed: int | None = None


class VideoPage(msgspec.Struct):
    """Some of the videos, in the order that was asked for."""

    data: list[Video]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class DeletedVideo(msgspec.Struct):
    """What is said of a video that was deleted."""

    id: str
    deleted: bool = True
    object: Literal["video.deleted"] = "video.deleted"


def page_of(videos: list[Video], *, after: str | None, limit: int, descending: bool) -> VideoPage:
    """Up to `limit` of the videos, given the oldest first, that come after the one of the id `after`.

    Raises:
        ApiError: 400, there is none of that id.
    """
    ordered = videos[::-1] if descending else videos
    if after is not None:
        places = [place for place, video in enumerate(ordered) if video.id == after]
        if not places:
            raise invalid("after", "there is no video of that id")
        ordered = ordered[places[0] + 1 :]
    page = ordered[:limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return VideoPage(page, len(ordered) > limit, first, last)
