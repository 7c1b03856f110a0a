"""The family of a model is told by its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.engines.speech.detect import FAMILIES, find_family


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_by_the_type_in_its_config(tmp_path: Path, family: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "hidden_size": 4}))
    assert find_family(str(tmp_path)) == family


def test_by_the_name_of_the_demo_or_by_what_the_stage_says(tmp_path: Path) -> None:
    assert find_family("demo") == "hibari"
    assert find_family(str(tmp_path), "vits") == "vits"


@pytest.mark.parametrize(
    ("content", "named", "says"),
    [
        (None, "", "holds no model: there is no config.json"),
        ("{", "", "config.json cannot be read"),
        ('{"model_type": "llama"}', "", "no speech family has the model_type 'llama'; known are hibari, vits"),
        ("{}", "", "the model_type ''"),
        ("{}", "vit", "family must be one of hibari, vits, speecht5, bark, csm, dia; got 'vit'; did you mean 'vits'?"),
    ],
)
def test_a_model_that_is_none(tmp_path: Path, content: str | None, named: str, says: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        find_family(str(tmp_path), named)
    assert says in str(caught.value)
