from __future__ import annotations

import io

from app.console.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_for_each_step_with_the_time_since_the_start() -> None:
    out = io.StringIO()
    progress = Progress(out)
    for step in ("one", "one", "two"):
        progress.step(step)
        progress.tick()
    progress.end()
    lines = out.getvalue().splitlines()
    assert [line.partition("] ")[2] for line in lines] == ["one", "two"]
    assert lines[0].startswith("[  0.0 s] ")


def test_a_terminal_sees_the_seconds_go_by() -> None:
    out = Terminal()
    progress = Progress(out)
    progress.tick()
    assert out.getvalue() == ""
    progress.watch("one")
    progress.tick()
    assert out.getvalue() == "\r\x1b[K[  0.0 s] one\r"
    progress.end()
    assert out.getvalue().endswith("\r\x1b[K")
