"""Command line options made from the flag table, and the command class that understands vLLM's ways of typing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from app.console.dotted import join_dotted
from app.console.helptext import show_help
from app.console.unknown import UnknownOptionsError, check_options
from app.settings.flags import Command, Flag, flags
from app.settings.problems import ConfigError


class FlagCommand(click.Command):
    """A command whose options are the flags of the table.

    Dashes and underscores in names are the same. A flag that takes several values takes all words up to the next
    option (`--served-model-name a b`), an object can be typed in parts (`--hf-overrides.a 1`), `--help` takes a topic.
    """

    def __init__(self, *args: Any, takes: Command, **kwargs: Any) -> None:
        self.takes = takes
        super().__init__(*args, **kwargs)
        self.add_help_option = False
        self.context_settings["token_normalize_func"] = _dashes
        self._options: list[click.Parameter] = []

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options are made when the command is used: hundreds, of which `omni-app --help` needs none."""
        if not self._options:
            self._options = [_option(flag) for flag in flags() if self.takes in flag.commands and flag.name != "model"]
            self._options.append(_help_option())
        return [*self.params, *self._options]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = join_dotted(spread_lists(args))
        if not ctx.resilient_parsing:
            try:
                check_options(words, self.get_params(ctx), ctx)
            except UnknownOptionsError as error:
                error.problems += self._problems_beside(error, ctx, words)
                raise
        return super().parse_args(ctx, words)

    def _problems_beside(self, error: UnknownOptionsError, ctx: click.Context, words: list[str]) -> list[str]:
        """What is wrong with the rest of the line, so that it is told in the same run."""
        from app.settings.resolve import examine

        rest = self.context_class(self, info_name=ctx.info_name, parent=ctx.parent)
        try:
            super().parse_args(rest, error.without_unknown(words))
            params = rest.params
            examine(typed_values({**params, "model": params.get("model") or params.get("model_flag")}), source="flag")
        except click.UsageError as problem:
            return [problem.format_message()]
        except ConfigError as problem:
            return list(problem.problems)
        return []


def _dashes(word: str) -> str:
    return word.replace("_", "-")


def typed_values(params: dict[str, Any]) -> dict[str, Any]:
    """The flags that were typed, as text (or true, false, lists of text), by key; the rest of `params` is left out."""
    known = {flag.key for flag in flags()}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in params.items()
        if key in known and value not in (None, ())
    }


def spread_lists(args: Sequence[str]) -> list[str]:
    """`--name a b` to `--name a --name b` for flags that take several values."""
    lists = {option for flag in flags() if flag.kind == "list" for option in flag.options}
    spread: list[str] = []
    current = ""
    for position, word in enumerate(args):
        if word == "--":
            return spread + list(args[position:])
        if word.startswith("-"):
            current = word if _dashes(word) in lists else ""
            if not current:
                spread.append(word)
        elif current:
            spread += [current, word]
        else:
            spread.append(word)
    return spread


def _option(flag: Flag) -> click.Option:
    """The values stay text here: resolve() converts them, so that all mistakes are told at once."""
    if flag.kind == "bool":
        names = [f"--{flag.name}/--no-{flag.name}", *flag.aliases, flag.key]
        return click.Option(names, default=None, hidden=flag.status != "works")
    return click.Option(
        [*flag.options, flag.key],
        default=None,
        multiple=flag.kind == "list",
        hidden=flag.status != "works",
        shell_complete=lambda _ctx, _param, start: [word for word in flag.choices if word.startswith(start)],
    )


def _help_option() -> click.Option:
    return click.Option(
        ["--help", "-h"],
        is_flag=False,
        flag_value="short",
        expose_value=False,
        is_eager=True,
        callback=show_help,
    )
