"""What runs beside the listener of one realtime socket: responses, and transcripts of what is said."""

from __future__ import annotations

import asyncio

from app.protocol.errors import ApiError
from app.routes.realtimeanswer import Answer, Cancellation
from app.routes.realtimetranscription import Writing
from app.routes.socketlife import Ending

MAX_ASIDE = 4
"""Responses that run at a time beside that of the conversation."""
MAX_WRITING = 4
"""Items that are written down at a time."""


class Running:
    """`idle` is set while there is nothing of it."""

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._answers: dict[str, tuple[Answer, asyncio.Task[None]]] = {}
        self._writings: set[asyncio.Task[None]] = set()
        self._fault: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()

    async def failed(self) -> Ending:
        """Wait until something fails, and raise that."""
        return await self._fault

    @property
    def active(self) -> Answer | None:
        """The response that the conversation is waiting for."""
        running = (answer for answer, _ in self._answers.values() if not answer.over)
        return next((answer for answer in running if answer.asked.in_conversation), None)

    def check_room(self, *, in_conversation: bool) -> None:
        """
        Raises:
            ApiError: 409, the conversation has its response; 429, too many run beside it.
        """
        active = self.active
        if in_conversation and active is not None:
            message = f"The conversation waits for the response {active.response_id}: cancel it, or let it end."
            raise ApiError(409, message, code="conversation_already_has_active_response")
        if not in_conversation and len(self._answers) - (active is not None) >= MAX_ASIDE:
            message = f"{MAX_ASIDE} responses run beside that of the conversation; wait for one of them."
            raise ApiError(429, message, code="too_many_responses")

    def begin(self, answer: Answer) -> None:
        """Run a response."""
        task = asyncio.create_task(answer.run())
        self._answers[answer.response_id] = (answer, task)
        task.add_done_callback(lambda _: self._answers.pop(answer.response_id))
        self._watch(task)

    def found(self, response_id: str | None) -> Answer:
        """The response of that id, or that of the conversation.

        Raises:
            ApiError: 400, it does not run.
        """
        answer = self.active if response_id is None else self._answers.get(response_id, (None,))[0]
        if answer is None or answer.over:
            raise ApiError(400, "There is no such response that could be cancelled.", code="response_cancel_not_active")
        return answer

    async def cancel(self, answer: Answer, cancellation: Cancellation) -> None:
        """End a response: what comes next finds the conversation as it has left it."""
        answer.cancel(cancellation)
        await asyncio.wait({self._answers[answer.response_id][1]})

    async def write_down(self, writing: Writing) -> None:
        """Have something written down, if not too much is being written down already."""
        if len(self._writings) >= MAX_WRITING:
            await writing.refuse(ApiError(429, f"{MAX_WRITING} items are being written down.", code="too_many_items"))
            return
        task = asyncio.create_task(writing.run())
        self._writings.add(task)
        task.add_done_callback(self._writings.discard)
        self._watch(task)

    def _watch(self, task: asyncio.Task[None]) -> None:
        self.idle.clear()
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not self._answers and not self._writings:
            self.idle.set()
        if not task.cancelled() and (error := task.exception()) is not None and not self._fault.done():
            self._fault.set_exception(error)

    def shut_down(self) -> None:
        """What is stopped from now on is stopped because the server has no more time."""
        for answer, _ in self._answers.values():
            answer.end_reason = "shutdown"

    async def stop(self) -> None:
        """End all of it."""
        tasks = [*(task for _, task in self._answers.values()), *self._writings]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
