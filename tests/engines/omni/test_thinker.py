"""What is handed on of a generation, and when. vLLM's part is played; tests/parity/test_thinker.py has the real one."""

from __future__ import annotations

import array
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import RequestOutputKind, SamplingParams

from app.engines.base import EngineError
from app.engines.llm.arguments import EngineArgumentError, parse
from app.engines.omni import thinker
from app.engines.omni.rowchannel import Rows, Span
from app.engines.omni.thinker import Handover
from app.settings.schema import StageConfig
from tests.engines.llm.recorder import Recorder
from tests.tiny import tiny_qwen3

PROMPT = [7, 8, 9]


def handover() -> tuple[Handover, Recorder, list[Exception]]:
    """One whose generation has been accepted, what it hands on, and what it says has gone wrong."""
    request = Recorder("chat", b"{}", wants_tensors=True)
    made = Handover(request)
    errors: list[Exception] = []
    made.stop = errors.append
    made.begin(PROMPT, SamplingParams())
    made.accept()
    return made, request, errors


def rows(start: int, count: int) -> Rows:
    """One byte a row, its position."""
    positions = b"" if start else bytes(4 * 3 * len(PROMPT))
    return Rows(Span(0, start, count, positions), "uint8", 1, memoryview(bytes(range(start, start + count))))


def output(*tokens: int, finished: bool = False) -> Any:
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=list(tokens))], finished=finished)


def handed(request: Recorder) -> list[tuple[list[int], bytes]]:
    return [
        (array.array("i", bytes(tensors["token_ids"].data)).tolist(), bytes(tensors["rows"].data))
        for tensors in request.handed_on
    ]


def test_a_generation_is_tapped_without_reading_the_cache_token_by_token() -> None:
    made = Handover(Recorder("chat", b"{}", wants_tensors=True))
    made.key = 5
    params = SamplingParams(extra_args={"mine": 1}, output_kind=RequestOutputKind.FINAL_ONLY)
    made.begin(PROMPT, params)
    assert params.extra_args == {"mine": 1, "omni_rows": 5}
    assert params.skip_reading_prefix_cache
    assert params.output_kind == RequestOutputKind.DELTA


def test_rows_of_the_prompt_go_on_at_once_and_others_with_their_tokens() -> None:
    made, request, _ = handover()
    made.take(rows(0, 2))
    made.take(rows(2, 1))
    assert handed(request) == [([7, 8], b"\0\1"), ([9], b"\2")]
    made.see(output(20))
    made.take(rows(3, 1))  # the row of token 20 is computed with the next one, which has not been seen yet
    assert len(request.handed_on) == 2
    made.see(output(21))
    assert handed(request)[2:] == [([20], b"\3")]
    assert [("mrope_positions" in tensors) for tensors in request.handed_on] == [True, False, False]


@pytest.mark.asyncio
async def test_nothing_goes_on_before_the_request_is_accepted() -> None:
    """EngineCore may be quicker than whoever handed the request to it, above all when it has just been woken."""
    request = Recorder("chat", b"{}", wants_tensors=True)
    made = Handover(request)
    made.begin(PROMPT, SamplingParams())
    made.take(rows(0, 3))
    made.see(output(20, finished=True))
    assert request.handed_on == []
    made.accept()
    assert handed(request) == [([7, 8, 9], b"\0\1\2")]
    await made.complete()


@pytest.mark.asyncio
async def test_a_row_that_nobody_asked_for_is_not_handed_on() -> None:
    made, request, errors = handover()
    made.take(rows(0, 3))
    made.take(rows(3, 3))
    made.see(output(20, 21, finished=True))
    await made.complete()
    assert handed(request) == [([7, 8, 9], b"\0\1\2"), ([20], b"\3")]
    assert errors == []


@pytest.mark.asyncio
async def test_rows_that_never_come_end_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinker, "_LATE_S", 0.02)
    made, _, errors = handover()
    made.take(rows(0, 2))
    made.see(output(20, finished=True))
    with pytest.raises(EngineError, match="from position 2 on did not come") as caught:
        await made.complete()
    assert errors == [caught.value]


@pytest.mark.asyncio
async def test_a_gap_ends_the_request_once() -> None:
    made, request, errors = handover()
    made.take(rows(1, 2))
    made.take(rows(6, 1))
    made.see(output(20, finished=True))
    with pytest.raises(EngineError, match="from position 0 to 1 are missing"):
        await made.complete()
    assert len(errors) == 1
    assert request.handed_on == []


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative_config"),
        ({"worker_cls": "some.Worker"}, "worker_cls"),
    ],
)
def test_what_would_break_the_tap_is_refused_by_name(arguments: dict[str, Any], names: str) -> None:
    stage = StageConfig(stage_id=0, name="thinker", kind="llm", model=str(tiny_qwen3()), engine_args=arguments)
    with pytest.raises(EngineArgumentError, match=names):
        thinker.judge(stage, parse(stage, ["tiny"], {}))
