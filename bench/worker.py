"""A process of the benchmark's own that is asked by lines of JSON and answers by lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import IO, Any, Self

from bench.server import BenchError
from bench.variants import ROOT


class Worker:
    """`python -m MODULE ARGUMENTS` with one thread for torch and the like, for the time of a `with` block.

    `hello` is the line with which it says that it is ready; "": it is ready at once.
    """

    def __init__(self, module: str, *arguments: str, hello: str = "") -> None:
        self._module = module
        self._hello = hello
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # as the servers: the kernel shares a processor out by sessions
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: IO[str] = self._process.stdin
        self._output: IO[str] = self._process.stdout

    def __enter__(self) -> Self:
        while self._hello and self._line() != self._hello:  # libraries may have said something before
            pass
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._input.close()
        self._process.wait(30)
        self._output.close()

    def ask(self, question: dict[str, Any]) -> str:
        """The line that it answers.

        Raises:
            BenchError: it has ended.
        """
        self._input.write(json.dumps(question) + "\n")
        self._input.flush()
        return self._line()

    def _line(self) -> str:
        if not (line := self._output.readline()):
            raise BenchError(f"{self._module} ended; the reason is above")
        return line.removesuffix("\n")
