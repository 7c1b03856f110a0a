"""`python -m app.engines.llm.check`: ask vLLM what it thinks of the engine arguments, without loading anything.

Reads the stages and the served names as JSON from standard input; prints one problem a line.
"""

from __future__ import annotations

import sys

import msgspec

from app.engines.llm.arguments import EngineArgumentError, parse
from app.engines.omni import thinker
from app.settings.schema import StageConfig


class Question(msgspec.Struct):
    """What is to be judged."""

    stages: list[StageConfig]
    served_model_names: list[str]


def main() -> None:
    """Judge what comes on standard input."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    for stage in question.stages:
        try:
            args = parse(stage, question.served_model_names, {})
            if stage.model_stage == "thinker":
                thinker.judge(stage, args)
        except EngineArgumentError as error:
            sys.stdout.write(" ".join(str(error).split()) + "\n")


if __name__ == "__main__":
    main()
