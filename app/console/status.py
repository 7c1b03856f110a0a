"""The commands status and scale: the stages and replicas of a running server, and how many there shall be."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator

import click
import msgspec

from app.console.client import Server
from app.protocol.status import ReplicaReport, StageReport, StatusReport

PERIOD_S = 1.0
_COLUMNS = ("ID", "STATE", "FOR", "IN FLIGHT", "QUEUE", "HOST", "PID", "RESTARTS", "VERSION", "NOTE")
_decode = msgspec.json.Decoder(StatusReport).decode
_HOME_AND_CLEAR = "\x1b[H\x1b[J"


def show(server: Server, *, watch: bool, as_json: bool) -> None:
    """Print the status, with `watch` every second until interrupted.

    Raises:
        click.ClickException: no server answers.
    """
    while True:
        answer = server.ask("/v1/omni/status")
        page = answer.decode() if as_json else "\n".join(table(_decode(answer), time.time()))
        if watch and not as_json and sys.stdout.isatty():
            click.echo(_HOME_AND_CLEAR, nl=False)
        click.echo(page)
        if not watch:
            return
        time.sleep(PERIOD_S)


def scale(server: Server, stage: str, replicas: int, devices: str, limit_s: float) -> None:
    """Ask for so many replicas and wait until there are, at most `limit_s` seconds; 0: do not wait.

    Raises:
        click.ClickException: the server refuses, or the time is over.
    """
    asked = {"stage": stage, "replicas": replicas} | ({"devices": devices} if devices else {})
    answer, told, end = server.ask("/v1/omni/scale", asked), "", time.monotonic() + limit_s
    while True:
        report = next(x for x in _decode(answer).stages if stage in (str(x.stage_id), x.name))
        if (line := _headline(report)) != told:
            click.echo(line)
            told = line
        if limit_s <= 0 or _settled(report):
            return
        if time.monotonic() > end:
            raise click.ClickException(f"not reached within {limit_s:g} s; the server goes on trying")
        time.sleep(PERIOD_S / 4)
        answer = server.ask("/v1/omni/status")


def _settled(stage: StageReport) -> bool:
    """As many local replicas as wanted, all up."""
    return [x.state for x in stage.replicas if x.local] == ["up"] * stage.wanted


def table(report: StatusReport, now: float) -> Iterator[str]:
    """The lines of the table."""
    for stage in report.stages:
        yield _headline(stage)
        rows = [_COLUMNS, *(_row(replica, now) for replica in stage.replicas)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows if stage.replicas else ():
            yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _headline(stage: StageReport) -> str:
    states = Counter(replica.state for replica in stage.replicas)
    counts = ", ".join(f"{count} {state}" for state, count in states.items()) or "no replica"
    sleeps = f", asleep (level {stage.asleep})" if stage.asleep else ""
    name = f"stage {stage.stage_id} ({stage.name}, {stage.kind}, {stage.model})"
    return f"{name}: {counts}{sleeps}; {stage.wanted} wanted here"


def _row(replica: ReplicaReport, now: float) -> tuple[str, ...]:
    return tuple(
        map(
            str,
            (
                replica.replica_id,
                replica.state,
                _duration(now - replica.since),
                replica.in_flight,
                replica.queue,
                replica.host,
                replica.pid,
                replica.restarts,
                " ".join(_filled((replica.version, replica.engine))),
                replica.note,
            ),
        )
    )


def _filled(texts: Iterable[str]) -> Iterator[str]:
    return filter(None, texts)


def _duration(seconds: float) -> str:
    """Roughly, in at most two units: 12 s, 3 min 4 s, 2 h 5 min, 3 d 4 h."""
    whole = max(0, int(seconds))
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    parts: list[str] = []
    for size, name in units:
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"
