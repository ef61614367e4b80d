"""The rules: their ids, where they are written down, what they say and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tdist.errors import UsageError
from tdist.text import did_you_mean

OPERATORS: Final = "Single Operator Development"
ARCHITECTURE: Final = "Distributed Architecture Design"


@dataclass(frozen=True)
class Rule:
    """One programming rule.

    Attributes:
        number: section of `document` that states it.
        states: the rule itself, a sentence.
        instead: what to write.
    """

    id: str
    document: str
    number: str
    states: str
    instead: str

    @property
    def source(self) -> str:
        """Where it is written down."""
        return f"{self.document} §{self.number}"


_ALL = (
    Rule(
        "scalar-base",
        OPERATORS,
        "1.1 rule 1",
        "symm_at translates a scalar base pointer, not a block of pointers",
        "translate the base first and add the offsets to the result: dl.symm_at(ptr, pe) + offs",
    ),
    Rule(
        "missing-consume-token",
        OPERATORS,
        "1.1 rule 3, 3.1",
        "the token of a wait has to reach the accesses that depend on it; the compiler deletes a wait whose token "
        "nobody uses",
        "ptr = dl.consume_token(ptr, token) on every pointer that is loaded after the wait",
    ),
    Rule(
        "narrow-accumulator",
        OPERATORS,
        "2.1",
        "products accumulate in float32 and are rounded once at the end",
        "tl.zeros(…, dtype=tl.float32), and .to(dtype) after the loop",
    ),
    Rule(
        "remote-atomic",
        OPERATORS,
        "2.2",
        "the target of an atomic is local memory; only its source may be remote",
        "load the remote part and add it to the local output, or let each rank write a slot of its own",
    ),
    Rule(
        "hard-coded-cores",
        OPERATORS,
        "4",
        "core counts differ from product to product and are asked for at run time",
        "NPUUtils().get_aicore_num() or get_aivector_core_num() on the host, tl.num_programs(0) in the kernel",
    ),
    Rule(
        "gated-barrier",
        OPERATORS,
        "4.1",
        "a barrier has to be reached by every vector core of every program of every rank",
        "move the barrier out of the condition; only transfers stand behind `if sub_vec_id() == 0`",
    ),
    Rule(
        "no-grid-stride",
        OPERATORS,
        "5.1",
        "tiles are dealt out by a grid-stride loop, so that their number does not depend on the number of cores",
        "for task in range(tl.program_id(0), tasks, tl.num_programs(0))",
    ),
    Rule(
        "unrotated-target",
        OPERATORS,
        "5.2",
        "ranks begin with different peers, else all of them meet at one",
        "target = (rank + i) % world",
    ),
    Rule(
        "one-dimensional-split",
        OPERATORS,
        "5.3",
        "the task space is flattened before it is dealt to cores; split by ranks alone it keeps as many cores busy as "
        "there are ranks",
        "for task in range(pid, world * tiles, programs), and take rank and tile from the task's number",
    ),
    Rule(
        "padding",
        OPERATORS,
        "6",
        "unaligned shapes are handled by masks, not by padding",
        "pass the real sizes to the kernel and mask: offs < n",
    ),
    Rule(
        "narrow-slots",
        ARCHITECTURE,
        "6.3",
        "signal slots are 64 bytes apart: the write of one writes its whole line back",
        "index slots by dl.SIGNAL_SLOT_STRIDE: ptr + i * stride, with stride = 64 / size of an element",
    ),
)
RULES: Final[Mapping[str, Rule]] = {rule.id: rule for rule in _ALL}


def rule_of(name: str) -> Rule:
    """The rule of an id.

    Raises: UsageError if there is none.
    """
    if name not in RULES:
        raise UsageError(f"there is no rule {name!r}{did_you_mean(name, tuple(RULES))}; rules are {', '.join(RULES)}")
    return RULES[name]
