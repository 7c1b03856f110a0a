"""Options that a command does not have: all of them told at once, each with what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, Any

import click

from app.settings.flags import flags
from app.settings.problems import near


class UnknownOptionsError(click.UsageError):
    """`problems`: one sentence for each; shown as configuration problems are. `unknown`: the options as typed."""

    def __init__(self, problems: list[str], unknown: list[str], ctx: click.Context) -> None:
        super().__init__("\n".join(problems), ctx)
        self.problems = problems
        self._unknown = unknown

    def without_unknown(self, args: Sequence[str]) -> list[str]:
        """The rest of the line: without the unknown options, each with the word behind it that may be its value."""
        rest: list[str] = []
        skipped = False
        for word in args:
            name, equals, _ = word.partition("=")
            value_of_unknown, skipped = skipped and not word.startswith("-"), False
            if name.startswith("-") and name.replace("_", "-") in self._unknown:
                skipped = not equals
            elif not value_of_unknown:
                rest.append(word)
        return rest

    def show(self, file: IO[Any] | None = None) -> None:
        """Print them to stderr."""
        for problem in self.problems:
            click.echo(f"omni-app: error: {problem}", err=True, file=file)


def check_options(args: Sequence[str], params: Iterable[click.Parameter], ctx: click.Context) -> None:
    """
    Raises:
        UnknownOptionsError: the command has no such option.
    """
    known = {name: param for param in params for name in (*param.opts, *param.secondary_opts)}
    unknown = [word for word in _options(args, known) if word not in known]
    if unknown:
        raise UnknownOptionsError([_problem(word, known, ctx) for word in unknown], unknown, ctx)


def _options(args: Sequence[str], known: dict[str, click.Parameter]) -> Iterable[str]:
    """The words that are options and not values of one, with dashes in place of underscores."""
    words = iter(args)
    for word in words:
        if word == "--":
            return
        if not word.startswith("-") or word == "-":
            continue
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")
        yield name
        param = known.get(name)
        if isinstance(param, click.Option) and not equals and not param.is_flag and not param._flag_needs_value:
            next(words, None)


def _problem(name: str, known: dict[str, click.Parameter], ctx: click.Context) -> str:
    owner = next((flag for flag in flags() if name in flag.options), None)
    if owner is not None:
        commands = " and ".join(f"`omni-app {command}`" for command in owner.commands)
        return f"{name} belongs to {commands}"
    return f"there is no flag {name}{near(name, [word for word in known if word.startswith('--')], '--')}"
