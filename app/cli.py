"""The `omni-app` command."""

from __future__ import annotations

import sys
from typing import Any

import click

from app import __version__
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
@click.option("--stage-id", "stage_id", default=None)
@click.option("--omni-replica-address", "-ora", "omni_replica_address", default=None)
def serve(model: str | None, model_flag: str | None, headless: bool, **params: Any) -> None:
    """Serve MODEL with the OpenAI API."""
    typed = typed_values({"model": model or model_flag, **params})
    if headless:
        _run_headless(typed)
    for key in ("stage_id", "omni_replica_address"):
        if key in typed:
            raise click.UsageError(f"--{key.replace('_', '-')} belongs to `omni-app headless`")
    from app.console.serve import run

    sys.exit(_reporting(run, typed))


@cli.command(cls=FlagCommand, takes="headless")
@click.argument("model", required=False)
@click.option("--model", "model_flag", default=None)
def headless(model: str | None, model_flag: str | None, **params: Any) -> None:
    """Run one stage of MODEL here for a server that runs elsewhere."""
    _run_headless(typed_values({"model": model or model_flag, **params}))


@cli.command(cls=FlagCommand, takes="serve")
@click.argument("model", required=False)
@click.option("--model", "model_flag", default=None)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def config(model: str | None, model_flag: str | None, as_json: bool, **params: Any) -> None:
    """Print the resolved settings and where each value comes from."""
    from app.console.show import run

    sys.exit(_reporting(run, typed_values({"model": model or model_flag, **params}), as_json))


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"omni-app {__version__} (Python {sys.version.split()[0]})")


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
