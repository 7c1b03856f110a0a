"""What the served pipeline can do in a conversation, and how it is told what it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from app.protocol.errors import ApiError, unsupported
from app.protocol.realtimeitems import Content, InputAudio, InputImage, Item, Message
from app.protocol.realtimesession import Session

if TYPE_CHECKING:
    from app.pipeline.orchestrator import Orchestrator


class Abilities(msgspec.Struct, frozen=True):
    """Whether it takes sound and pictures, answers in sound, and writes down what it hears."""

    hears: bool
    sees: bool
    speaks: bool
    transcribes: bool

    def check_session(self, session: Session) -> None:
        """
        Raises:
            ApiError: 400, the session asks for what there is not.
        """
        self.check_modalities(session.output_modalities, "session.output_modalities")
        sound = session.audio.input
        if sound.turn_detection is not None:
            self.check_hears("session.audio.input.turn_detection")
        if sound.transcription is not None and not self.transcribes:
            raise unsupported("session.audio.input.transcription", "the served model does not write down what it hears")

    def check_modalities(self, modalities: Sequence[str], param: str) -> None:
        """
        Raises:
            ApiError: 400, it does not speak.
        """
        if "audio" in modalities and not self.speaks:
            raise unsupported(param, 'the served model does not speak; send ["text"]')

    def check_hears(self, param: str) -> None:
        """
        Raises:
            ApiError: 400, it does not hear.
        """
        if not self.hears:
            raise unsupported(param, "the served model takes no sound; send text")

    def check_item(self, item: Item, param: str) -> None:
        """
        Raises:
            ApiError: 400, the item has content that it does not take.
        """
        for position, part in enumerate(item.content if isinstance(item, Message) else ()):
            self._check_part(part, f"{param}.content[{position}].type")

    def _check_part(self, part: Content, param: str) -> None:
        if isinstance(part, InputAudio):
            self.check_hears(param)
        if isinstance(part, InputImage) and not self.sees:
            raise unsupported(param, "the served model takes no pictures")


def abilities_of(stages: Orchestrator) -> Abilities:
    """What the stages can do, as far as replicas have told."""
    takes = stages.inputs_of("chat")
    return Abilities(
        hears="audio" in takes,
        sees="image" in takes,
        speaks=stages.speaks,
        transcribes=_answers(stages, "transcription"),
    )


def _answers(stages: Orchestrator, task: str) -> bool:
    try:
        stages.stage_of(task)
    except ApiError:
        return False
    return True
