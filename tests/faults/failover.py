"""Many requests at once on two replicas, one of which is killed: no answer is wrong, none is lost that can be saved."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections import Counter

import httpx

from tests.servers import Server, wait_for

AT_ONCE = 200
_LIMIT_S = 60.0


def kill_one_amid(server: Server, dice: random.Random) -> Counter[str]:
    """One round: requests that each echo their id, half of them streamed; how many ended how.

    whole: a whole answer. streamed: a stream to its end. error: a stream that had begun and ended with an error event.
    """
    victim = dice.choice(server.replicas)
    after_s = dice.uniform(0.0, 1.2)
    outcomes = asyncio.run(_round(server, victim, after_s))
    wait_for(lambda: len(server.replicas) == 2 and server.answers(), 30, "both replicas", server=server)
    return outcomes


async def _round(server: Server, victim: int, after_s: float) -> Counter[str]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=_LIMIT_S, limits=limits) as client:
        asked = [asyncio.create_task(_ask(client, number, streamed=number % 2 == 0)) for number in range(AT_ONCE)]
        await asyncio.sleep(after_s)
        os.kill(victim, signal.SIGKILL)
        return Counter(await asyncio.gather(*asked))


async def _ask(client: httpx.AsyncClient, number: int, *, streamed: bool) -> str:
    words = [f"id{number}-{position}" for position in range(10)]
    body = {
        "messages": [{"role": "user", "content": " ".join(words)}],
        "stream": streamed,
        "stub": {"token_s": 0.1},
    }
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, f"{number}, streamed {streamed}: {answer.text}"
    if not streamed:
        said = answer.json()["choices"][0]["message"]["content"].split()
        assert said == words, f"{number} was answered with {said}"
        return "whole"
    said = re.findall(r"id\d+-\d+", answer.text)
    assert "data: [DONE]" in answer.text, f"{number} was cut off: {answer.text}"
    assert said == words[: len(said)], f"{number} was answered with {said}"
    if '"error":' in answer.text:
        assert said, f"{number} had not streamed, and was lost"
        return "error"
    assert said == words, f"{number} ended early: {said}"
    return "streamed"
