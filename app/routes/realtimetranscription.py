"""What a user has said on a realtime socket, written down beside the answer to it."""

from __future__ import annotations

import msgspec
from litestar import Litestar

from app.cluster.messages import Delta, Usage
from app.protocol.errors import ApiError
from app.protocol.listening import Asked, listening_task
from app.protocol.realtimeaudio import wav_header
from app.protocol.realtimeitems import InputAudio
from app.protocol.realtimeserver import TranscriptionCompleted, TranscriptionDelta, TranscriptionFailed
from app.protocol.realtimesession import Transcription
from app.protocol.transcripts import usage_object
from app.routes.realtimeanswer import Send
from app.routes.state import orchestrator, settings
from app.routes.trace import unique


class Writing:
    """The transcript of one item: `content` of it, which is `samples`."""

    def __init__(
        self,
        app: Litestar,
        send: Send,
        item_id: str,
        content: InputAudio,
        samples: bytes,
        transcription: Transcription,
        model: str,
        session_id: str,
    ) -> None:
        self._app = app
        self._send = send
        self._item_id = item_id
        self._content = content
        self._samples = samples
        self._transcription = transcription
        self._model = model
        self._session_id = session_id

    async def run(self) -> None:
        """Write it down.

        Raises:
            LostClientError: nobody is there to read it.
        """
        try:
            await self._write()
        except ApiError as error:
            await self.refuse(error)

    async def refuse(self, error: ApiError) -> None:
        """There is no transcript.

        Raises:
            LostClientError: nobody is there to read it.
        """
        told = msgspec.structs.asdict(error.body.error)
        await self._send(TranscriptionFailed(item_id=self._item_id, content_index=0, error=told))

    async def _write(self) -> None:
        fields = {
            name: value for name in ("language", "prompt") if (value := getattr(self._transcription, name)) is not None
        }
        file = wav_header(len(self._samples)) + self._samples
        stream = await orchestrator(self._app).submit(
            "transcription",
            unique(self._session_id),
            listening_task(Asked(stream=True), fields, file),
            model=self._model,
            limit_s=settings(self._app).server.request_timeout_s,
            streamed=True,
        )
        words: list[str] = []
        usage = Usage(0, 0)
        try:
            async for events in stream:
                for event in events:
                    if isinstance(event, Delta) and event.text:
                        words.append(event.text)
                        delta = TranscriptionDelta(item_id=self._item_id, content_index=0, delta=event.text)
                        await self._send(delta)
                    elif isinstance(event, Usage):
                        usage = event
        finally:
            await stream.aclose()
        transcript = self._content.transcript = "".join(words)
        completed = TranscriptionCompleted(
            item_id=self._item_id, content_index=0, transcript=transcript, usage=usage_object(usage)
        )
        await self._send(completed)
