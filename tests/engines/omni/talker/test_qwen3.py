"""What is read of a Qwen3-Omni checkpoint before vLLM starts, and frames that come past vLLM."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from app.engines.omni.rowchannel import RowSender, Span, Step
from app.engines.omni.talker.conditioning import WIDTH
from app.engines.omni.talker.frames import FRAMES
from app.engines.omni.talker.qwen3 import ARCHITECTURE, Qwen3Talker, Qwen3Utterance, talker_config
from tests.tiny_omni import build


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen3_omni_moe", tmp_path_factory.mktemp("omni"))


@pytest.fixture
def changed(checkpoint: Path, tmp_path: Path) -> Any:
    """Writes a configuration with some other values of the talker's."""

    def write(**talker: Any) -> str:
        config = json.loads((checkpoint / "config.json").read_text())
        config["talker_config"] = config["talker_config"] | talker if talker else None
        (tmp_path / "config.json").write_text(json.dumps(config))
        return str(tmp_path)

    return write


def test_voices_and_what_ends_speech(checkpoint: Path) -> None:
    family = Qwen3Talker(str(checkpoint))
    assert (family.card.family, family.card.sample_rate) == ("Qwen3-Omni", 24_000)
    assert (family.card.voices, family.card.default_voice) == (["ethan", "chelsie"], "ethan")
    config = json.loads((checkpoint / "config.json").read_text())
    assert list(family.stop_token_ids) == [config["talker_config"]["codec_eos_token_id"]]


def test_a_checkpoint_that_cannot_talk_says_so(changed: Any) -> None:
    with pytest.raises(ValueError, match="no talker_config"):
        Qwen3Talker(changed())
    with pytest.raises(ValueError, match="no speaker_id"):
        Qwen3Talker(changed(speaker_id=None))


def test_the_talkers_configuration_of_the_whole_models(checkpoint: Path) -> None:
    """Published ones do not say that M-RoPE is interleaved, nor its sections; all layers have experts."""
    whole = transformers.AutoConfig.from_pretrained(checkpoint)
    text = whole.talker_config.text_config
    text.rope_parameters = {"rope_type": "default", "rope_theta": 1e6}
    text.mlp_only_layers = [0]
    made = talker_config(whole)
    assert made.architectures == [ARCHITECTURE]
    assert made.rope_parameters["mrope_interleaved"] is True
    assert made.rope_parameters["mrope_section"] == [24, 20, 20]
    assert made.mlp_only_layers == []
    assert getattr(made, WIDTH) == whole.talker_config.thinker_hidden_size + 2
    assert text.mlp_only_layers == [0], "the whole model's own configuration has been changed"
    empty = transformers.PretrainedConfig()
    assert talker_config(empty) is empty


@pytest.fixture
async def utterances(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("APP_TALKER_FRAMES", "")
    family = Qwen3Talker(str(checkpoint))
    family.open("")
    yield family
    family.close()


class Worker:
    """vLLM's part: sends frames to an utterance, as the worker would."""

    def __init__(self) -> None:
        self._sender = RowSender(os.environ["APP_TALKER_FRAMES"])

    def send(self, utterances: list[Qwen3Utterance], frames: list[list[int]]) -> None:
        spans = [Span(utterance.extra_args[FRAMES]["key"], 0, 1) for utterance in utterances]
        self._sender.send(Step("int32", len(frames[0]), spans), memoryview(np.array(frames, np.int32)).cast("B"))


async def test_frames_wait_for_what_they_begin_with_and_it_for_them(utterances: Qwen3Talker) -> None:
    first, second = utterances.begin("a", "ethan"), utterances.begin("b", "ethan")
    worker = Worker()
    stop = utterances.stop_token_ids[0]
    assert await first.codes([stop]) is None
    waiting = asyncio.create_task(first.codes([1, 2, stop]))
    worker.send([first, second], [[1, 10], [3, 30]])
    await asyncio.sleep(0.05)
    assert not waiting.done()
    worker.send([first], [[2, 20]])
    codes = await asyncio.wait_for(waiting, 5)
    assert codes is not None
    assert codes.tolist() == [[1, 10], [2, 20]]
    codes = await asyncio.wait_for(second.codes([3]), 5)
    assert codes is not None
    assert codes.tolist() == [[3, 30]]
    first.close()
    worker.send([first, second], [[4, 40], [5, 50]])
    codes = await asyncio.wait_for(second.codes([5]), 5)
    assert codes is not None
    assert codes.tolist() == [[5, 50]]
