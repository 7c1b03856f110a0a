"""What a family of talkers is to their engine: the one contract of app/engines/omni/talker/<family>.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import torch

from app.cluster.tensors import Tensor
from app.protocol.speechtask import SpeechCard


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """What a talker is conditioned on at consecutive positions, on from the chunk before: what vLLM gets at once.

    `rows` [n, width] are one row for each position, as the family's model reads them. `prompt_token_ids`, at most n and
    in the first chunk only, are the ids of the first positions; at those after them stand the ids that are sampled, and
    so it is in later chunks, whose first position is that of the id sampled last. `positions` int64 [3, m], in the
    first chunk only, are the M-RoPE positions of the first m <= n; from there on they count up by one. None: they count
    from 0. `last`: no chunk follows; the model knows itself what goes on for ever.
    """

    rows: torch.Tensor
    prompt_token_ids: Sequence[int] = ()
    positions: torch.Tensor | None = None
    last: bool = False


class Utterance(Protocol):
    """One request. What the thinker makes goes in by `feed`, in order, and comes out as chunks, as early as it can.

    `extra_args` are those of vLLM's SamplingParams: what a worker of the family's has to know of the request.
    """

    extra_args: dict[str, Any]

    def feed(self, tensors: Mapping[str, Tensor]) -> None:
        """Take one handover of the thinker, its next one or more positions (app.engines.omni.talker.handover). The data
        is copied: it is gone when the next one is asked for.

        Raises:
            EngineError: it is not what the family's thinker makes.
        """
        ...

    def end(self) -> None:
        """The thinker has ended; called once."""
        ...

    def take(self) -> Chunk | None:
        """All that can be given to the model and has not been; None where that is nothing. A first chunk needs the
        thinker's first token of the reply: where that never comes there is nothing to say, and never a chunk.
        """
        ...

    async def codes(self, token_ids: Sequence[int]) -> torch.Tensor | None:
        """The codec ids, int32 [n] or [n, codebooks], that belong to the ids that vLLM has sampled since the last call.

        Stop ids are none; None where nothing is left.
        """
        ...

    def close(self) -> None:
        """The request is over, however it ended; called once."""
        ...


class TalkerFamily(Protocol):
    """A talker's checkpoint, read but for its weights; made before vLLM starts.

    `card` has its voices. `sampling` are the checkpoint's values of app.engines.omni.talker.sampling.TalkerSampling.
    `stop_token_ids` end the speech. `architecture` is the name that app.engines.llm.plugin registers its vLLM model
    under, and `hf_overrides` makes the talker's configuration, with that architecture, of the whole model's: a function
    of a module, since vLLM pickles it. `engine_args` are further arguments of vLLM's that it cannot do without.
    """

    card: SpeechCard
    sampling: Mapping[str, Any]
    stop_token_ids: Sequence[int]
    architecture: str
    hf_overrides: Callable[[Any], Any]
    engine_args: Mapping[str, Any]

    def open(self, scratch: str) -> None:
        """On the event loop, before vLLM starts: what is set in the environment now reaches its processes.

        `scratch` is a directory for sockets that goes with the server, "" if there is none.
        """
        ...

    def begin(self, request_id: str, voice: str) -> Utterance:
        """A request's part of the family; cheap. `request_id` is unique in this process, `voice` one of the card's."""
        ...

    def close(self) -> None:
        """The engine has stopped; called once, also where it never started."""
        ...
