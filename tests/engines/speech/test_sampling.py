"""Sampling parameters: the request's over the stage's, and only what the family has."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from app.engines.base import EngineError
from app.engines.speech.sampling import sampling_of


class Sampling(msgspec.Struct, frozen=True):
    temperature: Annotated[float, msgspec.Meta(gt=0)] | None = None
    top_k: int | None = None


class Nothing(msgspec.Struct, frozen=True):
    """A family without any."""


def test_the_request_is_stronger_than_the_stage_and_null_is_not_given() -> None:
    assert sampling_of(Sampling, {"temperature": 0.5, "top_k": 3}, {"top_k": 5}, "x") == Sampling(0.5, 5)
    assert sampling_of(Sampling, {"temperature": 0.5}, {"temperature": None}, "x") == Sampling()
    assert sampling_of(Sampling, {}, {"temperature": 1}, "x") == Sampling(1.0)


@pytest.mark.parametrize(
    ("extra", "cls", "says"),
    [
        ({"top_p": 0.5}, Sampling, "x models have no parameter 'top_p'; did you mean 'top_k'?"),
        ({"beams": 4}, Sampling, "it takes temperature, top_k"),
        ({"beams": 4}, Nothing, "x models have no parameter 'beams'; it takes none"),
        ({"temperature": 0}, Sampling, "temperature: Expected `float` > 0.0; got 0"),
        ({"top_k": "5"}, Sampling, "top_k: Expected `int | null`, got `str`; got '5'"),
    ],
)
def test_what_the_family_has_not_is_refused(extra: dict[str, Any], cls: type[msgspec.Struct], says: str) -> None:
    with pytest.raises(EngineError) as caught:
        sampling_of(cls, {}, extra, "x")
    assert caught.value.failed.status == 400
    assert caught.value.failed.param == next(iter(extra))
    assert says in caught.value.failed.message
