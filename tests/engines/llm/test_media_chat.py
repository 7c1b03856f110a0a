"""Chat requests with images, through vLLM and a model that sees."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.cluster.messages import Failed
from app.engines.base import EngineError
from app.engines.llm.engine import LlmEngine
from app.settings.schema import MediaConfig, StageConfig
from tests.engines.llm.recorder import Recorder
from tests.media.test_headers import encoded, png_header
from tests.tiny_vision import tiny_idefics3


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shelf")
    (directory / "a.png").write_bytes(encoded("PNG"))
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def seeing(shelf: Path) -> AsyncIterator[LlmEngine]:
    arguments = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 8, "limit_mm_per_prompt": {"image": 2}}
    stage = StageConfig(stage_id=0, name="llm", kind="llm", model=str(tiny_idefics3()), engine_args=arguments)
    media = MediaConfig(allowed_local_media_path=str(shelf), allowed_media_domains=["localhost"], max_bytes=1000)
    engine = LlmEngine(stage, ["tiny"], media)
    capabilities = await engine.start()
    assert capabilities.input_modalities == ["text", "image"]
    yield engine
    await engine.stop()


def url_of(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


async def ask(engine: LlmEngine, *urls: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "x"}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
    body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": parts}]}
    recorder = Recorder("chat", json.dumps(body).encode())
    await engine.run(recorder)
    return recorder.answer()


async def refusal(engine: LlmEngine, *urls: str) -> Failed:
    with pytest.raises(EngineError) as caught:
        await ask(engine, *urls)
    return caught.value.failed


@pytest.mark.asyncio(loop_scope="session")
async def test_images_count_as_prompt(seeing: LlmEngine, shelf: Path) -> None:
    without = (await ask(seeing))["usage"]["prompt"]
    one = (await ask(seeing, url_of(encoded("PNG"))))["usage"]["prompt"]
    two = (await ask(seeing, url_of(encoded("JPEG")), f"file://{shelf}/a.png"))["usage"]["prompt"]
    assert without < one < two


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    ("url", "status", "code"),
    [
        ("http://localhost:9/a.png", 400, "media_not_allowed"),
        ("http://127.0.0.1:9/a.png", 400, "media_not_allowed"),
        ("https://evil.test/a.png", 400, "media_not_allowed"),
        ("file:///etc/passwd", 400, "media_not_allowed"),
        ("/etc/passwd", 400, "invalid_media"),
        ("data:image/png;base64,AAAA", 400, "invalid_media"),
        (url_of(encoded("PNG")[:48]), 400, "invalid_media"),
        (url_of(png_header(40000, 40000)), 413, "media_too_large"),
        (url_of(b"x" * 1001), 413, "media_too_large"),
    ],
)
async def test_refusals_name_the_part(seeing: LlmEngine, url: str, status: int, code: str) -> None:
    failed = await refusal(seeing, url_of(encoded("PNG")), url)
    assert (failed.status, failed.code) == (status, code)
    assert failed.param == "messages[0].content[2].image_url.url"
    assert (await ask(seeing, url_of(encoded("PNG"))))["choices"][0]["finish"]
