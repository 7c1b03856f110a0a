"""Modular pipelines become stock ones."""

from __future__ import annotations

import json
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch

from tests import tiny_diffusion
from tests.engines.diffusion.opening import Build, draw, loaded


def test_a_modular_pipeline_becomes_the_stock_one(tiny_pipelines: Build, tmp_path: Path) -> None:
    modular = diffusers.ModularPipeline.from_pretrained(str(tiny_pipelines("flux")))
    modular.load_components(dtype=torch.float32)
    modular.save_pretrained(str(tmp_path), overwrite_modular_index=True)
    (tmp_path / "model_index.json").unlink(missing_ok=True)

    pipe = loaded(tmp_path)

    assert type(pipe) is diffusers.FluxPipeline
    assert np.array_equal(draw(pipe), draw(tiny_diffusion.open_pipeline(tiny_pipelines("flux"))))


def test_a_modular_pipeline_without_all_its_parts(tiny_pipelines: Build, tmp_path: Path) -> None:
    where = {"pretrained_model_name_or_path": "owner/vae", "subfolder": ""}
    index = {"_class_name": "FluxModularPipeline", "vae": ["diffusers", "AutoencoderKL", where]}
    (tmp_path / "modular_model_index.json").write_text(json.dumps(index))

    with pytest.raises(ValueError, match=r"the component vae lies elsewhere \(owner/vae\)"):
        loaded(tmp_path)
    index["_class_name"] = "SomethingElseModularPipeline"
    (tmp_path / "modular_model_index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="stands for no stock one"):
        loaded(tmp_path)
