"""How rows are made and cut out of a step. A whole vLLM steps in tests/parity/test_thinker.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from app.engines.omni.rowchannel import Span
from app.engines.omni.tap import AddedRows, ChosenRows, Tap, Tapped, recipe

SOUND, IMAGE, VIDEO = 5, 6, 7
_MEDIA = {"audio": SOUND, "image": IMAGE, "video": VIDEO}
THINKER = SimpleNamespace(**{f"{kind}_token_{end}": _MEDIA[kind] for end in ("index", "id") for kind in _MEDIA})
QWEN2_5 = SimpleNamespace(model_type="qwen2_5_omni", thinker_config=THINKER)
QWEN3 = SimpleNamespace(
    model_type="qwen3_omni_moe", thinker_config=THINKER, talker_config=SimpleNamespace(accept_hidden_layer=18)
)
PROMPT = [1, SOUND, SOUND, 2]


def tapped() -> Tapped:
    return Tapped(9, PROMPT, [SOUND, IMAGE, VIDEO], torch.arange(12).view(3, 4))


def test_rows_of_each_family() -> None:
    embeddings, final, layer = (torch.full((3, 2), value) for value in (1.0, 10.0, 100.0))
    media = torch.tensor([False, True, False])
    added, chosen = recipe(QWEN2_5), recipe(QWEN3)
    assert (type(added), type(chosen)) == (AddedRows, ChosenRows)
    assert (added.layers, chosen.layers) == ((), (18,))
    assert added.placeholders == chosen.placeholders == [SOUND, IMAGE, VIDEO]
    assert added.make(embeddings, [final], media)[:, 0].tolist() == [11, 10, 11]
    assert added.make(embeddings, [final], None)[:, 0].tolist() == [11, 11, 11]
    assert chosen.make(embeddings, [final, layer], media)[:, 0].tolist() == [1, 100, 1]
    assert chosen.make(embeddings, [final, layer], None)[:, 0].tolist() == [1, 1, 1]


def test_positions_that_are_computed_once_more_go_out_once() -> None:
    request = tapped()
    first = request.span(0, 3)
    assert first is not None
    assert torch.frombuffer(bytearray(first.positions), dtype=torch.int32).tolist() == list(range(12))
    assert request.span(0, 2) is None  # put off, and begun again
    assert request.span(2, 3) == Span(9, 3, 2)
    assert request.span(5, 1) == Span(9, 5, 1)


def test_what_was_sensed_is_known_by_its_place_in_the_prompt() -> None:
    request = tapped()
    masks = [request.media(Span(9, start, count)) for start, count in ((0, 4), (2, 4), (4, 1))]
    assert [None if mask is None else mask.tolist() for mask in masks] == [
        [False, True, True, False],
        [True, False, False, False],
        None,
    ]
    assert Tapped(9, [1, 2], [SOUND], torch.zeros(3, 2)).media(Span(9, 0, 2)) is None


@pytest.mark.parametrize("key", ["x", True, -1, 2**63, 1.0, [1], None])
def test_a_clients_own_parameter_of_that_name_taps_nothing(key: Any) -> None:
    model = SimpleNamespace(get_mrope_input_positions=lambda prompt, _: (torch.zeros(3, len(prompt)), 0))
    tap = Tap(SimpleNamespace(get_model=lambda: model, execute_model_state=None), recipe(QWEN2_5), None)

    def meet(prompt: list[int] | None, key: Any) -> int:
        params = SimpleNamespace(extra_args={"omni_rows": key})
        new = SimpleNamespace(req_id="a", prompt_token_ids=prompt, mm_features=[], sampling_params=params)
        tap.follow(SimpleNamespace(finished_req_ids=set(), scheduled_new_reqs=[new]))
        return len(tap._requests)

    assert meet(PROMPT, key) == 0
    assert meet(None, 3) == 0
    assert meet(PROMPT, 3) == 1
    tap.follow(SimpleNamespace(finished_req_ids={"a"}, scheduled_new_reqs=[]))
    assert tap._requests == {}
