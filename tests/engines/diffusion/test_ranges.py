from __future__ import annotations

import pytest

from app.engines.diffusion.ranges import read_ranges


@pytest.mark.parametrize(("text", "numbers"), [("", set()), ("3", {3}), ("0-2,5", {0, 1, 2, 5}), (" 4-4 , 1 ", {1, 4})])
def test_ranges(text: str, numbers: set[int]) -> None:
    assert read_ranges(text) == numbers


@pytest.mark.parametrize("text", ["a", "1-", "3-1", "1,,2", "-1"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected numbers and ranges such as 0-9,20; got"):
        read_ranges(text)
