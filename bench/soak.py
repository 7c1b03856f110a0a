"""The long run: `make soak`, or `python -m bench.soak --times 20 --minutes 60`.

Every row of the kill matrix and every row of bench.soak_rows so many times, then mixed load on the real tiny model.
What has been done for this commit is kept in a file, so that a run that was broken off goes on where it was.
Writes docs/soak.md after every row. Exit code 1: something failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.report import environment
from bench.soak_report import write
from bench.soak_rows import ROWS

ROOT = Path(__file__).resolve().parent.parent
MIXED_SLACK_S = 900.0
"""What the mixed run may take beside its load: the start and the stop of a server."""


@dataclass
class Tally:
    """How often a row passed, how long that took at most, and what was wrong otherwise."""

    passed: int = 0
    longest_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def played(self) -> int:
        return self.passed + len(self.failures)


@dataclass
class Progress:
    """What has been done so far for one commit."""

    environment: dict[str, Any]
    rows: dict[str, Tally] = field(default_factory=dict)
    mixed: dict[str, Any] | None = None

    @property
    def failed(self) -> bool:
        problems = self.mixed["problems"] if self.mixed else []
        return bool(problems) or any(tally.failures for tally in self.rows.values())

    def save(self, path: Path) -> None:
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Progress:
        """What is in the file if it is of this commit, else nothing done."""
        now = environment()
        if path.exists():
            stored = json.loads(path.read_text())
            if stored["environment"]["commit"] == now["commit"]:
                rows = {name: Tally(**tally) for name, tally in stored["rows"].items()}
                return cls(stored["environment"], rows, stored["mixed"])
        return cls(now)


def play(progress: Progress, times: int, at_a_time: int, save: Callable[[], None], only: str) -> None:
    """Every row until it has been played `times` times."""
    wanted = {name: row for name, row in ROWS.items() if only in name}
    for name in wanted:
        progress.rows.setdefault(name, Tally())
    with ThreadPoolExecutor(at_a_time) as pool:
        rounds = [name for turn in range(times) for name in wanted if progress.rows[name].played <= turn]
        running = {pool.submit(_timed, wanted[name]): name for name in rounds}
        for done in as_completed(running):
            name, (seconds, failure) = running[done], done.result()
            tally = progress.rows[name]
            if failure:
                tally.failures.append(failure)
            else:
                tally.passed += 1
                tally.longest_s = max(tally.longest_s, round(seconds, 1))
            print(f"{'FAILED' if failure else 'ok':6} {seconds:6.1f} s  {name}", flush=True)
            save()


def _timed(row: Callable[[], None]) -> tuple[float, str]:
    """How long a row took, and the end of the traceback if it failed."""
    began = time.monotonic()
    try:
        row()
    except Exception:  # noqa: BLE001 - whatever it is, it is the result of this row, and the next ones run
        return time.monotonic() - began, traceback.format_exc()[-4000:]
    return time.monotonic() - began, ""


def mixed(minutes: float) -> dict[str, Any]:
    """The result of bench.mixed_load, which runs in a process of its own as it ends all its descendants."""
    command = [sys.executable, "-m", "bench.mixed_load", "--minutes", str(minutes)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=minutes * 60 + MIXED_SLACK_S, check=False
    )
    if done.returncode != 0:
        return {"minutes": minutes, "problems": [f"it ended with {done.returncode}; see above"]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    options = _options()
    progress = Progress.load(options.state)

    def save() -> None:
        progress.save(options.state)
        write(progress, options.doc)

    if options.times:
        play(progress, options.times, options.at_a_time, save, options.only)
    if options.minutes and (progress.mixed is None or progress.mixed["minutes"] < options.minutes):
        progress.mixed = mixed(options.minutes)
        save()
    print(f"see {options.doc}")
    sys.exit(1 if progress.failed else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="how often each row is played (default: 20; 0: none)")
    parser.add_argument("--minutes", type=float, default=60.0, help="of mixed load (default: 60; 0: none)")
    parser.add_argument("--at-a-time", type=int, default=4, help="rows at once, each with its server (default: 4)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows with TEXT in their name")
    parser.add_argument("--doc", type=Path, default=ROOT / "docs/soak.md", help="where the result is written")
    state = Path(tempfile.gettempdir()) / "omni-app-soak.json"
    parser.add_argument("--state", type=Path, default=state, help=f"what is done so far (default: {state})")
    return parser.parse_args()


if __name__ == "__main__":
    main()
