"""What to run first on a GPU: `python -m bench.gpu_check`. Ten minutes at most; nothing is downloaded.

The project is built without a GPU: what vLLM and torch do on one is written by the book and has not been seen.
This runs each part on tiny models of random weights and says what works, how fast, and how far it is from the CPU. Each
section is a process of its own: one that crashes, or takes too long, ends alone. Sections are functions of
bench.gpu_sections. Without a GPU they run what a CPU can, and say what was not run.

Prints a page (also to --out) and writes its figures as JSON (--json); exits with 1 if something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.gpu_finding import Finding
from bench.gpu_sections import names
from bench.report import conditions, environment
from bench.variants import ROOT

LIMIT_S = 580.0
"""For all sections together."""
_SECTION_S = 200.0
_TAIL = 1500
"""Characters of what a section said before it failed."""
_MARK = "finding: "


def main() -> None:
    """Run the sections, or with --section one of them in this process."""
    options = _options()
    if options.section:
        _run_here(options.section)
        return
    begin, around = time.monotonic(), environment()
    found: dict[str, list[Finding]] = {}
    for name in options.only or names():
        print(f"{name} ...", file=sys.stderr)
        left_s = LIMIT_S - (time.monotonic() - begin)
        found[name] = list(_section(name, min(_SECTION_S, left_s)))
    page = _page(found, conditions(around), time.monotonic() - begin)
    print(page)
    if options.out:
        options.out.write_text(page)
    if options.json:
        sections = {name: msgspec.to_builtins(findings) for name, findings in found.items()}
        options.json.write_text(json.dumps({"around": around, "sections": sections}, indent=1) + "\n")
    sys.exit(1 if any(finding.state == "failed" for findings in found.values() for finding in findings) else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names(), metavar="SECTION", help=f"of {', '.join(names())}")
    parser.add_argument("--out", type=Path, help="write the page here too")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--section", choices=names(), help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_here(name: str) -> None:
    from bench.gpu_sections import run

    for finding in run(name):
        print(_MARK + msgspec.json.encode(finding).decode(), flush=True)


def _section(name: str, limit_s: float) -> Iterator[Finding]:
    """What a section finds, in a process of its own."""
    if limit_s < 1:
        yield Finding("all of it", f"the time is over: {LIMIT_S:g} s", "not run")
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.gpu_check", "--section", name],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, errors = process.communicate(timeout=limit_s)
        end = f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, errors = process.communicate()
        end = f"took more than {limit_s:.0f} s"
    for line in said.splitlines():
        if line.startswith(_MARK):
            yield msgspec.json.decode(line.removeprefix(_MARK), type=Finding)
    if process.returncode != 0:
        print(errors[-_TAIL:], file=sys.stderr)
        yield Finding("the section", f"{end}: {_last_line(errors)}", "failed")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _page(found: dict[str, list[Finding]], around: str, seconds: float) -> str:
    rows = [
        f"| {name if number == 0 else ''} | {finding.what} | {_cell(finding.result)} | {finding.state} |"
        for name, findings in found.items()
        for number, finding in enumerate(findings)
    ]
    head = ["# GPU check", "", f"{around}. {seconds:.0f} s.", "", "| section | what | found | |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


if __name__ == "__main__":
    main()
