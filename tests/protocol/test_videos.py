"""What may stand in a request for a video, the task that is made of it, and pages of videos."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.errors import ApiError
from app.protocol.fields import FieldDecoder
from app.protocol.pictures import LoraChoice, PictureSource
from app.protocol.videos import REFUSED, Video, VideoRequest, page_of
from app.protocol.videotask import VideoTask, decode_task, encode_task

FIRST = PictureSource(data=b"\x89PNG", param="input_reference")
_decoder = FieldDecoder(VideoRequest, REFUSED)


def task(picture: PictureSource | None = None, *, streamed: bool = False, **fields: Any) -> VideoTask:
    return _decoder.build({"prompt": "a boat"} | fields).task(picture, streamed=streamed)


def test_every_field_arrives() -> None:
    made = task(
        seconds="4",
        size="640x480",
        fps=12,
        negative_prompt="rain",
        seed=7,
        num_inference_steps=9,
        guidance_scale=5,
        guidance_scale_2=4,
        true_cfg_scale=3,
        flow_shift=2,
        lora={"name": "style", "scale": 0.5},
        extra_params={"max_sequence_length": 64},
        user="x",
    )
    assert made == VideoTask(
        prompt="a boat",
        negative_prompt="rain",
        width=640,
        height=480,
        seconds=4,
        fps=12,
        seed=7,
        num_inference_steps=9,
        guidance_scale=5,
        guidance_scale_2=4,
        true_cfg_scale=3,
        flow_shift=2,
        lora=[LoraChoice(name="style", scale=0.5)],
        extra={"max_sequence_length": 64},
        progress=True,
    )
    assert decode_task(encode_task(made)) == made


def test_what_is_not_said_is_left_to_the_pipeline() -> None:
    assert task(streamed=True) == VideoTask(prompt="a boat", streamed=True)
    assert task(size="auto", num_frames=33) == VideoTask(prompt="a boat", frames=33, progress=True)


@pytest.mark.parametrize(("given", "expected"), [("4", 4), (4, 4), (4.5, 4.5), ("4.5", 4.5), ("600", 600)])
def test_seconds_are_words_or_numbers(given: str | float, expected: float) -> None:
    assert task(seconds=given).seconds == expected


def test_a_form_has_words_only() -> None:
    asked = _decoder.convert({"prompt": "a boat", "seconds": "4", "num_inference_steps": "9", "lora": '{"name": "a"}'})
    made = asked.task(None, streamed=False)
    assert (made.seconds, made.num_inference_steps, made.lora) == (4, 9, [LoraChoice(name="a")])


@pytest.mark.parametrize(
    ("reference", "param"),
    [("https://a/b.png", "input_reference"), ({"image_url": "https://a/b.png"}, "input_reference.image_url")],
)
def test_a_picture_to_begin_with(reference: Any, param: str) -> None:
    made = task(prompt="", input_reference=reference)
    assert made.images == [PictureSource(url="https://a/b.png", param=param)]
    assert task(FIRST, prompt=None).images == [FIRST]


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"prompt": " "}, "prompt", "must say what the video shows"),
        ({"prompt": None}, "prompt", "must say what the video shows"),
        ({"seconds": "four"}, "seconds", "must be a number"),
        ({"seconds": "-1"}, "seconds", "must be a number"),
        ({"seconds": "٤"}, "seconds", "must be a number"),
        ({"seconds": True}, "seconds", "must be a number or a string"),
        ({"seconds": 0}, "seconds", "more than 0 and at most 600"),
        ({"seconds": "601"}, "seconds", "more than 0 and at most 600"),
        ({"seconds": 4, "num_frames": 9}, "num_frames", "give one of them"),
        ({"num_frames": 0}, "num_frames", ">= 1"),
        ({"num_frames": 10_001}, "num_frames", "<= 10000"),
        ({"fps": 0}, "fps", ">= 1"),
        ({"fps": 241}, "fps", "<= 240"),
        ({"lora": {"name": ""}}, "lora.name", "length >= 1"),
        ({"size": "big"}, "size", "auto or WIDTHxHEIGHT"),
        ({"input_reference": ""}, "input_reference", "is empty"),
        ({"n": 2}, "n", "one video; send several"),
        ({"sizes": "1x1"}, "sizes", "Did you mean size"),
        ({"input_reference": {"file_id": "x"}}, "input_reference.file_id", "keeps no files"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], param: str, told: str) -> None:
    with pytest.raises(ApiError) as caught:
        task(**fields)
    assert (caught.value.status, caught.value.body.error.param) == (400, param)
    assert told in str(caught.value)


# ---------------------------------------------------------------------------------------------------- pages


VIDEOS = [Video(id=f"video_{number}", model="m", created_at=number) for number in range(5)]


@pytest.mark.parametrize(
    ("asked", "ids", "more"),
    [
        ({}, "43210", False),
        ({"descending": False}, "01234", False),
        ({"limit": 2}, "43", True),
        ({"limit": 2, "after": "video_3"}, "21", True),
        ({"limit": 2, "after": "video_2"}, "10", False),
        ({"after": "video_0"}, "", False),
        ({"descending": False, "after": "video_0", "limit": 1}, "1", True),
    ],
)
def test_pages(asked: dict[str, Any], ids: str, more: bool) -> None:
    page = page_of(VIDEOS, **{"after": None, "limit": 20, "descending": True} | asked)
    assert [video.id for video in page.data] == [f"video_{number}" for number in ids]
    assert page.has_more == more
    assert (page.first_id, page.last_id) == ((page.data[0].id, page.data[-1].id) if ids else (None, None))


def test_after_a_video_that_is_not_there() -> None:
    with pytest.raises(ApiError, match="no video of that id"):
        page_of(VIDEOS, after="video_9", limit=20, descending=True)
