"""Of a checkpoint only the vocoder is read; what is missing of it is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.engines.omni.code2wav.engine import Code2WavEngine
from app.engines.omni.code2wav.loading import read_weights
from app.engines.omni.code2wav.options import Code2WavOptions
from app.engines.omni.code2wav.qwen2_5 import load as load_qwen2_5
from app.engines.omni.code2wav.qwen3 import load as load_qwen3
from tests.engines.omni.code2wav.decoding import stage

OPTIONS = Code2WavOptions(device="cpu")


@pytest.fixture
def sharded(qwen3: Path, tmp_path: Path) -> Path:
    """The checkpoint in three files, of which the thinker's and the talker's are broken."""
    model = Path(shutil.copytree(qwen3, tmp_path / "model"))
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    vocoder = {name: tensor for name, tensor in weights.items() if name.startswith("code2wav.")}
    half = len(vocoder) // 2
    save_file(dict(list(vocoder.items())[:half]), model / "2.safetensors")
    save_file(dict(list(vocoder.items())[half:]), model / "3.safetensors")
    (model / "1.safetensors").write_bytes(b"broken")
    files = dict.fromkeys(weights, "1.safetensors")
    for number, name in enumerate(vocoder):
        files[name] = "2.safetensors" if number < half else "3.safetensors"
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return model


def test_other_files_are_not_opened(sharded: Path, qwen3: Path) -> None:
    whole, parts = read_weights(qwen3, "code2wav."), read_weights(sharded, "code2wav.")
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_broken_file_is_named(sharded: Path) -> None:
    (sharded / "2.safetensors").write_bytes(b"broken")
    with pytest.raises(OSError, match=r"2\.safetensors cannot be read"):
        load_qwen3(sharded, OPTIONS)


def test_missing_weights_are_named(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    files = json.loads(index.read_text())["weight_map"]
    del files["code2wav.code_embedding.weight"]
    index.write_text(json.dumps({"weight_map": files}))
    with pytest.raises(ValueError, match=r"no whole code2wav: 1 missing_keys, among them code_embedding\.weight"):
        load_qwen3(sharded, OPTIONS)


def test_a_model_that_does_not_speak_has_no_vocoder(qwen2_5: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(qwen2_5, tmp_path / "model"))
    save_file({"thinker.x": torch.zeros(1)}, model / "model.safetensors")
    with pytest.raises(ValueError, match="is it a model that speaks"):
        load_qwen2_5(model, OPTIONS)


def test_speakers_that_are_none(qwen2_5: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(qwen2_5, tmp_path / "model"))
    for content in (b"no archive", b""):
        (model / "spk_dict.pt").write_bytes(content)
        with pytest.raises(ValueError, match=r"spk_dict\.pt cannot be read"):
            load_qwen2_5(model, OPTIONS)
    torch.save({"Ethan": {"cond": torch.zeros(1, 32)}}, model / "spk_dict.pt")
    with pytest.raises(ValueError, match="each with bos_token, cond and ref_mel"):
        load_qwen2_5(model, OPTIONS)


async def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no config\.json"):
        await Code2WavEngine(stage(tmp_path)).start()
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="'llama', of which no vocoder is known"):
        await Code2WavEngine(stage(tmp_path)).start()
