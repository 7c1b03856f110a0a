from __future__ import annotations

import pytest

from app.console.options import spread_lists


@pytest.mark.parametrize(
    ("typed", "spread"),
    [
        ("demo --served-model-name a b --port 1", "demo --served-model-name a --served-model-name b --port 1"),
        ("demo --served_model_name a", "demo --served_model_name a"),
        ("--api-key k --api-key l demo", "--api-key k --api-key l --api-key demo"),
        ("--served-model-name=a demo", "--served-model-name=a demo"),
        ("demo --api-key k -- --api-key a b", "demo --api-key k -- --api-key a b"),
        ("demo --port 1 x", "demo --port 1 x"),
    ],
)
def test_words_after_a_list_flag_belong_to_it(typed: str, spread: str) -> None:
    assert spread_lists(typed.split()) == spread.split()
