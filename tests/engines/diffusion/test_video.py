"""Videos of a prompt or of a picture: the frames of the stock pipeline, as a file; and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
import pytest
import torch
from av.video.reformatter import ColorRange, Colorspace

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.diffusion import videocall
from app.engines.diffusion.batching import Row
from app.engines.diffusion.call import Call
from app.engines.diffusion.inputs import Inputs
from app.engines.diffusion.offer import Offer
from app.engines.diffusion.pieces import Pieces
from app.engines.diffusion.video import Video, video_of
from app.protocol.pictures import PictureSource
from app.protocol.videotask import VideoTask, encode_task
from tests.engines.diffusion import asking
from tests.engines.diffusion.asking import (
    OTHER,
    PROMPT,
    Asked,
    Directories,
    Pipelines,
    file,
    noise,
    started,
    task,
)
from tests.engines.diffusion.running import Forwards, Recorder, call_for, draw, offer_of, runner_of

Frames = np.ndarray[Any, np.dtype[np.uint8]]

BEGINNING = noise()
KINDS = ["wan", "cogvideox", "wan_i2v"]
MOST = 512 << 20


def wanted(kind: str = "wan", **fields: Any) -> VideoTask:
    """A short one of 64 x 64 pixels: nine frames, two steps, seed 7."""
    images = [PictureSource(data=file(BEGINNING), param="input_reference")] if kind == "wan_i2v" else []
    short: dict[str, Any] = {
        "prompt": PROMPT,
        "width": 64,
        "height": 64,
        "seed": 7,
        "num_inference_steps": 2,
        "frames": 9,
    }
    return VideoTask(**short | {"images": images} | fields)


def planned(offer: Offer, asked: VideoTask, inputs: Inputs | None = None, most_pixels: int = MOST) -> Call:
    mode, video = videocall.choose(asked, offer)
    given = inputs or Inputs([BEGINNING] if asked.images else [])
    return videocall.plan(asked, mode, video, given, offer, (), most_pixels)


def stock(pipe: Any, kind: str = "wan", seed: int = 7, **arguments: Any) -> Frames:
    """What the pipeline makes for its users, (frames, height, width, 3)."""
    call = {"prompt": PROMPT, "width": 64, "height": 64, "num_inference_steps": 2, "num_frames": 9} | arguments
    beginning = {"image": BEGINNING} if kind == "wan_i2v" else {}
    frames = pipe(**call, **beginning, generator=torch.Generator("cpu").manual_seed(seed), output_type="np").frames[0]
    rounded: Frames = (frames * 255).round().astype(np.uint8)
    return rounded


def played(data: bytes | memoryview) -> Frames:
    """The frames of a file."""
    with av.open(BytesIO(data)) as container:
        colours = {"src_colorspace": Colorspace.ITU709, "src_color_range": ColorRange.MPEG}
        frames = [frame.reformat(format="rgb24", **colours) for frame in container.decode(video=0)]
    return np.array([frame.to_ndarray() for frame in frames])


def alike(some: Frames, others: Frames) -> bool:
    """Whether they look alike from afar: so much noise as a tiny pipeline makes is lost in a file."""
    blocks = [frames.reshape(len(frames), 8, 8, 8, 8, 3).mean(axis=(2, 4)) for frames in (some, others)]
    return bool(np.abs(blocks[0] - blocks[1]).mean() < 3)


@pytest.fixture
def offer(tiny_pipeline: Pipelines) -> Offer:
    return offer_of(tiny_pipeline("wan"))


# ------------------------------------------------------------------------------------------------- frames


@pytest.mark.parametrize("kind", KINDS)
def test_the_frames_are_those_of_the_stock_pipeline(kind: str, tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline(kind)
    offer = offer_of(pipe)
    expected = stock(pipe, kind)
    (recorder,) = draw(runner_of(pipe, offer), planned(offer, wanted(kind)))
    np.testing.assert_array_equal(recorder.pictures, expected)
    assert recorder.films == []
    assert recorder.steps[-1] == (2, 2)


def test_arguments_reach_the_pipeline(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("wan")
    offer = offer_of(pipe)
    expected = stock(pipe, num_frames=5, negative_prompt=OTHER, guidance_scale=3.0, num_inference_steps=3)
    asked = wanted(frames=5, negative_prompt=OTHER, guidance_scale=3.0, num_inference_steps=3)
    (recorder,) = draw(runner_of(pipe, offer), planned(offer, asked))
    np.testing.assert_array_equal(recorder.pictures, expected)


def test_a_batch_makes_what_each_would_alone(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("wan")
    offer = offer_of(pipe)
    calls = [planned(offer, wanted(prompt=prompt, seed=seed)) for prompt, seed in ((PROMPT, 1), (OTHER, 2))]
    assert calls[0].key == calls[1].key == planned(offer, wanted(fps=30)).key
    assert calls[0].key != planned(offer, wanted(frames=5)).key
    assert planned(offer, wanted(streamed=True)).key is None
    forwards = Forwards(pipe, "transformer")
    together = draw(runner_of(pipe, offer), *calls)
    assert forwards.counts == {"transformer": 4}
    for call, recorder in zip(calls, together, strict=True):
        np.testing.assert_allclose(recorder.pictures, stock(pipe, seed=call.seed, prompt=call.prompt), atol=1)


@pytest.mark.parametrize("kind", ["wan", "cogvideox"])
def test_who_asks_for_a_picture_gets_one_frame(kind: str, tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline(kind)
    offer = offer_of(pipe, default_sampling_params={"num_frames": 9})
    expected = asking.stock(pipe, kind, num_frames=1)
    (recorder,) = draw(runner_of(pipe, offer, Pieces(pipe)), call_for(offer, task()))
    np.testing.assert_array_equal(recorder.pictures, [expected])
    assert recorder.films == []


def test_an_abandoned_call_leaves_nothing_behind(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("wan")
    offer = offer_of(pipe)
    runner = runner_of(pipe, offer, Pieces(pipe))
    asked = wanted(num_inference_steps=9, streamed=True)
    (left,) = draw(runner, planned(offer, asked), cancel_at={0: 2})
    assert (left.outcome, left.films) == (None, [])
    (next_one,) = draw(runner, planned(offer, wanted()))
    np.testing.assert_array_equal(next_one.pictures, stock(pipe))


# ------------------------------------------------------------------------------------------------- in pieces


@pytest.mark.parametrize(
    ("kind", "frames", "pieces"), [("wan", 9, [1, 4, 4]), ("wan_i2v", 9, [1, 4, 4]), ("cogvideox", 17, [9, 8])]
)
def test_the_pieces_are_the_video(kind: str, frames: int, pieces: list[int], tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline(kind)
    offer = offer_of(pipe)
    expected = stock(pipe, kind, num_frames=frames)
    runner = runner_of(pipe, offer, Pieces(pipe))
    (recorder,) = draw(runner, planned(offer, wanted(kind, frames=frames, streamed=True)))
    assert [len(piece) for piece in recorder.films] == pieces
    np.testing.assert_array_equal(np.concatenate(recorder.films), expected)
    np.testing.assert_array_equal(recorder.pictures, expected)
    assert not pipe.vae.decoder._forward_hooks
    (whole,) = draw(runner, planned(offer, wanted(kind, frames=frames)))
    assert whole.films == []


@pytest.mark.parametrize("kind", ["sd", "qwenimage", "stableaudio"])
def test_pipelines_that_decode_as_a_whole_have_no_pieces(kind: str, tiny_pipeline: Pipelines) -> None:
    with pytest.raises(ValueError, match=r"--diffusion-streaming-output: .*Pipeline decodes a video as a whole"):
        Pieces(tiny_pipeline(kind))


# ------------------------------------------------------------------------------------------------- length and rate


@pytest.mark.parametrize(
    ("fields", "frames", "fps"),
    [
        ({}, 81, 16.0),
        ({"frames": 5}, 5, 16.0),
        ({"frames": 1}, 1, 16.0),
        ({"seconds": 1.0}, 17, 16.0),
        ({"seconds": 1.1}, 17, 16.0),
        ({"seconds": 1.2}, 21, 16.0),
        ({"seconds": 0.01}, 1, 16.0),
        ({"seconds": 1.0, "fps": 24.0}, 25, 24.0),
        ({"seconds": 2.0, "fps": 23.976}, 49, 23.976),
        ({"frames": 9, "fps": 30.0}, 9, 30.0),
    ],
)
def test_the_length_is_the_nearest_that_can_be_made(
    fields: dict[str, Any], frames: int, fps: float, offer: Offer
) -> None:
    call = planned(offer, wanted(**{"frames": 0} | fields))
    assert (call.arguments["num_frames"], call.fps) == (frames, fps)


def test_a_configured_length_holds_for_requests_without_one(tiny_pipeline: Pipelines) -> None:
    offer = offer_of(tiny_pipeline("wan"), default_sampling_params={"num_frames": 13})
    assert planned(offer, wanted(frames=0)).arguments["num_frames"] == 13
    assert planned(offer, wanted()).arguments["num_frames"] == 9
    assert json.loads(offer.card())["video"]["frames"] == 13


def test_a_length_that_only_the_pipeline_knows_is_left_to_it(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("cogvideox")
    offer = offer_of(pipe)
    call = planned(offer, wanted(frames=0))
    assert "num_frames" not in call.arguments
    (recorder,) = draw(runner_of(pipe, offer), call)
    assert len(recorder.pictures) == pipe.transformer.config.sample_frames


CLASSES = [
    ("WanPipeline", {"num_frames": 81}, {}, Video("num_frames", "", 81, 16.0, 4)),
    ("CogVideoXPipeline", {"num_frames": None}, {}, Video("num_frames", "", 0, 8.0, 4)),
    ("HunyuanVideoPipeline", {"num_frames": 129}, {"num_frames": 61}, Video("num_frames", "", 61, 24.0, 4)),
    ("LTXPipeline", {"num_frames": 161, "frame_rate": 25}, {}, Video("num_frames", "frame_rate", 161, 25.0, 4)),
    (
        "LTXPipeline",
        {"num_frames": 161, "frame_rate": 25},
        {"frame_rate": 30},
        Video("num_frames", "frame_rate", 161, 30.0, 4),
    ),
    ("SanaVideoPipeline", {"frames": 81}, {}, Video("frames", "", 81, 16.0, 4)),
    ("LattePipeline", {"video_length": 16}, {}, Video("video_length", "", 16, 8.0, 4)),
    ("WanVideoToVideoPipeline", {"video": None}, {}, None),
]


@pytest.mark.parametrize(("name", "call", "configured", "expected"), CLASSES)
def test_classes_name_length_and_rate_in_their_own_way(
    name: str, call: dict[str, Any], configured: dict[str, Any], expected: Video | None
) -> None:
    assert video_of(name, call, configured, 4) == expected


def test_a_configured_length_that_cannot_be_is_refused_at_the_start(tiny_pipeline: Pipelines) -> None:
    with pytest.raises(ValueError, match=r"num_frames among the sampling defaults: WanPipeline .* such as 81, not 80"):
        offer_of(tiny_pipeline("wan"), default_sampling_params={"num_frames": 80})


def test_the_small_wan_2_2_is_faster(tiny_pipeline: Pipelines) -> None:
    assert videocall.choose(wanted("wan_i2v"), offer_of(tiny_pipeline("wan_i2v")))[1].fps == 24
    assert videocall.choose(wanted(), offer_of(tiny_pipeline("wan")))[1].fps == 16


def test_a_class_that_asks_for_the_rate_is_told_it(offer: Offer) -> None:
    mode, video = videocall.choose(wanted(), offer)
    told = msgspec.structs.replace(video, rate="frame_rate", fps=25.0)
    for fps, expected in ((0.0, 25), (12.0, 12), (23.976, 23.976)):
        call = videocall.plan(wanted(fps=fps), mode, told, Inputs(), offer, (), MOST)
        assert (call.arguments["frame_rate"], call.fps) == (expected, expected)
        assert type(call.arguments["frame_rate"]) is type(expected)


@pytest.mark.parametrize("tokens", [0, -5, 4097, 10**9])
def test_lengths_of_prompts_have_bounds(tokens: int, offer: Offer) -> None:
    with pytest.raises(EngineError, match="max_sequence_length is between 1 and 4096"):
        planned(offer, wanted(extra={"max_sequence_length": tokens}))


# ------------------------------------------------------------------------------------------------- decoding


def test_decoding_shows_signs_of_life(tiny_pipeline: Pipelines) -> None:
    """It takes minutes, and who shows none is taken for dead."""
    pipe = tiny_pipeline("wan")
    offer = offer_of(pipe)
    runner = runner_of(pipe, offer)
    at_last_step: list[int] = []

    class Counting(Recorder):
        def stepped(self, row: Row, step: int, steps: int) -> None:
            at_last_step[:] = [runner.steps]

    short, long = (planned(offer, wanted(frames=frames)) for frames in (1, 9))
    signs = []
    for call in (short, long):
        runner.draw([Row(call, 0, Counting())])
        signs.append(runner.steps - at_last_step[0])
    assert signs[0] > 10
    assert signs[1] > 2 * signs[0]


def test_decoding_is_left_when_nobody_wants_it(tiny_pipeline: Pipelines) -> None:
    pipe = tiny_pipeline("wan")
    offer = offer_of(pipe)
    runner = runner_of(pipe, offer)
    recorder = Recorder()
    row = Row(planned(offer, wanted()), 0, recorder)
    decoded = []

    def leave(*_: Any) -> None:
        decoded.append(1)
        row.cancelled = True

    handle = pipe.vae.decoder.register_forward_hook(leave)
    runner.draw([row])
    handle.remove()
    assert (recorder.outcome, len(decoded)) == (None, 1)
    (again,) = draw(runner, planned(offer, wanted()))
    assert len(again.pictures) == 9


# ------------------------------------------------------------------------------------------------- size


@pytest.mark.parametrize(
    ("size", "fields", "options", "expected"),
    [
        ((1600, 800), {}, {}, (864, 416)),
        ((64, 96), {}, {}, (64, 96)),
        ((200, 100), {}, {"max_generated_image_size": 10_000}, (128, 64)),
        ((200, 100), {}, {"default_sampling_params": {"width": 96, "height": 96}}, (128, 64)),
        ((1600, 800), {"width": 96, "height": 160}, {}, (96, 160)),
    ],
)
def test_a_video_has_the_shape_of_the_picture_that_it_begins_with(
    size: tuple[int, int],
    fields: dict[str, int],
    options: dict[str, Any],
    expected: tuple[int, int],
    tiny_pipeline: Pipelines,
) -> None:
    asked = wanted("wan_i2v", **{"width": 0, "height": 0} | fields)
    call = planned(offer_of(tiny_pipeline("wan_i2v"), **options), asked, Inputs([noise(*size)]))
    assert (call.width, call.height) == expected
    assert (call.arguments["width"], call.arguments["height"]) == expected


def test_without_a_size_the_pipelines_own_is_drawn(offer: Offer) -> None:
    call = planned(offer, wanted(width=0, height=0))
    assert (call.width, call.height) == (832, 480)
    assert "width" not in call.arguments


# ------------------------------------------------------------------------------------------------- refusals

REFUSED = [
    ({"frames": 10}, "num_frames", "one frame more than a multiple of 4, such as 9, not 10"),
    ({"frames": 4}, "num_frames", "such as 5, not 4"),
    ({"width": 60}, "size", "the nearest are 48x64 and 64x64"),
    ({"num_inference_steps": 2000}, "num_inference_steps", "between 1 and 1000"),
    ({"extra": {"num_frames": 9}}, "extra_params.num_frames", "takes no num_frames"),
    ({"extra": {"strength": 0.5}}, "extra_params.strength", "takes no strength"),
]


@pytest.mark.parametrize(("fields", "param", "said"), REFUSED)
def test_what_the_pipeline_cannot_do_is_refused(fields: dict[str, Any], param: str, said: str, offer: Offer) -> None:
    with pytest.raises(EngineError, match=said) as caught:
        planned(offer, wanted(**fields))
    assert (caught.value.failed.status, caught.value.failed.param) == (400, param)


def test_more_pixels_than_allowed_are_refused(offer: Offer) -> None:
    assert planned(offer, wanted(), most_pixels=9 * 64 * 64).arguments["num_frames"] == 9
    with pytest.raises(EngineError, match=r"9 frames of 64x64 .*--max-video-pixels\): 8 frames") as caught:
        planned(offer, wanted(), most_pixels=9 * 64 * 64 - 1)
    assert (caught.value.failed.status, caught.value.failed.param) == (400, "seconds")


@pytest.mark.parametrize(
    ("kind", "images", "param", "said"),
    [
        ("sd", 0, None, "StableDiffusionPipeline makes no videos"),
        ("stableaudio", 0, None, "StableAudioPipeline makes no videos"),
        ("wan", 1, "input_reference", "begins its videos with no given picture"),
        ("wan_i2v", 0, "input_reference", "needs the picture that the video begins with"),
        ("wan_i2v", 2, "input_reference", "WanImageToVideoPipeline takes one picture, not 2"),
    ],
)
def test_beginnings_that_a_pipeline_does_not_take(
    kind: str, images: int, param: str | None, said: str, tiny_pipeline: Pipelines
) -> None:
    asked = wanted(images=[PictureSource(param="input_reference")] * images)
    with pytest.raises(EngineError, match=said) as caught:
        videocall.choose(asked, offer_of(tiny_pipeline(kind)))
    assert (caught.value.failed.status, caught.value.failed.param) == (400, param)


# ------------------------------------------------------------------------------------------------- what is told


@pytest.mark.parametrize(
    ("kind", "kinds", "modalities"),
    [
        ("wan", ["image", "video"], ["image", "video"]),
        ("cogvideox", ["image", "video"], ["image", "video"]),
        ("wan_i2v", ["video"], ["video"]),
        ("sd", ["image", "image_edit", "image_variation"], ["image"]),
        ("stableaudio", ["sound"], ["audio"]),
    ],
)
def test_what_a_pipeline_makes(kind: str, kinds: list[str], modalities: list[str], tiny_pipeline: Pipelines) -> None:
    offer = offer_of(tiny_pipeline(kind))
    assert (offer.kinds(), offer.modalities()) == (kinds, modalities)
    assert ("video" in json.loads(offer.card())) == ("video" in kinds)


def test_the_card_tells_of_lengths_and_rates(offer: Offer) -> None:
    card = json.loads(offer.card())
    assert card["video"] == {"frames": 81, "frame_step": 4, "fps": 16.0}
    assert "num_frames" not in card["parameters"]


# ------------------------------------------------------------------------------------------------- the engine


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def ask(engine: Any, asked: VideoTask) -> Asked:
    request = asking_for(asked)
    await engine.run(request)
    return request


def asking_for(asked: VideoTask) -> Asked:
    request = Asked(task())
    request.kind, request.body = "video", encode_task(asked)
    return request


async def cancelled(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize("borrowed", [False, True])
async def test_the_engine_answers_with_one_file(
    borrowed: bool, tiny_pipelines: Directories, tiny_pipeline: Pipelines, directory: Path
) -> None:
    expected = stock(tiny_pipeline("wan_i2v"), "wan_i2v")
    transport = {"enable_borrowed_frames": borrowed}
    async with started(tiny_pipelines("wan_i2v"), video_output_transport=transport) as engine:
        request = await ask(engine, wanted("wan_i2v", progress=True))
        assert engine.load().running + engine.load().waiting == 0
        assert os.listdir(directory) == []
    assert [type(event) for event in request.events] == [m.Accepted, *[m.Progress] * 2, m.Video, m.Usage, m.Done]
    assert request.of(m.Progress) == [m.Progress(1, 2), m.Progress(2, 2)]
    (video,) = request.of(m.Video)
    assert (video.width, video.height, video.frames, video.fps, video.seed) == (64, 64, 9, 24.0, 7)
    frames = played(video.data)
    assert len(frames) == 9
    assert alike(frames, expected)
    (usage,) = request.of(m.Usage)
    assert (usage.prompt_tokens > 0, usage.completion_tokens) == (True, 0)


async def test_the_engine_answers_in_pieces(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("wan"), diffusion_streaming_output=True) as engine:
        request = await ask(engine, wanted(streamed=True, fps=12.0))
        whole = await ask(engine, wanted(fps=12.0))
        picture = await asking.ask(engine, task())
    assert request.of(m.Progress) == []
    pieces = request.of(m.Video)
    assert [type(event) for event in request.events] == [m.Accepted, *[m.Video] * len(pieces), m.Usage, m.Done]
    assert [piece.frames for piece in pieces] == [1, 4, 4, 0]
    assert {(piece.width, piece.height, piece.fps, piece.seed) for piece in pieces} == {(64, 64, 12.0, 7)}
    frames = played(b"".join(piece.data for piece in pieces))
    assert len(frames) == 9
    (file,) = whole.of(m.Video)
    assert file.frames == 9
    assert alike(frames, played(file.data))
    assert len(picture.pictures) == 1


async def test_a_picture_at_the_beginning_may_be_of_any_size(tiny_pipelines: Directories) -> None:
    beginning = [PictureSource(data=file(noise(100, 70)))]
    async with started(tiny_pipelines("wan_i2v")) as engine:
        request = await ask(engine, wanted("wan_i2v", images=beginning, width=0, height=0, frames=1))
    (video,) = request.of(m.Video)
    assert played(video.data)[0].shape == (64, 96, 3) == (video.height, video.width, 3)


async def test_what_the_engine_refuses(tiny_pipelines: Directories) -> None:
    async with started(tiny_pipelines("wan")) as engine:
        with pytest.raises(EngineError, match="--diffusion-streaming-output") as streamed:
            await ask(engine, wanted(streamed=True))
        malformed = asking_for(wanted())
        malformed.body = b"\xc1"
        with pytest.raises(EngineError, match="the task is malformed") as caught:
            await engine.run(malformed)
        assert malformed.events == []
    assert (streamed.value.failed.status, streamed.value.failed.param) == (400, "stream")
    assert caught.value.failed.status == 400


async def test_pieces_are_refused_at_the_start_where_there_are_none(tiny_pipelines: Directories) -> None:
    with pytest.raises(ValueError, match="--diffusion-streaming-output"):
        async with started(tiny_pipelines("sd"), diffusion_streaming_output=True):
            pass


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_cancelled_video_leaves_nothing_behind(
    streamed: bool, tiny_pipelines: Directories, directory: Path
) -> None:
    async with started(tiny_pipelines("wan"), diffusion_streaming_output=True) as engine:
        request = asking_for(wanted(num_inference_steps=900, progress=True, streamed=streamed))
        running = asyncio.create_task(engine.run(request))
        await request.until(m.Progress)
        await cancelled(running)
        assert engine.load().running + engine.load().waiting == 0
        next_one = await ask(engine, wanted())
        assert os.listdir(directory) == []
    assert request.of(m.Video) == []
    (video,) = next_one.of(m.Video)
    assert len(played(video.data)) == 9
