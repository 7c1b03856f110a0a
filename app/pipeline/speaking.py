"""What makes a chat heard: a voice that reads out its text, or parts of the model itself, which take its tensors."""

from __future__ import annotations

from collections.abc import Sequence

from app.pipeline.chain import TensorChain
from app.pipeline.edge import Part
from app.pipeline.graph import Plan
from app.pipeline.request import RequestStream
from app.pipeline.spoken import SpokenStream
from app.pipeline.spokenchain import SpokenChain
from app.protocol.audiochat import of_audio
from app.telemetry.requests import RequestMeter

TALK = "talk"
"""The kind that makes codec frames of what a chat hands on, for the stage behind it."""

Spoken = SpokenStream | SpokenChain


def kinds_behind(plan: Plan) -> tuple[str, ...]:
    """What the stages behind the one that answers the chat are asked for."""
    return (TALK, "code2wav") if plan.chained else ("speech",)


def spoken_answer(plan: Plan, streams: Sequence[RequestStream], meter: RequestMeter) -> Spoken:
    """The answer by the requests of all stages, none of which has been started; `meter` counts the whole."""
    if not plan.chained:
        (edge,) = plan.edges
        text, speech = streams
        return SpokenStream(text, speech, meter, streams=edge.streams, timeout_s=edge.timeout_s)
    behind = [
        Part(edge.target.stage.name, stream, edge.timeout_s, of_audio)
        for edge, stream in zip(plan.edges, streams[1:], strict=True)
    ]
    return SpokenChain(TensorChain([Part(plan.first.stage.name, streams[0]), *behind]), meter)
