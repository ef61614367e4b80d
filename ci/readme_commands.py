"""Print the shell commands of the README's "Two commands" section, one a line, as CI runs them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

EXPECTED_COMMANDS = 2


def readme_commands(text: str) -> list[str]:
    """The commands of the `sh` blocks under the heading "Two commands", continuation lines joined."""
    section = re.search(r"^## Two commands\n(.*?)(?=^## )", text, re.M | re.S)
    if section is None:
        raise SystemExit('README.md has no section "## Two commands" that another section follows')
    blocks = re.findall(r"^```sh\n(.*?)^```", section.group(1), re.M | re.S)
    return [re.sub(r"\s*\\\n\s*", " ", block).strip() for block in blocks]


def main() -> int:
    commands = readme_commands((Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8"))
    if len(commands) != EXPECTED_COMMANDS:
        print(
            f"README.md: expected {EXPECTED_COMMANDS} commands under 'Two commands', got {len(commands)}",
            file=sys.stderr,
        )
        return 1
    print("\n".join(commands))
    return 0


if __name__ == "__main__":
    sys.exit(main())
