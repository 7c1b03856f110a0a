"""A real pipeline behind a whole server: several API workers, clients that leave, bad requests, replicas elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import tiny_diffusion
from tests.faults import pictures
from tests.faults.matrix import listeners, wait_serving
from tests.faults.pictures import BAD, SEEDS, album, draw, line, picture
from tests.servers import Server, free_port, start_server, wait_for

LOAD_S = 240
ENV = {"OMP_NUM_THREADS": "1"}
ROUNDS = 30
"""bench/soak_rows.py plays 200."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_diffusion.build("sd", tmp_path_factory.mktemp("sd"))


@pytest.fixture(scope="module")
def master() -> tuple[str, ...]:
    """The flags by which server and headless replicas find each other."""
    return ("--omni-master-port", str(free_port()), "--omni-token", "t")


@pytest.fixture(scope="module")
def server(model: Path, master: tuple[str, ...]) -> Iterator[Server]:
    with start_server(line(model, *master), ENV) as started:
        started.wait_ready(LOAD_S)
        wait_serving(started)
        yield started
        assert started.stop() == 0, started.output()
        started.assert_nothing_left()


def test_all_api_workers_draw_with_one_engine(server: Server) -> None:
    assert (len(server.workers), len(listeners(server)), len(server.replicas)) == (2, 2, 1)
    with ThreadPoolExecutor(8) as threads:
        drawn = set(threads.map(lambda _: picture(draw(server, seed=7)), range(16)))
    assert len(drawn) == 1
    assert picture(draw(server, seed=8)) not in drawn


def test_clients_that_leave_leave_nothing_behind(server: Server) -> None:
    before = album(server)
    assert len(set(before.values())) == len(SEEDS)
    pictures.leave_at_random(server, ROUNDS)
    assert album(server) == before


def test_bad_requests_fail_alone(server: Server) -> None:
    right = picture(draw(server, seed=1))
    with ThreadPoolExecutor(2) as threads:
        good = threads.submit(draw, server, seed=1)
        answers = threads.submit(pictures.ask_for_what_cannot_be, server).result()
    assert [status for status, _ in answers] == [status for status, _ in BAD], answers
    assert all(error["message"] and error["type"] for _, error in answers)
    assert picture(good.result()) == right
    assert picture(draw(server, seed=1)) == right


def test_a_headless_replica_joins(server: Server, model: Path, master: tuple[str, ...]) -> None:
    right = picture(draw(server, seed=3))
    headless = ("omni-app", "headless", str(model), "--dtype", "float32", "--stage-id", "0", *master)
    with start_server(headless, ENV) as elsewhere:
        wait_for(lambda: replicas(server) == 2, LOAD_S, "the headless replica to join", 0.2, server=elsewhere)
        with ThreadPoolExecutor(8) as threads:
            drawn = set(threads.map(lambda _: picture(draw(server, seed=3)), range(8)))
        assert drawn == {right}
        assert elsewhere.stop() == 0, elsewhere.output()
    wait_for(lambda: replicas(server) == 1, 20, "it to leave", server=server)
    assert picture(draw(server, seed=3)) == right


def replicas(server: Server) -> int:
    """Those that answer, as /health says."""
    count: int = server.get("/health").json()["stages"][0]["replicas"]
    return count
