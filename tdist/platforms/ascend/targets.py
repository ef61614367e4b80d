"""Chips that the vendor's compiler makes code for: their cores, and the memories on a core.

A *core* here is an AI core: one cube core with its two vector cores. UB is a vector core's own; L1 and L0 are the cube
core's.

Source:
    `#hacc.target_device_spec` that AscendNPU-IR 1.2.0 writes into its final module, in bits there; a test reads it for
    every chip of the table. Published counts differ for some cards of Ascend910B1 (25 cube cores): the compiler plans
    with these.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from tdist.errors import UsageError

_KIB = 1 << 10


@dataclass(frozen=True)
class Target:
    """A chip. `name` is what the vendor's `--target` takes."""

    name: str
    cube_cores: int
    vector_cores: int
    ub_bytes: int = 192 * _KIB
    l1_bytes: int = 512 * _KIB
    l0a_bytes: int = 64 * _KIB
    l0b_bytes: int = 64 * _KIB
    l0c_bytes: int = 128 * _KIB


def _chips(cube_cores: int, *names: str) -> dict[str, Target]:
    return {name: Target(name, cube_cores, 2 * cube_cores) for name in names}


TARGETS: dict[str, Target] = {
    **_chips(24, "Ascend910B1", "Ascend910B2", "Ascend910B2C"),
    **_chips(20, "Ascend910B3", "Ascend910B4", "Ascend910B4-1"),
    **_chips(20, "Ascend910_9362", "Ascend910_9372"),
    **_chips(24, "Ascend910_9381", "Ascend910_9382", "Ascend910_9391", "Ascend910_9392"),
}
"""Chips of the 910B and 910_93 families (A2, A3), by name."""

_OTHER_FAMILY = ("Ascend910_95", "Ascend950", "Ascend310")


def find_target(name: str) -> Target:
    """The chip of this name.

    Raises:
        UsageError: there is none; names those that there are, and the one that is spelt most alike.
    """
    if name in TARGETS:
        return TARGETS[name]
    known = f"tdist knows {', '.join(TARGETS)}"
    if name.startswith(_OTHER_FAMILY):
        raise UsageError(
            f"target {name} is of a family with other cores and another compiler, which tdist does not drive; {known}"
        )
    folded = {known_name.lower(): known_name for known_name in TARGETS}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    meant = f"; did you mean {folded[near[0]]}?" if near else ""
    raise UsageError(f"unknown target {name!r}{meant} {known}" if near else f"unknown target {name!r}; {known}")
