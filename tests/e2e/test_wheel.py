"""The folders at the top are packages of tdist in a wheel too; no module or data file of the tree is missing there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def files_of(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def test_a_wheel_holds_verify_and_golden_under_tdist(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in ("tdist", "golden", "verify"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            str(tmp_path),
            str(source),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    code = "import tdist.golden, tdist.verify.cli, tdist; print(tdist.golden.__file__, tdist.verify.cli.__file__)"
    assert files_of(installed / "tdist") >= files_of(source / "tdist")
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        str(installed / "tdist" / folder) for folder in ("golden/__init__.py", "verify/cli.py")
    ]
    assert not (installed / "golden").exists() and not (installed / "verify").exists()
