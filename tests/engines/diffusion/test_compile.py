from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from app.engines.diffusion.compile import compile_denoisers, record_blocks
from app.engines.diffusion.parts import denoisers
from tests.engines.diffusion.drawing import draw, given


class Compiler:
    """A backend of torch.compile that runs what it was given, and counts its graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


@pytest.fixture
def compiler() -> Compiler:
    torch.compiler.reset()
    return Compiler()


def test_blocks_of_a_kind_share_one_graph(tiny_pipeline: Callable[[str], Any], compiler: Compiler) -> None:
    pipe = tiny_pipeline("flux")
    before = draw(pipe, steps=2)
    done = list(compile_denoisers(denoisers(pipe), given(diffusion_compile_granularity="regional"), compiler))
    assert np.abs(draw(pipe, steps=2) - before).max() < 1e-5
    assert 2 <= compiler.graphs < 4  # of the double and of the single blocks, two of each
    assert done == ["the repeated blocks of transformer are compiled at the first request of each size"]


@pytest.mark.parametrize(("dynamic", "graphs"), [(False, 3), (True, 1), (None, 2)])
def test_for_each_size_or_for_all(dynamic: bool | None, graphs: int, compiler: Compiler) -> None:
    model = Layer()
    options = given(diffusion_compile_granularity="full", diffusion_compile_dynamic=dynamic)
    list(compile_denoisers({"transformer": model}, options, compiler))
    for size in (2, 3, 5):
        model(torch.zeros(size, 4))
    assert compiler.graphs == graphs


def test_the_whole_model(tiny_pipeline: Callable[[str], Any], compiler: Compiler) -> None:
    pipe = tiny_pipeline("sd3")
    before = draw(pipe, steps=2)
    options = given(diffusion_compile_granularity="full")
    assert list(compile_denoisers(denoisers(pipe), options, compiler)) == [
        "transformer is compiled as a whole at the first request of each size"
    ]
    assert np.abs(draw(pipe, steps=2) - before).max() < 1e-5
    assert compiler.graphs > 0


def test_a_model_that_names_no_blocks_is_compiled_as_a_whole(tiny_pipeline: Callable[[str], Any]) -> None:
    pipe = tiny_pipeline("sd3")
    done = list(compile_denoisers(denoisers(pipe), given(diffusion_compile_granularity="regional"), "eager"))
    assert done == [
        "transformer is compiled as a whole at the first request of each size: SD3Transformer2DModel names no "
        "repeated blocks"
    ]


def test_enforce_eager_turns_it_off(tiny_pipeline: Callable[[str], Any], compiler: Compiler) -> None:
    pipe = tiny_pipeline("flux")
    options = given(diffusion_compile_granularity="full", enforce_eager=True)
    assert list(compile_denoisers(denoisers(pipe), options, compiler)) == ["--enforce-eager: nothing is compiled"]
    draw(pipe, steps=1)
    assert compiler.graphs == 0
    assert list(compile_denoisers(denoisers(pipe), given(), compiler)) == []


def test_cuda_graphs_are_recorded_of_blocks(tiny_pipeline: Callable[[str], Any], compiler: Compiler) -> None:
    pipe = tiny_pipeline("sd3")
    before = draw(pipe, steps=2)
    blocks = len(pipe.transformer.transformer_blocks)
    done = record_blocks("transformer", pipe.transformer, None, backend=compiler)
    assert done == f"{blocks} blocks of transformer become CUDA graphs at the first request of each size"
    assert np.abs(draw(pipe, steps=2) - before).max() < 1e-5
    assert compiler.graphs > 0


def test_without_cuda_there_are_no_graphs(tiny_pipeline: Callable[[str], Any], compiler: Compiler) -> None:
    pipe = tiny_pipeline("flux")
    [done] = compile_denoisers(denoisers(pipe), given(enable_cuda_graph_decode=True), compiler)
    assert done.startswith("--enable-cuda-graph-decode has no effect")
    draw(pipe, steps=1)
    assert compiler.graphs == 0
