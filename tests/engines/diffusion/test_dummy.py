"""Random weights in the shape of a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import tiny_diffusion
from tests.engines.diffusion.opening import Build, draw, loaded


@pytest.mark.parametrize("kind", ["sd", "flux", "qwenimage", "wan", "zimage", "stableaudio", "sd3"])
def test_dummy_makes_weights_of_the_same_shape_and_no_other_part(kind: str, tiny_pipelines: Build) -> None:
    real = tiny_diffusion.open_pipeline(tiny_pipelines(kind))
    made, again = (loaded(tiny_pipelines(kind), diffusion_load_format="dummy", dtype="bfloat16") for _ in range(2))

    assert type(made) is type(real)
    for name, part in real.components.items():
        if isinstance(part, torch.nn.Module):
            weights = {k: (v.shape, torch.bfloat16) for k, v in part.state_dict().items() if v.is_floating_point()}
            found = {k: v for k, v in getattr(made, name).state_dict().items() if k in weights}
            assert {k: (v.shape, v.dtype) for k, v in found.items()} == weights
            assert all(torch.equal(v, getattr(again, name).state_dict()[k]) for k, v in found.items())
    assert made.scheduler.config == real.scheduler.config
    assert np.isfinite(draw(made.to(torch.float32))).all()


def test_dummy_reads_no_weights(tiny_pipelines: Build, tmp_path: Path) -> None:
    shutil.copytree(tiny_pipelines("flux"), tmp_path / "flux")
    for file in (tmp_path / "flux").rglob("*.safetensors"):
        file.unlink()

    assert draw(loaded(tmp_path / "flux", diffusion_load_format="dummy")).shape == (1, 64, 64, 3)


def test_a_component_of_unknown_code_cannot_be_made_up(tiny_pipelines: Build, tmp_path: Path) -> None:
    shutil.copytree(tiny_pipelines("flux"), tmp_path / "flux")
    index = json.loads((tmp_path / "flux" / "model_index.json").read_text())
    index["transformer"] = ["my_code", "MyTransformer"]
    (tmp_path / "flux" / "model_index.json").write_text(json.dumps(index))

    with pytest.raises(ValueError, match=r"transformer of .* has a class of its own"):
        loaded(tmp_path / "flux", diffusion_load_format="dummy")
