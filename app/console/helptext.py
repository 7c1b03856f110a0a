"""`--help` and its topics: the flags that matter, all of them, one group, or those with a word in their name."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import click

from app.settings.flags import GROUPS, Flag, flags

USAGE = {
    "serve": (
        "Serve MODEL with the OpenAI API. MODEL is a directory or a hub id; `demo` needs no download and no GPU. "
        "A deploy file (--deploy-config) can name the models of all stages in its place. "
        "With --dry-run, only print what `omni-app config` prints. --headless is another way to type `headless`.",
        "omni-app serve demo",
    ),
    "headless": (
        "Run one stage of MODEL on this machine for a server that runs elsewhere.",
        "omni-app headless MODEL --stage-id 0 --omni-master-address HOST --omni-master-port PORT",
    ),
    "config": (
        "Print the resolved settings of `serve MODEL [flags]` and where each value comes from; --json for JSON. "
        "--ask-engine also asks vLLM about its arguments, which takes some seconds. "
        "--convert FILE prints a deploy file of the old form (stage_args) in the new one.",
        "omni-app config demo --port 9000",
    ),
}


def show_help(ctx: click.Context, _: click.Parameter, topic: str | None) -> None:
    """Callback of --help: print the topic and end."""
    if topic is None or ctx.resilient_parsing:
        return
    chosen = _choose(topic, [flag for flag in flags() if ctx.command.takes in flag.commands])  # type: ignore[attr-defined]
    if not chosen:
        groups = ", ".join(GROUPS)
        raise click.UsageError(
            f"no flag has {topic!r} in its name; --help=all shows every flag, groups are {groups}", ctx
        )
    click.echo(_page(ctx, topic, chosen))
    ctx.exit()


def _choose(topic: str, known: list[Flag]) -> list[Flag]:
    topic = topic.lower().lstrip("-").replace("_", "-")
    if topic == "short":
        return [flag for flag in known if flag.short]
    if topic == "all":
        return known
    if topic in GROUPS:
        return [flag for flag in known if flag.group == topic]
    return [flag for flag in known if any(topic in option for option in flag.options)]


def _page(ctx: click.Context, topic: str, chosen: list[Flag]) -> str:
    formatter = ctx.make_formatter()
    formatter.width = min(shutil.get_terminal_size().columns, 110)
    if topic in ("short", "all"):
        what, example = USAGE[ctx.info_name or "serve"]
        formatter.write_usage(ctx.command_path, "MODEL [FLAGS]")
        formatter.write_paragraph()
        formatter.write_text(what)
        formatter.write_paragraph()
        formatter.write_text(f"Example: {example}")
    for group, title in GROUPS.items():
        rows = [_row(flag) for flag in chosen if flag.group == group and flag.name != "model"]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows, col_max=34)
    if topic == "short":
        formatter.write_paragraph()
        formatter.write_text(
            "--help=all shows every flag, --help=GROUP one group "
            f"({', '.join(GROUPS)}), --help=WORD the flags with that word. "
            "Each flag is also a variable: OMNI_PORT for --port, OMNI_MASTER_PORT for --omni-master-port."
        )
    return formatter.getvalue().rstrip("\n")


def _row(flag: Flag) -> tuple[str, str]:
    names = ", ".join(_spellings(flag))
    value = "" if flag.kind == "bool" else f" {flag.metavar or _metavar(flag)}"
    return f"{names}{value}", _note(flag) or f"{flag.help}{_default(flag)}"


def _note(flag: Flag) -> str:
    """What stands in the place of the help of a flag that no value is accepted for."""
    return f"Not accepted: {flag.reason}." if flag.status == "refused" else ""


def _spellings(flag: Flag) -> Iterable[str]:
    yield from (alias for alias in flag.aliases if not alias.startswith("--"))
    yield f"--[no-]{flag.name}" if flag.kind == "bool" else f"--{flag.name}"
    yield from (alias for alias in flag.aliases if alias.startswith("--"))


def _metavar(flag: Flag) -> str:
    return (
        "|".join(flag.choices)
        if flag.choices
        else {"str": "TEXT", "list": "TEXT...", "any": "TEXT|JSON", "json": "JSON"}.get(flag.kind, "N")
    )


def _default(flag: Flag) -> str:
    if flag.default in (None, "", []):
        return ""
    shown = {True: "on", False: "off"}.get(flag.default, flag.default) if flag.kind == "bool" else flag.default
    shown = f"{shown >> 20}MiB" if flag.kind == "size" else f"{shown:g}" if flag.kind == "float" else shown
    return f" [{shown}]"
