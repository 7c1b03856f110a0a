"""The pipeline as a graph: which stages a request passes through, by its task and what its answer shall hold."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple, NoReturn

import msgspec

from app.cluster.messages import Capabilities
from app.pipeline.pool import StagePool
from app.protocol.errors import ApiError

NO_REPLICA = "no_replica"
"""The code of the refusal while nobody can serve a stage."""
_VOICES = frozenset({"speech", "code2wav"})
"""Tasks of stages whose card has voices."""
_WRITTEN = "image"
"""The task whose prompt a source writes where the stage has a prompt template."""


class Edge(NamedTuple):
    """What `source` makes is the input of `target`, whose configuration says how."""

    source: StagePool
    target: StagePool

    @property
    def streams(self) -> bool:
        """The target begins with the first piece; otherwise when its input is complete."""
        return self.target.stage.async_chunk

    @property
    def timeout_s(self) -> float:
        """The longest silence at either end of the edge."""
        return self.target.stage.input_timeout_s


class Plan(NamedTuple):
    """The stages of one request: where it begins, and the edges that it takes from there, in their order."""

    first: StagePool
    edges: tuple[Edge, ...] = ()

    @property
    def pools(self) -> list[StagePool]:
        """All of them, in the order in which it passes them."""
        return [self.first, *(edge.target for edge in self.edges)]

    @property
    def chained(self) -> bool:
        """What speaks is no voice that reads the text but parts of the model itself, which are handed its tensors."""
        return len(self.edges) > 1


class Graph:
    """The stages of one pipeline. Several may be entries (a chat path and a picture path in one server)."""

    def __init__(self, pools: list[StagePool]) -> None:
        self.pools = {pool.stage.stage_id: pool for pool in pools}
        self._edges = [Edge(self.pools[source], pool) for pool in pools for source in pool.stage.sources]

    @property
    def entries(self) -> list[StagePool]:
        return [pool for pool in self.pools.values() if pool.stage.entry]

    def capabilities(self) -> Capabilities:
        """What the entry stages can do together, with what the stages behind them make of it."""
        merged = Capabilities()
        cards = []
        for pool in self.entries:
            own = pool.capabilities
            behind = self._beyond(pool) if own.tasks else []
            made = own.output_modalities + [name for target in behind for name in target.stage.outputs]
            merged.tasks += [x for x in own.tasks if x not in merged.tasks]
            merged.input_modalities += [x for x in own.input_modalities if x not in merged.input_modalities]
            merged.output_modalities += [x for x in made if x not in merged.output_modalities]
            merged.max_model_len = max(merged.max_model_len, own.max_model_len)
            cards += [own.card, *(target.capabilities.card for target in behind)]
        merged.card = _merged(tuple(filter(None, cards)))
        return merged

    @property
    def known(self) -> bool:
        """Every entry has had a replica that told what it can do; before that nobody knows who answers what."""
        return all(pool.capabilities.tasks for pool in self.entries)

    @property
    def speaks(self) -> bool:
        """What an entry answers can be heard, by a stage that it feeds or one behind that, whoever is up just now."""
        return any("audio" in behind.stage.outputs for pool in self.entries for behind in self._beyond(pool))

    @property
    def aligner(self) -> StagePool | None:
        """The stage that times words, where there is one; no edge leads to it."""
        return next((pool for pool in self.pools.values() if pool.stage.model_stage == "aligner"), None)

    def expands(self, task: str) -> bool:
        """Another stage writes the prompts of such requests."""
        answering = (pool for pool in self.entries if task in pool.capabilities.tasks)
        return task == _WRITTEN and any(pool.stage.prompt_template for pool in answering)

    def entry_for(self, kind: str) -> StagePool:
        """The entry stage whose engine answers `kind`.

        Raises:
            ApiError: 404 when the served model cannot do it; 503 while that is not known, because nothing is up.
        """
        for pool in self.entries:
            if kind in pool.capabilities.tasks:
                return pool
        if not self.known:
            raise unavailable([pool.stage.name for pool in self.entries if not pool.ready])
        raise ApiError(404, self._missing(kind), code="unsupported_task")

    def _missing(self, kind: str) -> str:
        if kind == "speech" and self.speaks:
            return (
                "the served model speaks its own answers and reads out no text: ask for one with "
                'POST /v1/chat/completions and modalities ["text", "audio"]'
            )
        return f"the served model does not answer {kind} requests"

    def stage_for(self, task: str) -> StagePool:
        """The stage whose engine answers `task`, which may be one that takes no requests of clients.

        Raises:
            ApiError: as `entry_for`.
        """
        inner = (pool for pool in self.pools.values() if not pool.stage.entry and task in pool.capabilities.tasks)
        return next(inner, None) or self.entry_for(task)

    def voice(self) -> StagePool:
        """The stage that has the voices: one that reads out texts, or one that makes a model's own speech heard.

        Raises:
            ApiError: 404, the served model does not speak; 503 while that stage has not told what it can do.
        """
        for pool in self.pools.values():
            if not _VOICES.isdisjoint(pool.capabilities.tasks):
                return pool
        silent = [pool for entry in self.entries for pool in self._beyond(entry) if "audio" in pool.stage.outputs]
        if silent:
            raise unavailable([pool.stage.name for pool in silent])
        return self.entry_for("speech")

    def route(self, task: str, modalities: Collection[str] = ()) -> Plan:
        """The stages for a request of that task, and none that it does not need.

        `modalities`: what the answer shall hold beside what the entry itself makes.

        Raises:
            ApiError: as `entry_for`; 400, no stage behind the entry makes one of the modalities.
        """
        entry = self.entry_for(task)
        if task == _WRITTEN and entry.stage.prompt_template:
            edge = next(edge for edge in self._edges if edge.target is entry)
            return Plan(edge.source, (edge,))
        edges: list[Edge] = []
        for modality in modalities:
            if modality not in entry.stage.outputs:
                edges += self._path(entry, modality) or _refuse(modality)
        return Plan(entry, tuple(edges))

    def _path(self, pool: StagePool, modality: str) -> list[Edge]:
        """From the stage to the next one behind it that makes the modality; empty if there is none."""
        for edge in self._from(pool):
            if modality in edge.target.stage.outputs:
                return [edge]
            if rest := self._path(edge.target, modality):
                return [edge, *rest]
        return []

    def _beyond(self, pool: StagePool) -> list[StagePool]:
        """The stages that it feeds, and those that they feed in turn."""
        fed = [edge.target for edge in self._from(pool)]
        return [stage for target in fed for stage in (target, *self._beyond(target))]

    def _from(self, pool: StagePool) -> list[Edge]:
        """The edges to the stages that it feeds; those that only have their prompts written by it are none."""
        return [edge for edge in self._edges if edge.source is pool and not edge.target.stage.prompt_template]


def _refuse(modality: str) -> NoReturn:
    message = f"modalities: the served model does not answer with {modality} here."
    raise ApiError(400, message, param="modalities", code="unsupported_parameter")


@lru_cache(maxsize=8)
def _merged(cards: tuple[str, ...]) -> str:
    """One JSON object with the members of all; of two of one name the first holds."""
    if len(cards) < 2:
        return "".join(cards)
    merged: dict[str, msgspec.Raw] = {}
    for card in reversed(cards):
        merged |= msgspec.json.decode(card, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(merged).decode()


def unavailable(stages: list[str]) -> ApiError:
    """503: nobody can serve these stages now; the supervisor is at it."""
    return ApiError(
        503,
        f"no replica of stage {', '.join(stages)} is available; try again shortly",
        code=NO_REPLICA,
        headers={"Retry-After": "2"},
    )
