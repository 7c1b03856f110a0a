"""The `openai` package against a whole server: two API workers and a tiny Stable Diffusion on the real engine."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from tests import tiny_diffusion
from tests.servers import start_server

STEPS = {"num_inference_steps": 3}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    model = tiny_diffusion.build("sd", tmp_path_factory.mktemp("tiny") / "sd")
    line = ("omni-app", "serve", str(model), "--port", "{port}", "--workers", "2", "--dtype", "float32")
    with start_server((*line, "--served-model-name", "tiny")) as server:
        server.wait_ready(120)
        with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0, timeout=60) as client:
            yield client


def decoded(data: Any) -> Image.Image:
    return Image.open(BytesIO(b64decode(data, validate=True)))


def file(size: tuple[int, int] = (64, 64), colour: str = "red", kind: str = "PNG") -> tuple[str, bytes, str]:
    buffer = BytesIO()
    Image.new("RGB", size, colour).save(buffer, kind)
    return f"a.{kind.lower()}", buffer.getvalue(), f"image/{kind.lower()}"


def mask(size: tuple[int, int] = (64, 64)) -> tuple[str, bytes, str]:
    """Transparent on the left, which is to be drawn anew."""
    pixels = np.full((size[1], size[0], 4), 255, np.uint8)
    pixels[:, : size[0] // 2, 3] = 0
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return "m.png", buffer.getvalue(), "image/png"


def test_the_card_tells_what_can_be_asked(client: openai.OpenAI) -> None:
    model: Any = client.models.retrieve("tiny")
    assert {"image", "image_edit", "image_variation"} <= set(model.tasks)
    assert "num_inference_steps" in model.card["parameters"]
    assert "image" in model.output_modalities


def test_the_same_seed_draws_the_same(client: openai.OpenAI) -> None:
    first, second, other = (
        client.images.generate(prompt="a red circle", n=2, size="64x64", extra_body=STEPS | {"seed": seed})
        for seed in (3, 3, 4)
    )
    assert first.data is not None
    assert second.data is not None
    assert other.data is not None
    assert [item.b64_json for item in first.data] == [item.b64_json for item in second.data]
    assert first.data[1].b64_json == other.data[0].b64_json  # seed + 1
    assert [decoded(item.b64_json).size for item in first.data] == [(64, 64)] * 2
    assert first.usage is not None
    assert first.usage.input_tokens > 0
    assert first.usage.output_tokens > 0


def test_a_stream_with_previews(client: openai.OpenAI) -> None:
    stream = client.images.generate(prompt="x", size="64x64", stream=True, partial_images=2, extra_body=STEPS)
    events: list[Any] = list(stream)
    assert [event.type.rpartition(".")[2] for event in events] == ["partial_image", "partial_image", "completed"]
    assert {decoded(event.b64_json).size for event in events} == {(64, 64)}
    assert events[-1].usage.total_tokens > 0


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_an_edit(client: openai.OpenAI, kind: str) -> None:
    extra = {"num_inference_steps": 4, "strength": 0.5, "seed": 1}
    answer = client.images.edit(image=file(kind=kind), prompt="x", extra_body=extra)
    assert answer.data is not None
    assert decoded(answer.data[0].b64_json).size == (64, 64)


def test_a_mask_keeps_the_rest(client: openai.OpenAI) -> None:
    extra = {"num_inference_steps": 4, "strength": 1, "seed": 1}
    answer = client.images.edit(image=file(), mask=mask(), prompt="x", extra_body=extra)
    assert answer.data is not None
    assert decoded(answer.data[0].b64_json).size == (64, 64)
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.edit(image=file(), mask=("m.png", b"no picture", "image/png"), prompt="x")
    assert caught.value.param == "mask"


def test_a_variation(client: openai.OpenAI) -> None:
    with pytest.deprecated_call():
        answer = client.images.create_variation(image=file(), n=2, extra_body=STEPS | {"strength": 1})
    assert len(answer.data or []) == 2


def test_a_link(client: openai.OpenAI) -> None:
    answer = client.images.generate(
        prompt="x", size="64x64", output_format="webp", response_format="url", extra_body=STEPS
    )
    assert answer.data is not None
    found = httpx.get(str(answer.data[0].url))
    assert found.headers["content-type"] == "image/webp"
    assert Image.open(BytesIO(found.content)).size == (64, 64)


def test_a_chat(client: openai.OpenAI) -> None:
    url = "data:image/png;base64," + b64encode(file()[1]).decode()
    parts: Any = [{"type": "text", "text": "greener"}, {"type": "image_url", "image_url": {"url": url}}]
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": parts}], extra_body={"num_inference_steps": 4}
    )
    content: Any = answer.choices[0].message.content
    assert decoded(content[0]["image_url"]["url"].partition(",")[2]).size == (64, 64)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"size": "65x64"}, "size"),
        ({"size": "8192x8192"}, "size"),
        ({"extra_body": {"true_cfg_scale": 2}}, "true_cfg_scale"),
        ({"extra_body": {"extra_params": {"zzz": 2}}}, "extra_params.zzz"),
        ({"background": "transparent"}, "background"),
    ],
)
def test_what_only_the_pipeline_can_judge(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.images.generate(prompt="x", stream=stream, **fields)
        assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


def test_other_hosts_are_not_asked(client: openai.OpenAI) -> None:
    answer = httpx.post(
        f"{client.base_url}images/edits", json={"prompt": "x", "image": "http://127.0.0.1/a.png"}, timeout=30
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "media_not_allowed", "image")
