"""What a child process tells of its start, through a real pipe."""

from __future__ import annotations

import asyncio
import os

from app.cluster import notices
from app.cluster.notices import Notices


async def test_the_parent_hears_each_step() -> None:
    heard = Notices()
    with heard.opened() as theirs:
        notices.tell(theirs, notices.WELCOMED, "tcp://[::1]:5")
        await asyncio.wait_for(heard.welcomed.wait(), 5)
        assert heard.address == "tcp://[::1]:5"
        assert not heard.up.is_set()
        os.write(theirs, b"u")
        os.write(theirs, b"p \n")
        await asyncio.wait_for(heard.up.wait(), 5)
    heard.close()


async def test_another_process_begins_anew() -> None:
    heard = Notices()
    with heard.opened() as first:
        notices.tell(first, notices.WELCOMED, "a")
        await asyncio.wait_for(heard.welcomed.wait(), 5)
    with heard.opened() as second:
        assert not heard.welcomed.is_set()
        notices.tell(second, notices.UP)
        await asyncio.wait_for(heard.up.wait(), 5)
    heard.close()


async def test_nobody_listens_and_nothing_happens() -> None:
    notices.tell(-1, notices.UP)
    notices.keep(-1)
    heard = Notices()
    with heard.opened() as theirs:
        kept = os.dup(theirs)
        heard.close()
        notices.tell(kept, notices.UP)
        notices.keep(kept)
        assert not os.get_inheritable(kept)
    os.close(kept)


async def test_its_descriptors_are_closed() -> None:
    heard, before = Notices(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with heard.opened():
            pass
    heard.close()
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) == before
