"""The `omni-app` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from app import __version__
from app.console.client import Server, server_options
from app.console.options import FlagCommand, typed_values
from app.settings.problems import ConfigError

EXIT_USAGE = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """OpenAI-compatible server for omni-modal models.

    Try `omni-app serve demo`: it needs no GPU and no download.
    """


def main() -> None:
    """Entry point of the script."""
    cli(prog_name="omni-app")


@cli.command(cls=FlagCommand, takes="serve")
@click.argument("model", required=False)
@click.option("--model", "model_flag", default=None)
@click.option("--omni", is_flag=True, expose_value=False)
@click.option("--headless", is_flag=True)
@click.option("--dry-run", is_flag=True)
@click.option("--omni-replica-address", "-ora", "omni_replica_address", default=None)
def serve(model: str | None, model_flag: str | None, headless: bool, dry_run: bool, **params: Any) -> None:
    """Serve MODEL with the OpenAI API."""
    typed = typed_values({"model": model or model_flag, **params})
    if headless:
        _run_headless(typed)
    sys.exit(_reporting(_serve, typed, dry_run))


def _serve(typed: dict[str, Any], dry_run: bool) -> int:
    if "omni_replica_address" in typed:
        raise ConfigError(["--omni-replica-address belongs to `omni-app headless` (or `serve --headless`)"])
    if dry_run:
        from app.console.show import run as show

        return show(typed)
    from app.console.serve import run

    return run(typed)


@cli.command(cls=FlagCommand, takes="headless")
@click.argument("model", required=False)
@click.option("--model", "model_flag", default=None)
@click.option("--omni", is_flag=True, expose_value=False)
def headless(model: str | None, model_flag: str | None, **params: Any) -> None:
    """Run one stage of MODEL here for a server that runs elsewhere."""
    _run_headless(typed_values({"model": model or model_flag, **params}))


@cli.command(cls=FlagCommand, takes="serve")
@click.argument("model", required=False)
@click.option("--model", "model_flag", default=None)
@click.option("--omni", is_flag=True, expose_value=False)
@click.option("--json", "as_json", is_flag=True)
@click.option("--ask-engine", is_flag=True)
@click.option("--convert", "convert", default=None, metavar="FILE")
def config(
    model: str | None, model_flag: str | None, as_json: bool, ask_engine: bool, convert: str | None, **params: Any
) -> None:
    """Print the resolved settings and where each value comes from."""
    if convert is not None:
        sys.exit(_reporting(_convert, convert))
    from app.console.show import run

    sys.exit(_reporting(run, typed_values({"model": model or model_flag, **params}), as_json, ask_engine))


def _convert(file: str) -> int:
    from app.settings.convert import convert_file

    try:
        click.echo(convert_file(Path(file)), nl=False)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return 0


@cli.command()
@server_options
@click.option("--watch", is_flag=True, help="Again every second.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(url: str, key: str, watch: bool, as_json: bool) -> None:
    """Show the stages and replicas of a running server."""
    from app.console.status import show

    show(Server(url, key), watch=watch, as_json=as_json)


@cli.command(short_help="Change how many replicas of a stage run.")
@click.argument("stage")
@click.argument("replicas", type=click.IntRange(1))
@server_options
@click.option("--devices", default="", help="Devices of the new replicas: 2,3.")
@click.option("--wait", default=900.0, show_default=True, help="Seconds to wait until they are there; 0: none.")
def scale(stage: str, replicas: int, url: str, key: str, devices: str, wait: float) -> None:
    """Have a running server run so many REPLICAS of STAGE (its id or name) on its host."""
    from app.console.status import scale as run

    run(Server(url, key), stage, replicas, devices, wait)


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"omni-app {__version__} (Python {sys.version.split()[0]})")


@cli.command()
def env() -> None:
    """Print versions, devices and variables, for a bug report."""
    from app.console.environment import report

    click.echo(report())


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands and flags in SHELL.

    For bash: omni-app completion bash > ~/.local/share/bash-completion/completions/omni-app
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "omni-app", "_OMNI_APP_COMPLETE").source())


def _run_headless(typed: dict[str, Any]) -> None:
    from app.console.headless import run

    sys.exit(_reporting(run, typed))


def _reporting(run: Any, *arguments: Any) -> int:
    """Run a command; configuration problems become one readable message and exit code 2."""
    try:
        code: int = run(*arguments)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"omni-app: error: {problem}", err=True)
        return EXIT_USAGE
    return code


if __name__ == "__main__":
    main()
