from __future__ import annotations

import json

import pytest
import yaml

from app.console.show import as_json_text, as_yaml
from app.settings.resolve import Resolution, examine


@pytest.fixture
def resolution() -> Resolution:
    return examine(
        {"model": "demo", "port": 9000, "api_key": ["k"], "omni_token": "t"}, {"OMNI_SEED": "4", "OMNI_X": "1"}
    )


def test_yaml_reads_back_and_names_origins(resolution: Resolution) -> None:
    text = as_yaml(resolution)
    content = yaml.safe_load(text)
    assert content["server"]["port"] == 9000
    assert content["stages"][0]["engine_args"]["seed"] == 4
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert {"port: 9000 # argument port", "seed: 4 # env OMNI_SEED", "workers: 1 # default"} <= lines
    assert "# warning: OMNI_X is set, but there is no such setting" in lines


@pytest.mark.parametrize("render", [as_yaml, as_json_text])
def test_secrets_are_hidden(resolution: Resolution, render: object) -> None:
    content = yaml.safe_load(render(resolution))  # type: ignore[operator] # YAML reads JSON too
    settings = content.get("settings", content)
    assert settings["server"]["api_keys"] == settings["master"]["token"] == "(hidden)"


def test_json_has_the_origins(resolution: Resolution) -> None:
    assert json.loads(as_json_text(resolution))["settings"]["origins"]["server.port"] == "argument port"
