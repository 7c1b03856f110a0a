"""Each row of the kill matrix once, on the stub. Rows wait more than they compute, so several run at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.faults.matrix import ROWS, Row, run

AT_A_TIME = 6


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[dict[Row, Future[None]]]:
    """The rows that this test run has selected, begun ahead of the tests that ask for their result."""
    wanted = [item.callspec.params["row"] for item in request.session.items if "played" in item.fixturenames]
    pool = ThreadPoolExecutor(AT_A_TIME)
    yield {row: pool.submit(run, row) for row in wanted}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(played: dict[Row, Future[None]], row: Row) -> None:
    try:
        played[row].result()
    except AssertionError:  # six servers at a time are a crowd on two cores: what failed there is played once alone
        run(row)
