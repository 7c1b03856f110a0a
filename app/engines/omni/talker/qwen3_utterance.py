"""What a Qwen3-Omni talker is conditioned on, row by row, out of what the thinker made: the prompt and the reply.

A row is what the thinker made at a position, and two numbers after it: which side of the talker reads it (Side), and 1
where the embedding of the position's codec id is added. After the last row the model goes on by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec
import torch

from app.cluster.messages import Failed
from app.cluster.tensors import Tensor
from app.engines.base import EngineError
from app.engines.omni.talker.family import Chunk
from app.engines.omni.talker.handover import read_handover

EXTRA = 2
"""Columns after the thinker's."""
HEADER = 3
"""Tokens that open the assistant's turn: <|im_start|>, assistant and a line break."""


class Side(IntEnum):
    """What a row's text side is made of: the thinker's row, projected as text or as what was heard and seen; or a row
    that the model has itself, which the rest of this one is not asked for."""

    TEXT = 0
    SENSES = 1
    TTS_PAD = 2
    TTS_BOS = 3
    TTS_EOS = 4


class Marks(msgspec.Struct, frozen=True):
    """Ids of a checkpoint. `senses` are the thinker's placeholders of audio, pictures and video; `prelude` are the
    codec ids before the voice's: the talker does not think.
    """

    im_start: int
    user: int
    assistant: int
    senses: Sequence[int]
    prelude: Sequence[int]
    codec_pad: int
    codec_bos: int


class Conditioning:
    """`width` is that of the thinker's rows, `speaker` the codec id of the voice."""

    def __init__(self, marks: Marks, width: int, speaker: int) -> None:
        self._marks = marks
        self._width = width
        self._speaker = speaker
        self._ids: list[int] = []
        self._rows: list[torch.Tensor] = []
        self._none = torch.empty(0, width)
        self._positions: torch.Tensor | None = None
        self._begun = self._ended = self._finished = False

    def feed(self, tensors: Mapping[str, Tensor]) -> None:
        """Take one handover.

        Raises:
            EngineError: it is not what the thinker of this checkpoint makes.
        """
        given = read_handover(tensors, self._width, first=self._positions is None)
        self._positions = given.positions if self._positions is None else self._positions
        self._none = given.rows[:0]
        self._ids.extend(given.ids.tolist())
        self._rows.append(given.rows)

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True

    def take(self) -> Chunk | None:
        """The next chunk; None where none can be made yet, or none is left."""
        if self._finished:
            return None
        if not self._begun:
            return self._first()
        rows = self._reply(self._rows)
        self._rows = []
        return Chunk(rows, last=self._ended) if len(rows) else None

    def _first(self) -> Chunk | None:
        """The prompt, once the first token of the reply is there too."""
        if self._positions is None or len(self._ids) <= self._positions.shape[1]:
            return None
        self._begun = True
        length = self._positions.shape[1]
        ids, rows = torch.tensor(self._ids[:length]), torch.cat(self._rows)
        self._rows = []
        heard, turn = self._heard(ids), self._turn(ids)
        senses = torch.isin(ids[heard], torch.tensor(self._marks.senses))
        asked = _marked(rows[:length][heard], torch.where(senses, int(Side.SENSES), int(Side.TEXT)))
        opening, prompt = self._opening(rows[turn:])
        return Chunk(
            torch.cat((asked, opening, self._reply([rows[turn + HEADER + 1 :]]))),
            [self._marks.codec_pad] * len(asked) + prompt,
            _followed(_closed_up(self._positions[:, heard], heard), len(opening)),
            last=self._ended,
        )

    def _heard(self, ids: torch.Tensor) -> torch.Tensor:
        """Positions of the prompt that belong to turns of the user: the talker is told of no others."""
        here = torch.arange(len(ids))
        starts = torch.where(ids == self._marks.im_start, here, -1).cummax(0).values.clamp_min(0)
        roles = ids[(starts + 1).clamp_max(len(ids) - 1)]
        return (roles == self._marks.user).nonzero()[:, 0]

    def _turn(self, ids: torch.Tensor) -> int:
        """Where the turn begins that is spoken."""
        starts = (ids[:-1] == self._marks.im_start) & (ids[1:] == self._marks.assistant)
        found = starts.nonzero()[:, 0]
        if not len(found):
            raise EngineError(
                Failed(400, "the chat template opens no turn of the assistant, so there is nothing to be spoken")
            )
        return int(found[-1])

    def _opening(self, rows: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Rows and codec ids of the turn's first positions, of the thinker's `rows` from its beginning: its header, the
        voice, and the first token of the reply."""
        marks = self._marks
        spoken = [*marks.prelude, self._speaker, marks.codec_pad, marks.codec_bos]
        header, first = rows[:HEADER], rows[HEADER : HEADER + 1]
        own = [Side.TTS_PAD] * (len(spoken) - 2) + [Side.TTS_BOS]
        blank = rows.new_zeros(len(own), self._width)
        sides = torch.tensor([Side.TEXT] * HEADER + own + [Side.TEXT])
        gates = torch.tensor([0] * HEADER + [1] * len(spoken))
        return _marked(torch.cat((header, blank, first)), sides, gates), [marks.codec_pad] * HEADER + spoken

    def _reply(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows of what is spoken on, and its end where that has come."""
        reply = torch.cat([self._none, *rows])
        sides = torch.full((len(reply),), int(Side.TEXT))
        if self._ended:
            self._finished = True
            reply = torch.cat((reply, reply.new_zeros(1, self._width)))
            sides = torch.cat((sides, torch.tensor([int(Side.TTS_EOS)])))
        return _marked(reply, sides)


def _marked(rows: torch.Tensor, sides: torch.Tensor, gates: torch.Tensor | None = None) -> torch.Tensor:
    gates = torch.zeros_like(sides) if gates is None else gates
    return torch.cat((rows, torch.stack((sides, gates), dim=1).to(rows.dtype)), dim=1)


def _closed_up(positions: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """M-RoPE positions [3, n] of what is left of a prompt, at `indices` of it, as if nothing had been left out.

    Each run of what is left goes on where the one before has ended; it begins with text, whose three positions agree.
    """
    runs = positions.tensor_split(((indices.diff() > 1).nonzero()[:, 0] + 1).tolist(), dim=1)
    closed = [positions.new_empty(3, 0)]
    following = 0
    for run in runs if len(indices) else ():
        closed.append(run - run[0, 0] + following)
        following = int(closed[-1].max()) + 1
    return torch.cat(closed, dim=1)


def _followed(positions: torch.Tensor, count: int) -> torch.Tensor:
    """Positions and `count` more of text after them."""
    start = int(positions.max()) + 1 if positions.shape[1] else 0
    return torch.cat((positions, torch.arange(start, start + count).expand(3, -1)), dim=1)
