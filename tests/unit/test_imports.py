"""Every module imports alone; the light ones bring neither torch nor triton along."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"tdist": "tdist", "tdist.golden": "golden", "tdist.verify": "verify"}
LIGHT = ("tdist", "tdist.errors", "tdist.verify.pytest_plugin", "tdist.importer", "tdist.env", "tdist.platforms.base")


def modules() -> list[str]:
    found = []
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found.append(".".join([package, *(part for part in parts if part not in ("__init__", "__main__"))]))
    return found


def test_every_module_imports_in_a_process_that_imported_nothing_before_it() -> None:
    """One process, each module after everything of ours has been forgotten: no module relies on another's import."""
    code = """
import gc, importlib, sys
from importlib.machinery import SourceFileLoader
import click, numpy, rich, torch, triton, xdsl  # what is not ours stays
compiled, compile_file = {}, SourceFileLoader.get_code
def code_of(loader, name):  # each file is compiled once
    if loader.path not in compiled:
        compiled[loader.path] = compile_file(loader, name)
    return compiled[loader.path]
SourceFileLoader.get_code = code_of
gc.disable()  # classes are all that is made
for name in sys.argv[1:]:
    for ours in [loaded for loaded in sys.modules if loaded.partition(".")[0] == "tdist"]:
        del sys.modules[ours]
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code, *modules()], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_stay_light(name: str) -> None:
    code = f"import sys, {name}; print([heavy for heavy in ('torch', 'triton', 'xdsl') if heavy in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
