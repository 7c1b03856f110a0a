"""Which calls of a model can be one, and that nothing is mixed up on the way there and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from app.engines.diffusion import fusing


class Model(torch.nn.Module):
    """Returns what it was given, in the form that `form` says; keeps its arguments."""

    def __init__(self, form: str = "tuple") -> None:
        super().__init__()
        self.form = form
        self.seen: dict[str, Any] = {}

    def forward(self, hidden_states: Any, timestep: torch.Tensor | None = None, **more: Any) -> Any:
        self.seen = {"hidden_states": hidden_states, "timestep": timestep, **more}
        match self.form:
            case "tensor":
                return hidden_states * 2
            case "output":
                return Transformer2DModelOutput(sample=hidden_states * 2)
            case "list":
                return ([part * 2 for part in hidden_states],)
            case "number":
                return 3
        return (hidden_states * 2, None)


def latents(rows: int, seed: int = 0, width: int = 4) -> torch.Tensor:
    return torch.randn(rows, 2, width, generator=torch.Generator().manual_seed(seed))


def forward(model: torch.nn.Module, *args: Any, **kwargs: Any) -> fusing.Forward:
    return fusing.Forward(model, args, kwargs, {})


@pytest.mark.parametrize("form", ["tuple", "tensor", "output"])
def test_outputs_go_back_to_those_who_asked(form: str) -> None:
    model = Model(form)
    given = [latents(1, 1), latents(3, 2), latents(2, 3)]
    results = fusing.run(model, [forward(model, values) for values in given])
    assert len(model.seen["hidden_states"]) == 6
    for values, result in zip(given, results, strict=True):
        sample = result.sample if form == "output" else result if form == "tensor" else result[0]
        assert torch.equal(sample, values * 2)


def test_lists_of_tensors_are_joined_and_divided() -> None:
    model = Model("list")
    given = [list(latents(2, 1)[:, None]), list(latents(1, 2)[:, None])]
    results = fusing.run(model, [forward(model, values) for values in given])
    for values, (parts,) in zip(given, results, strict=True):
        assert all(torch.equal(part, value * 2) for part, value in zip(parts, values, strict=True))


def test_a_single_call_is_passed_as_it_is() -> None:
    model = Model()
    values, time = latents(2), torch.tensor(7)
    fusing.run(model, [forward(model, values, time)])
    assert model.seen["hidden_states"] is values
    assert model.seen["timestep"] is time


def test_each_row_has_its_own_time() -> None:
    model = Model()
    calls = [forward(model, latents(rows), torch.tensor(time)) for rows, time in ((2, 900), (1, 40))]
    assert calls[0].key == calls[1].key
    fusing.run(model, calls)
    assert model.seen["timestep"].tolist() == [900, 900, 40]


def test_texts_of_different_lengths_are_padded_where_the_model_takes_a_mask() -> None:
    model = Model()
    short, long = torch.ones(1, 3, 5), torch.ones(1, 4, 5) * 2
    calls = [
        forward(model, hidden_states=latents(1), encoder_hidden_states=text, encoder_hidden_states_mask=None)
        for text in (short, long)
    ]
    assert calls[0].key == calls[1].key
    fusing.run(model, calls)
    assert model.seen["encoder_hidden_states"].shape == (2, 4, 5)
    assert model.seen["encoder_hidden_states_mask"].tolist() == [[True, True, True, False], [True] * 4]
    assert (
        forward(model, latents(1), encoder_hidden_states=short).key
        != forward(model, latents(1), encoder_hidden_states=long).key
    )


PLACES = torch.arange(6).reshape(3, 2)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"guidance": torch.tensor([3.0])}, {"guidance": torch.tensor([9.0])}, True),
        ({"img_ids": PLACES}, {"img_ids": PLACES.clone()}, True),
        ({"img_ids": PLACES}, {"img_ids": PLACES + 1}, False),
        ({"img_ids": PLACES[None]}, {"img_ids": PLACES[None] + 1}, False),
        ({"shared": torch.ones(5)}, {"shared": torch.zeros(5)}, False),
        ({"img_shapes": [[(1, 4, 4)]]}, {"img_shapes": [[(1, 4, 4)]]}, True),
        ({"img_shapes": [[(1, 4, 4)]]}, {"img_shapes": [[(1, 2, 8)]]}, False),
        ({"scale": 1.0}, {"scale": 2.0}, False),
        ({"layers": [1, 2]}, {"layers": [1, 3]}, False),
        ({"more": {"text_embeds": torch.ones(1, 2)}}, {"more": {"text_embeds": torch.zeros(1, 2)}}, True),
        ({"more": {"text_embeds": torch.ones(1, 2)}}, {"more": {"text_embeds": torch.ones(1, 3)}}, False),
        ({"more": {"scale": 1}}, {"more": {}}, False),
        ({"hint": None}, {"hint": torch.ones(1, 2)}, False),
        ({"rope": torch.ones(1, dtype=torch.float16)}, {"rope": torch.ones(1)}, False),
    ],
)
def test_what_can_be_fused(one: dict[str, Any], other: dict[str, Any], equal: bool) -> None:
    model = Model()
    keys = [forward(model, latents(1, seed), **kwargs).key for seed, kwargs in enumerate((one, other))]
    assert (keys[0] == keys[1]) is equal
    assert forward(Model(), latents(1), **one).key != keys[0]


def test_sizes_are_not_mixed() -> None:
    model = Model()
    assert forward(model, latents(1)).key != forward(model, latents(1, width=5)).key


def test_what_has_no_rows_is_never_fused() -> None:
    model = Model()
    assert forward(model, torch.ones(2)).key != forward(model, torch.ones(2)).key


def test_nested_arguments_are_joined() -> None:
    model = Model()
    calls = [forward(model, latents(1), more={"text_embeds": torch.full((1, 2), float(i))}) for i in range(2)]
    fusing.run(model, calls)
    assert model.seen["more"]["text_embeds"].tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_an_output_without_rows_is_an_error() -> None:
    model = Model("number")
    with pytest.raises(TypeError, match="int, has no rows"):
        fusing.run(model, [forward(model, latents(1)), forward(model, latents(1))])
