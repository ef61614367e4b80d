"""`python -m tdist.frontend`: say which front end is installed, or how to get the right one (exit 3)."""

from __future__ import annotations

import sys

from tdist.errors import EnvironmentUnfit
from tdist.frontend.environment import check_front_end


def main() -> int:
    try:
        print(f"front end: {check_front_end()}")
    except EnvironmentUnfit as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
