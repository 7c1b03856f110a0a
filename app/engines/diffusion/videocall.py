"""From a video task to the arguments of one pipeline call, checked. What the pipeline cannot take is refused."""

from __future__ import annotations

import msgspec

from app.engines.diffusion import call as pictures
from app.engines.diffusion.call import Call, batch_key, fitting
from app.engines.diffusion.inputs import Inputs
from app.engines.diffusion.loraweights import Blend
from app.engines.diffusion.offer import FILMS, Mode, Offer
from app.engines.diffusion.video import Video
from app.engines.refusal import refuse
from app.protocol.videotask import VideoTask

_USUAL_FRAMES = 129
"""For the limit on pixels, where only the pipeline knows how many it makes."""


def choose(task: VideoTask, offer: Offer) -> tuple[Mode, Video]:
    """How the task is to be run, by what it carries.

    Raises:
        EngineError: 400, the pipeline makes no videos, or none with such a beginning, or none without one.
    """
    modes = {name: mode for name in FILMS if (mode := offer.modes.get(name)) is not None and mode.video is not None}
    if not modes:
        refuse(f"{offer.class_name} makes no videos", None)
    mode = modes.get("image-to-video" if task.images else "text-to-video")
    if mode is None and task.images:
        refuse(f"{offer.class_name} begins its videos with no given picture", task.images[0].param)
    if mode is None:
        refuse(f"{offer.class_name} needs the picture that the video begins with", "input_reference")
    if len(task.images) > 1:
        refuse(f"{mode.cls.__name__} takes one picture, not {len(task.images)}", task.images[1].param)
    assert mode.video is not None, "others have been left out"
    return mode, mode.video


def plan(
    task: VideoTask, mode: Mode, video: Video, inputs: Inputs, offer: Offer, blend: Blend, most_pixels: int
) -> Call:
    """The call that answers the task, with the LoRA adapters of `blend`. `most_pixels`: of all frames together.

    Raises:
        EngineError: 400; `param` is the field of /v1/videos, and the message says what is possible.
    """
    if inputs.images and not task.width and not task.height:  # as large as a video usually is, of the picture's shape
        usual = offer.sizes.width * offer.sizes.height or offer.max_pixels
        width, height = fitting(inputs.images[0].size, min(usual, offer.max_pixels), offer.sizes.multiple)
        task = msgspec.structs.replace(task, width=width, height=height)
    call = pictures.plan(task, mode, inputs, offer, blend)
    frames, fps = _frames(task, mode, video), task.fps or video.fps
    if (frames or _USUAL_FRAMES) * call.width * call.height > most_pixels:
        most = most_pixels // (call.width * call.height)
        message = f"{frames or _USUAL_FRAMES} frames of {call.width}x{call.height} have more than {most_pixels} pixels"
        refuse(f"{message}, the most of a video here (--max-video-pixels): {most} frames", "seconds")
    arguments = {name: value for name, value in call.arguments.items() if name != video.count}
    arguments |= {video.count: frames} if frames else {}
    arguments |= {video.rate: _plain(fps)} if video.rate else {}
    call = msgspec.structs.replace(call, arguments=arguments, fps=fps, in_pieces=task.streamed)
    return msgspec.structs.replace(call, key=None if task.streamed else batch_key(call))


def _frames(task: VideoTask, mode: Mode, video: Video) -> int:
    """0: as many as the pipeline makes by itself."""
    if task.seconds:
        return video.nearest(task.seconds * (task.fps or video.fps))
    if task.frames and (nearest := video.nearest(task.frames)) != task.frames:
        message = f"{mode.cls.__name__} makes one frame more than a multiple of {video.step}"
        refuse(f"{message}, such as {nearest}, not {task.frames}", "num_frames")
    return task.frames or video.frames


def _plain(fps: float) -> float | int:
    """Classes whose rate is an integer count with it."""
    return int(fps) if fps == int(fps) else fps
