from __future__ import annotations

import json

import msgspec
import pytest

from app.protocol.errors import ApiError
from app.protocol.stageparams import Params, StageParams, for_one_stage, params_of


def given(*entries: dict[str, object] | None) -> StageParams:
    return msgspec.json.decode(json.dumps(entries), type=list[Params | None])


def test_each_stage_gets_its_own() -> None:
    assert params_of(None, 0, 2) == [{}, {}]
    assert params_of(given({"a": 1}), 0, 2) == [{"a": msgspec.Raw(b"1")}, {}]
    assert params_of(given({"a": 1}, None, {"b": 2}), 0, 2)[1] == {"b": msgspec.Raw(b"2")}
    with pytest.raises(ApiError) as caught:
        params_of(given({}, {"a": 1}), 0, 2)
    assert caught.value.body.error.param == "sampling_params_list[1]"


def test_they_stand_among_the_fields_of_the_request() -> None:
    body = b'{"prompt": "x", "sampling_params_list": [{"top_k": 1e0}], "n": 1}'
    asked = for_one_stage(body, given({"top_k": 1}), 0)
    assert json.loads(asked) == {"prompt": "x", "n": 1, "top_k": 1}
    with pytest.raises(ApiError) as caught:
        for_one_stage(body, given({"n": 2}), 0)
    assert caught.value.body.error.param == "sampling_params_list[0].n"
