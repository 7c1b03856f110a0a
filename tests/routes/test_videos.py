"""/v1/videos over a scripted model that makes videos."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cluster.messages import Done, Progress, Usage, Video
from app.protocol.errors import ApiError
from app.protocol.pictures import PictureSource
from app.protocol.videotask import VideoTask, decode_task
from app.routes import videos as routes
from tests.routes.serving import ScriptedOrchestrator, Served, Step, exchange
from tests.routes.test_speech import error

PATH, SYNC = "/v1/videos", "/v1/videos/sync"
ASK = {"prompt": "a boat"}
LOST = ApiError(503, "the replica is gone", code="replica_lost")


def piece(data: bytes, frames: int = 4) -> Video:
    return Video(memoryview(data), 64, 48, frames, 16.0, 7)


def film(*pieces: bytes) -> list[Step]:
    return [[Progress(1, 4)], [Progress(2, 4)], *([piece(data)] for data in pieces), [Usage(3, 0), Done()]]


def served_with(script: list[Step], directory: Path, **server: Any) -> Served:
    orchestrator = ScriptedOrchestrator(script)
    orchestrator.tasks = ["video"]
    return Served(orchestrator, directory, **server)


def client_of(served: Served, key: str = "") -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test", headers=headers)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return served_with(film(b"head", b"tail"), tmp_path)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(served) as client:
        yield client


def asked(served: Served) -> VideoTask:
    kind, _, body, _ = served.orchestrator.submitted[-1]
    assert kind == "video"
    return decode_task(body)


async def begun(client: httpx.AsyncClient, **fields: Any) -> str:
    answer = await client.post(PATH, json=ASK | fields)
    assert answer.status_code == 200, answer.text
    name: str = answer.json()["id"]
    return name


async def until(client: httpx.AsyncClient, name: str, **wanted: Any) -> dict[str, Any]:
    """The video once it is as wanted."""
    async with asyncio.timeout(10):
        while True:
            video: dict[str, Any] = (await client.get(f"{PATH}/{name}")).json()
            if all(video.get(key) == value for key, value in wanted.items()):
                return video
            await asyncio.sleep(0.01)


# ------------------------------------------------------------------------------------------------ in the background


async def test_a_video_from_its_order_to_its_end(client: httpx.AsyncClient, served: Served) -> None:
    answer = await client.post(PATH, json=ASK | {"seconds": "1", "size": "64x48", "seed": 7})
    video = answer.json()
    assert video["id"].startswith("video_")
    assert {name: video[name] for name in ("object", "model", "status", "progress", "prompt", "size", "seconds")} == {
        "object": "video",
        "model": "smol",
        "status": "queued",
        "progress": 0,
        "prompt": "a boat",
        "size": "64x48",
        "seconds": "1",
    }
    assert asked(served) == VideoTask(prompt="a boat", width=64, height=48, seconds=1, seed=7, progress=True)
    done = await until(client, video["id"], status="completed")
    assert (done["progress"], done["num_frames"], done["seconds"], done["fps"], done["error"]) == (
        100,
        8,
        "0.5",
        16,
        None,
    )
    assert done["created_at"] <= done["completed_at"] < done["expires_at"]
    content = await client.get(f"{PATH}/{video['id']}/content")
    assert content.content == b"headtail"
    assert content.headers["content-type"] == "video/mp4"
    assert content.headers["content-disposition"] == f'attachment; filename="{video["id"]}.mp4"'
    assert served.orchestrator.streams[0].closed.is_set()


async def test_how_far_it_is_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.routes.videowork._TELL_S", 0)
    go = asyncio.Event()
    served = served_with([[Progress(1, 4)], go, *film(b"x")], tmp_path)
    async with client_of(served) as client:
        name = await begun(client)
        video = await until(client, name, status="in_progress")
        assert video["progress"] == 25
        assert error(await client.get(f"{PATH}/{name}/content"), 404) == ("video_id", "video_not_ready")
        go.set()
        await until(client, name, status="completed")


async def test_what_the_model_refuses_is_no_video(client: httpx.AsyncClient, served: Served) -> None:
    async def refuse() -> None:
        raise ApiError(400, "64x50 is no size", param="size")

    served.orchestrator.before = refuse
    assert error(await client.post(PATH, json=ASK)) == ("size", None)
    assert (await client.get(PATH)).json()["data"] == []


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ([[Progress(1, 4)], ApiError(503, "no memory", code="out_of_memory")], "out_of_memory", "no memory"),
        ([[Usage(1, 0), Done()]], "no_video", "made no video"),
        ([RuntimeError("secret")], "internal_error", "The server failed"),
    ],
)
async def test_why_one_was_not_made(script: list[Step], code: str, message: str, tmp_path: Path) -> None:
    async with client_of(served_with(script, tmp_path)) as client:
        name = await begun(client)
        video = await until(client, name, status="failed")
        assert video["error"]["code"] == code
        assert message in video["error"]["message"]
        assert "secret" not in str(video)
        assert error(await client.get(f"{PATH}/{name}/content"), 404) == ("video_id", "video_failed")


async def test_it_is_made_once_more_where_its_replica_dies(tmp_path: Path) -> None:
    served = served_with(film(b"x"), tmp_path)
    orchestrator = served.orchestrator

    async def better_next_time() -> None:
        half: list[Step] = [[Progress(1, 4)], [piece(b"half")], LOST]
        orchestrator.script = half if len(orchestrator.submitted) == 1 else film(b"whole")

    orchestrator.before = better_next_time
    async with client_of(served) as client:
        name = await begun(client)
        video = await until(client, name, status="completed")
        assert (video["num_frames"], video["seconds"]) == (4, "0.25"), "nothing of the lost half is counted"
        assert (await client.get(f"{PATH}/{name}/content")).content == b"whole"
    assert len({request_id for _, request_id, _, _ in orchestrator.submitted}) == 2
    assert all(stream.closed.is_set() for stream in orchestrator.streams)


async def test_it_waits_for_a_replica_to_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_PAUSE_S", 0.01)
    served = served_with([LOST], tmp_path)
    orchestrator = served.orchestrator

    async def gone_for_a_while() -> None:
        if 1 < len(orchestrator.submitted) < 5:
            raise ApiError(503, "no replica", code="no_replica")
        if len(orchestrator.submitted) == 5:
            orchestrator.script = film(b"whole")

    orchestrator.before = gone_for_a_while
    async with client_of(served) as client:
        await until(client, await begun(client), status="completed")


async def test_one_that_waits_for_a_replica_can_be_deleted(tmp_path: Path) -> None:
    served = served_with([LOST], tmp_path)
    waits = asyncio.Event()

    async def gone_for_good() -> None:
        if len(served.orchestrator.submitted) > 1:
            waits.set()
            raise ApiError(503, "no replica", code="no_replica")

    served.orchestrator.before = gone_for_good
    async with client_of(served) as client:
        name = await begun(client)
        await asyncio.wait_for(waits.wait(), 10)
        await client.delete(f"{PATH}/{name}")
        await asyncio.wait_for(served.litestar.state.video_work.finish(), 10)


async def test_who_leaves_before_it_begins_gets_none(tmp_path: Path) -> None:
    served = served_with(film(b"x"), tmp_path)
    asked_for = asyncio.Event()

    async def busy() -> None:
        asked_for.set()
        await asyncio.Event().wait()

    served.orchestrator.before = busy
    async with client_of(served) as client, exchange(served, PATH, ASK) as running:
        await asyncio.wait_for(asked_for.wait(), 10)
        running.leave()
        await running.rest()
        assert (await client.get(PATH)).json()["data"] == []


async def test_one_that_cannot_be_written_down_is_not_made(tmp_path: Path) -> None:
    served = served_with([asyncio.Event()], tmp_path)
    (tmp_path / "videos").write_text("in the way")
    async with client_of(served) as client:
        assert error(await client.post(PATH, json=ASK), 500)[1] == "internal_error"
    assert served.orchestrator.streams[0].closed.is_set()


async def test_it_fails_where_replicas_keep_dying(tmp_path: Path) -> None:
    served = served_with([LOST], tmp_path)
    async with client_of(served) as client:
        video = await until(client, await begun(client), status="failed")
        assert video["error"]["code"] == "replica_lost"
        assert "Each of the two replicas that made this video was lost" in video["error"]["message"]
    assert len(served.orchestrator.submitted) == 2


async def test_one_that_is_deleted_is_not_made(tmp_path: Path) -> None:
    served = served_with([[Progress(1, 4)], asyncio.Event()], tmp_path)
    async with client_of(served) as client:
        name = await begun(client)
        answer = await client.delete(f"{PATH}/{name}")
        assert answer.json() == {"id": name, "deleted": True, "object": "video.deleted"}
        await asyncio.wait_for(served.orchestrator.streams[0].closed.wait(), 10)
        for method in ("GET", "DELETE"):
            assert error(await client.request(method, f"{PATH}/{name}"), 404) == ("video_id", "video_not_found")
        await asyncio.wait_for(served.litestar.state.video_work.finish(), 10)


async def test_the_end_of_the_server_ends_it(tmp_path: Path) -> None:
    served = served_with([[Progress(1, 4)], asyncio.Event()], tmp_path)
    async with client_of(served) as client:
        name = await begun(client)
        served.stopping.set()
        assert error(await client.post(PATH, json=ASK), 503)[1] == "shutting_down"
        assert error(await client.post(SYNC, json=ASK), 503)[1] == "shutting_down"
        served.draining.set()
        await asyncio.wait_for(served.litestar.state.video_work.finish(), 10)
        assert (await until(client, name, status="failed"))["error"]["code"] == "shutting_down"


# ------------------------------------------------------------------------------------------------ lists and owners


async def test_they_are_listed_in_pages(client: httpx.AsyncClient) -> None:
    names = {await begun(client) for _ in range(3)}
    first = (await client.get(PATH, params={"limit": 2})).json()
    rest = (await client.get(PATH, params={"limit": 2, "after": first["last_id"]})).json()
    assert (first["object"], first["has_more"], rest["has_more"]) == ("list", True, False)
    listed = [video["id"] for page in (first, rest) for video in page["data"]]
    assert set(listed) == names
    backwards = (await client.get(PATH, params={"order": "asc"})).json()["data"]
    assert [video["id"] for video in backwards] == listed[::-1]


@pytest.mark.parametrize(
    "params", [{"limit": 0}, {"limit": 101}, {"limit": "x"}, {"order": "up"}, {"after": "video_x"}]
)
async def test_pages_that_there_are_not(params: dict[str, Any], client: httpx.AsyncClient) -> None:
    answer = await client.get(PATH, params=params)
    assert error(answer) == (next(iter(params)), "invalid_value")


async def test_a_key_sees_its_own(tmp_path: Path) -> None:
    served = served_with(film(b"x"), tmp_path, api_keys=["a", "b"])
    async with client_of(served, "a") as mine, client_of(served, "b") as theirs:
        name = await begun(mine)
        await until(mine, name, status="completed")
        for path in (f"{PATH}/{name}", f"{PATH}/{name}/content"):
            assert error(await theirs.get(path), 404) == ("video_id", "video_not_found")
        assert error(await theirs.delete(f"{PATH}/{name}"), 404) == ("video_id", "video_not_found")
        assert (await theirs.get(PATH)).json()["data"] == []
        assert [video["id"] for video in (await mine.get(PATH)).json()["data"]] == [name]
        async with client_of(served) as nobody:
            assert error(await nobody.get(f"{PATH}/{name}"), 401)[1] == "invalid_api_key"


@pytest.mark.parametrize("name", ["video_x", "video_" + "0" * 32, "..%2f..%2fetc", "record.json"])
async def test_what_is_no_video(name: str, client: httpx.AsyncClient) -> None:
    assert (await client.get(f"{PATH}/{name}")).status_code == 404


async def test_a_file_that_had_to_make_room(client: httpx.AsyncClient, tmp_path: Path) -> None:
    name = await begun(client)
    await until(client, name, status="completed")
    for path in (tmp_path / "generated").iterdir():
        path.unlink()
    assert error(await client.get(f"{PATH}/{name}/content"), 404) == ("video_id", "file_not_found")
    assert (await client.delete(f"{PATH}/{name}")).status_code == 200


async def test_other_variants_are_refused(client: httpx.AsyncClient) -> None:
    name = await begun(client)
    await until(client, name, status="completed")
    answer = await client.get(f"{PATH}/{name}/content", params={"variant": "thumbnail"})
    assert error(answer) == ("variant", "invalid_value")


# ------------------------------------------------------------------------------------------------ what is sent


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"files": {"input_reference": ("a.png", b"\x89PNG", "image/png")}}, PictureSource(b"\x89PNG", "", "r")),
        ({"files": {"input_reference": (None, "https://a/b.png")}}, PictureSource(b"", "https://a/b.png", "r")),
        ({"files": {"input_reference[image_url]": (None, "data:x")}}, PictureSource(b"", "data:x", "r")),
    ],
)
async def test_a_form(more: dict[str, Any], expected: PictureSource, client: httpx.AsyncClient, served: Served) -> None:
    answer = await client.post(PATH, data={"prompt": "a boat", "seconds": "4"}, **more)
    assert answer.status_code == 200, answer.text
    (picture,) = asked(served).images
    assert (picture.data, picture.url, picture.param) == (expected.data, expected.url, "input_reference")
    assert asked(served).seconds == 4


@pytest.mark.parametrize(
    ("files", "param"),
    [
        ([("input_reference", (None, "a")), ("input_reference", (None, "b"))], "input_reference"),
        ([("prompt", ("a.txt", b"x", "text/plain"))], "prompt"),
        ([("seconds", (None, "4")), ("seconds", (None, "5"))], "seconds"),
        ([("prompt", (None, "x")), ("seconds", (None, "four"))], "seconds"),
        ([("nonsense", (None, "1"))], "nonsense"),
        ([("stream", (None, "true"))], "stream"),
    ],
)
async def test_forms_that_cannot_be(files: list[Any], param: str, client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, files=[*files, ("size", (None, "64x64"))])
    assert error(answer)[0] == param


async def test_a_picture_in_json(client: httpx.AsyncClient, served: Served) -> None:
    await begun(client, input_reference={"image_url": "https://a/b.png"})
    assert asked(served).images == [PictureSource(url="https://a/b.png", param="input_reference.image_url")]


async def test_what_runs_in_the_background_is_no_stream(client: httpx.AsyncClient, served: Served) -> None:
    answer = await client.post(PATH, json=ASK | {"stream": True})
    assert error(answer) == ("stream", "unsupported_parameter")
    assert SYNC in answer.json()["error"]["message"]
    assert served.orchestrator.submitted == []


@pytest.mark.parametrize("path", [PATH, SYNC])
async def test_bodies_that_cannot_be(path: str, client: httpx.AsyncClient) -> None:
    assert error(await client.post(path, json={"prompt": ""})) == ("prompt", "invalid_value")
    assert error(await client.post(path, json=ASK | {"model": "other"}), 404)[0] == "model"
    assert error(await client.post(path, json=ASK | {"n": 2})) == ("n", "unsupported_parameter")
    assert error(await client.post(path, content=b"{", headers={"content-type": "application/json"}))[0] is None
    assert error(await client.post(path, content=b"x", headers={"content-type": "text/plain"}), 415)


# ------------------------------------------------------------------------------------------------ waited for


async def test_the_file_in_the_response(client: httpx.AsyncClient, served: Served) -> None:
    answer = await client.post(SYNC, json=ASK | {"num_frames": 9})
    assert answer.content == b"headtail"
    assert answer.headers["content-type"] == "video/mp4"
    assert asked(served) == VideoTask(prompt="a boat", frames=9, progress=True)
    assert (await client.get(PATH)).json()["data"] == []


async def test_no_file_is_an_error(tmp_path: Path) -> None:
    async with client_of(served_with([[Usage(1, 0), Done()]], tmp_path)) as client:
        assert error(await client.post(SYNC, json=ASK), 500)[1] == "no_video"
        assert error(await client.post(SYNC, json=ASK | {"stream": True}), 500)[1] == "no_video"


async def test_the_pieces_of_a_stream_come_as_they_are_made(tmp_path: Path) -> None:
    go = asyncio.Event()
    served = served_with([[piece(b"head", 0)], go, [piece(b"tail")], [Done()]], tmp_path)
    async with exchange(served, SYNC, ASK | {"stream": True}) as running:
        assert await running.chunk() == b"head"
        assert (running.status, running.headers["content-type"]) == (200, "video/mp4")
        assert asked(served) == VideoTask(prompt="a boat", streamed=True)
        go.set()
        assert await running.rest() == b"tail"


async def test_a_failure_before_the_first_piece_has_a_status(tmp_path: Path) -> None:
    async with client_of(served_with([LOST], tmp_path)) as client:
        assert error(await client.post(SYNC, json=ASK | {"stream": True}), 503)[1] == "replica_lost"


async def test_a_failure_after_it_breaks_the_connection(tmp_path: Path) -> None:
    served = served_with([[piece(b"head")], LOST], tmp_path)
    with pytest.raises(AssertionError):  # httpx insists on the end of a response
        async with client_of(served) as client:
            await client.post(SYNC, json=ASK | {"stream": True})
    assert served.orchestrator.streams[-1].closed.is_set()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_stops_it(stream: bool, tmp_path: Path) -> None:
    served = served_with([[piece(b"head")], asyncio.Event()], tmp_path)
    async with exchange(served, SYNC, ASK | {"stream": stream}) as running:
        await asyncio.wait_for(served.orchestrator.accepted.wait(), 5)
        if stream:
            await running.chunk()
        running.leave()
        await asyncio.wait_for(served.orchestrator.streams[0].closed.wait(), 5)


async def test_the_documents_know_the_bodies(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    for path, fields in ((PATH, set()), (SYNC, {"stream"})):
        content = paths[path]["post"]["requestBody"]["content"]
        json, form = (content[kind]["schema"] for kind in ("application/json", "multipart/form-data"))
        assert {"prompt", "seconds", "size", "seed"} | fields <= json["properties"].keys()
        assert form["properties"]["input_reference"] == {"type": "string", "format": "binary"}
