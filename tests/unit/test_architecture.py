"""docs/architecture.md lists every file of the packages, in its folder, and no file that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("tdist", "golden", "verify")
UNLISTED = ("__init__.py", "__main__.py")
_ENTRY = re.compile(r"( *)([\w./]+(?:/|\.py))(?:\s|$|,)")
_FILE = re.compile(r"[\w*/]+\.py\b(?!::)")


def listed() -> set[str]:
    """Every file that the section names, with its folder; `*` stands for anything."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("\n## Files\n")[2].partition("\n## ")[0]
    return set(_named(section.splitlines()))


def _named(lines: list[str]) -> Iterator[str]:
    folders: list[tuple[int, str]] = []
    for line in lines:
        entry = _ENTRY.match(line)
        if entry is not None:
            indent = len(entry[1])
            folders = [(at, folder) for at, folder in folders if at < indent]
            if entry[2].endswith("/"):
                folders.append((indent, entry[2]))
                line = line[entry.end(2) :]
        inside = "".join(folder for _, folder in folders)
        yield from (inside + name for name in _FILE.findall(line))


def files() -> set[str]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix() for path in found if path.name not in UNLISTED}


def test_every_file_is_listed_in_its_folder() -> None:
    known = listed()
    missing = sorted(name for name in files() if not any(fnmatch(name, pattern) for pattern in known))
    assert not missing, "add to docs/architecture.md, Files:\n" + "\n".join(missing)


def test_every_listed_file_exists() -> None:
    existing = files()
    of_packages = [name for name in listed() if name.startswith(PACKAGES) and not name.endswith(UNLISTED)]
    gone = sorted(name for name in of_packages if not any(fnmatch(path, name) for path in existing))
    assert not gone, "docs/architecture.md, Files, names what does not exist:\n" + "\n".join(gone)
    assert len(of_packages) > 100
