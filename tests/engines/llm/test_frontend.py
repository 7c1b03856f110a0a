from __future__ import annotations

import asyncio

from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.metrics.stats import SchedulerStats

from app.engines.llm.frontend import Generation, StepMeter


def _output(text: str, *, finished: bool = False) -> RequestOutput:
    part = CompletionOutput(0, text, [1], None, None, "length" if finished else None)
    return RequestOutput("r", None, [1, 2], None, [part], finished)


def _texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


async def _ahead(*texts: str) -> tuple[Generation, RequestOutputCollector]:
    """A generation whose first outputs come before anybody takes them."""
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")

    async def start() -> RequestOutputCollector:
        for text in texts:
            asyncio.get_running_loop().call_soon(lambda text=text: collector.put(_output(text)))
        return collector

    generation = Generation(start, lambda: None)
    await generation.admit()
    await asyncio.sleep(0)
    return generation, collector


async def test_outputs_that_come_before_they_are_taken_stay_apart() -> None:
    generation, collector = await _ahead("a", "b")
    taken: list[RequestOutput] = []
    feeding = asyncio.create_task(generation.feed(taken.append))
    await asyncio.sleep(0)
    collector.put(_output("c", finished=True))
    await asyncio.wait_for(feeding, 5)
    assert _texts(taken) == ["a", "b", "c"]


async def test_iteration_merges_what_its_reader_is_late_for() -> None:
    generation, collector = await _ahead("a", "b")
    first = await anext(generation)
    collector.put(_output("c"))
    collector.put(_output("d", finished=True))
    assert _texts([first, *[output async for output in generation]]) == ["ab", "cd"]


def test_the_load_of_several_engines_is_their_sum() -> None:
    meter = StepMeter()
    for engine, running in ((0, 2), (1, 3), (0, 1)):
        meter.record(SchedulerStats(num_running_reqs=running), None, engine_idx=engine)
    assert (meter.running, meter.steps) == (4, 3)
