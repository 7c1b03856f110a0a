"""Which stage answers what, and the two ways in which none does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from app.cluster import messages as m
from app.cluster.access import Access
from app.cluster.transport import new_context
from app.pipeline.graph import Graph, unavailable
from app.pipeline.pool import StagePool
from app.protocol.errors import ApiError
from app.settings.schema import StageConfig


def stage(stage_id: int, name: str, entry: bool = True) -> StageConfig:
    return StageConfig(stage_id=stage_id, name=name, kind="stub", model="m", entry=entry)


def up(stage_id: int, *tasks: str) -> m.ReplicaInfo:
    capabilities = m.Capabilities(list(tasks))
    return m.ReplicaInfo(stage_id, 0, f"ipc:///nowhere/r{stage_id}.sock", "up", "here", 1, m.Load(), capabilities)


@pytest.fixture
async def graph() -> AsyncIterator[Graph]:
    """A thinker that is an entry, a talker that is none, a painter that is another entry."""
    context = new_context()
    stages = [stage(0, "thinker"), stage(1, "talker", entry=False), stage(2, "painter")]
    made = Graph([StagePool(x, context, "client", Access()) for x in stages])
    yield made
    for pool in made.pools.values():
        pool.close()
    context.term()


async def test_the_entry_that_can_do_it_answers(graph: Graph) -> None:
    graph.pools[0].update([up(0, "chat", "completion")])
    graph.pools[1].update([up(1, "talk")])
    graph.pools[2].update([up(2, "image")])
    assert [x.stage.name for x in graph.entries] == ["thinker", "painter"]
    assert graph.entry_for("completion") is graph.pools[0]
    assert graph.entry_for("image") is graph.pools[2]
    with pytest.raises(ApiError) as caught:
        graph.entry_for("talk")  # a stage of the middle takes no requests
    assert (caught.value.status, caught.value.body.error.code) == (404, "unsupported_task")


async def test_what_is_not_known_yet_is_503_and_no_404(graph: Graph) -> None:
    graph.pools[0].update([up(0, "chat")])
    assert graph.entry_for("chat") is graph.pools[0]
    with pytest.raises(ApiError) as caught:
        graph.entry_for("image")
    assert (caught.value.status, caught.value.body.error.code) == (503, "no_replica")
    assert "painter" in str(caught.value)
    assert "thinker" not in str(caught.value)
    assert not graph.known
    graph.pools[2].update([up(2, "image")])
    assert graph.known
    graph.pools[2].update([])
    assert graph.known  # what has been told is not forgotten


async def test_a_stage_that_is_down_is_still_the_one_to_ask(graph: Graph) -> None:
    graph.pools[0].update([up(0, "chat")])
    graph.pools[0].update([])
    assert graph.entry_for("chat") is graph.pools[0]


async def test_the_entries_can_together_what_each_can(graph: Graph) -> None:
    text = m.Capabilities(["chat"], 4096, ["text"], ["text"])
    painter = m.Capabilities(["image"], 0, ["text", "image"], ["image"], card='{"class": "P"}')
    hidden = m.Capabilities(["talk"], 9999, ["audio"], ["audio"], card='{"class": "T"}')
    assert graph.capabilities() == m.Capabilities()
    for stage_id, own in ((0, text), (1, hidden), (2, painter)):
        info = msgspec.structs.replace(up(stage_id), capabilities=own)
        graph.pools[stage_id].update([info])
    for _ in range(2):  # what was merged is not what a stage said
        assert graph.capabilities() == m.Capabilities(
            ["chat", "image"], 4096, ["text", "image"], ["text", "image"], card='{"class": "P"}'
        )


def spoken_and_drawn() -> list[StageConfig]:
    """A writer that feeds two stages: one speaks, and takes no requests of its own; one has its prompts written."""
    return [
        stage(0, "writer"),
        StageConfig(stage_id=1, name="voice", kind="stub", model="m", entry=False, outputs=["audio"], sources=[0]),
        StageConfig(
            stage_id=2,
            name="painter",
            kind="stub",
            model="m",
            outputs=["image"],
            sources=[0],
            prompt_template="Describe {prompt}",
            async_chunk=False,
            input_timeout_s=7,
        ),
        stage(3, "sketcher"),
    ]


@pytest.fixture
async def branched() -> AsyncIterator[Graph]:
    context = new_context()
    made = Graph([StagePool(x, context, "client", Access()) for x in spoken_and_drawn()])
    made.pools[0].update([msgspec.structs.replace(up(0), capabilities=TEXT)])
    made.pools[1].update(
        [msgspec.structs.replace(up(1), capabilities=m.Capabilities(["speech"], card='{"voices": []}'))]
    )
    made.pools[2].update([msgspec.structs.replace(up(2), capabilities=DRAWING)])
    made.pools[3].update([up(3, "image_edit")])
    yield made
    for pool in made.pools.values():
        pool.close()
    context.term()


TEXT = m.Capabilities(["chat"], 4096, ["text"], ["text"])
DRAWING = m.Capabilities(["image"], 0, ["text"], ["image"], card='{"class": "P"}')


async def test_the_modalities_choose_the_stages(branched: Graph) -> None:
    writer, voice, painter, sketcher = branched.pools.values()
    for text in ((), ("text",)):
        assert branched.route("chat", text) == (writer, ())
    first, (edge,) = branched.route("chat", ("text", "audio"))
    assert (first, edge.source, edge.target) == (writer, writer, voice)
    assert (edge.streams, edge.timeout_s) == (True, 600)
    assert branched.route("image_edit") == (sketcher, ())
    with pytest.raises(ApiError) as caught:
        branched.route("chat", ("image",))  # the painter has its prompts written; it does not paint the answer
    assert (caught.value.status, caught.value.body.error.param) == (400, "modalities")
    assert (branched.speaks, branched.expands("image"), branched.expands("image_edit")) == (True, True, False)
    assert not branched.expands("chat")
    first, (edge,) = branched.route("image")
    assert (first, edge.target, edge.streams, edge.timeout_s) == (writer, painter, False, 7)


async def test_what_stands_behind_an_entry_is_told_of(branched: Graph) -> None:
    told = branched.capabilities()
    assert told.tasks == ["chat", "image", "image_edit"]
    assert told.output_modalities == ["text", "audio", "image"]
    assert msgspec.json.decode(told.card) == {"voices": [], "class": "P"}
    assert branched.stage_for("speech") is branched.pools[1]
    assert branched.stage_for("image") is branched.pools[2]
    with pytest.raises(ApiError) as caught:
        branched.entry_for("speech")
    assert caught.value.status == 404
    with pytest.raises(ApiError):
        branched.stage_for("video")


@pytest.fixture
async def chained() -> AsyncIterator[Graph]:
    """Thinker, talker and vocoder, of which only the first is up yet."""
    context = new_context()
    stages = [stage(0, "thinker")]
    for position, (name, outputs) in enumerate((("talker", []), ("code2wav", ["audio"])), 1):
        inner = stage(position, name, entry=False)
        stages.append(msgspec.structs.replace(inner, outputs=outputs, sources=[position - 1]))
    made = Graph([StagePool(x, context, "client", Access()) for x in stages])
    made.pools[0].update([msgspec.structs.replace(up(0), capabilities=TEXT)])
    yield made
    for pool in made.pools.values():
        pool.close()
    context.term()


async def test_sound_may_be_several_stages_away(chained: Graph) -> None:
    thinker, talker, vocoder = chained.pools.values()
    plan = chained.route("chat", ("text", "audio"))
    assert (plan.pools, plan.chained, chained.speaks) == ([thinker, talker, vocoder], True, True)
    assert [(edge.source, edge.target) for edge in plan.edges] == [(thinker, talker), (talker, vocoder)]
    assert chained.route("chat").pools == [thinker]
    assert chained.capabilities().output_modalities == ["text", "audio"]


async def test_who_has_the_voices(chained: Graph, branched: Graph, graph: Graph) -> None:
    with pytest.raises(ApiError) as caught:
        chained.voice()
    assert (caught.value.status, "code2wav" in str(caught.value)) == (503, True)
    card = m.Capabilities(["code2wav"], card='{"voices": ["Ethan"]}')
    chained.pools[2].update([msgspec.structs.replace(up(2), capabilities=card)])
    assert chained.voice() is chained.pools[2]
    assert msgspec.json.decode(chained.capabilities().card) == {"voices": ["Ethan"]}
    assert branched.voice() is branched.pools[1]
    graph.pools[0].update([up(0, "chat")])
    graph.pools[2].update([up(2, "image")])
    with pytest.raises(ApiError, match="the served model does not answer speech requests"):
        graph.voice()


async def test_a_model_that_speaks_its_own_answers_reads_out_no_text(chained: Graph) -> None:
    with pytest.raises(ApiError, match=r"POST /v1/chat/completions and modalities \[\"text\", \"audio\"\]") as caught:
        chained.entry_for("speech")
    assert (caught.value.status, caught.value.body.error.code) == (404, "unsupported_task")


async def test_a_pipeline_that_does_not_speak(graph: Graph) -> None:
    graph.pools[0].update([up(0, "chat")])
    assert not graph.speaks
    with pytest.raises(ApiError) as caught:
        graph.route("chat", ("text", "audio"))
    assert caught.value.status == 400


def test_unavailable_names_the_stages_and_says_when_to_come_back() -> None:
    error = unavailable(["thinker", "painter"])
    assert error.status == 503
    assert "thinker, painter" in str(error)
    assert int(error.headers["Retry-After"]) > 0
