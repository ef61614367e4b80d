"""Synchronisation and mask faults planted into a kernel's IR: which there are, and what the kernel is with one of them.

A fault is planted when carriers have been lifted and calls inlined, before the passes that go by effects: so a token
that is not consumed makes its wait vanish here as it does in the vendor's compiler. One call of a helper is one place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from tdist.errors import UsageError
from tdist.frontend.kernel_ir import KernelIR
from tdist.ir import tt
from tdist.ir.collection import no_collection
from tdist.mutations import drops, epochs, masks, operands, order, strength
from tdist.mutations.base import Kind, Mutant, Place
from tdist.text import did_you_mean

KINDS: dict[str, Kind] = {
    kind.name: kind for group in (drops, order, operands, epochs, strength, masks) for kind in group.KINDS
}
"""Every kind by its name, in the order in which mutants are listed."""

BEFORE: tuple[str, ...] = ("lift-carriers", "lift-early-returns", "inline-calls")
"""Passes of the pipeline that come before the fault."""

OPTIONAL = "?"
"""At the end of `WorldConfig.mutation`: kernels of that name that lack the place are run as they are."""

_NAME = re.compile(r"(?P<kind>[a-z-]+)@\d+:\d+(#\d+)?")


def mutants_of(ir: KernelIR, kinds: Sequence[str] = ()) -> tuple[Mutant, ...]:
    """Every mutant of a kernel, by kind, then in the order of its operations.

    Args:
        kinds: only these; all if empty.

    Raises:
        UsageError: a kind that there is none of.
        KernelError: the kernel cannot be read.
    """
    from tdist.frontend.reader import read_ttir
    from tdist.passes import run_pipeline

    for kind in kinds:
        check_kind(kind)
    with no_collection():
        module = read_ttir(ir.ttir)
        run_pipeline(module, BEFORE)
        named = _named(module, [KINDS[name] for name in KINDS if not kinds or name in kinds])
    return tuple(_mutant(name, place, ir.name) for name, place in named.items())


def mutate(module: ModuleOp, name: str) -> None:
    """Plant one fault, in place, in a module that has passed `BEFORE`.

    Raises:
        UsageError: the kernel has no such mutant.
    """
    kind = check_name(name)
    places = _named(module, [KINDS[kind]])
    if name not in places:
        there_are = ", ".join(places) or "none of this kind"
        raise UsageError(f"no mutant is called {name!r}; the kernel has {there_are}")
    places[name].apply()


def has_mutant(ir: KernelIR, name: str) -> bool:
    """Whether a kernel has a mutant of this name."""
    return any(mutant.name == name for mutant in mutants_of(ir, [check_name(name)]))


def check_kind(kind: str) -> None:
    """Refuse a word that is no kind.

    Raises:
        UsageError: says which there are.
    """
    if kind not in KINDS:
        raise UsageError(
            f"there is no kind of mutant {kind!r}{did_you_mean(kind, KINDS)}; there are: {', '.join(KINDS)}"
        )


def check_name(name: str) -> str:
    """The kind in a mutant's name.

    Raises:
        UsageError: what the name should look like, or that there is no such kind.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"a mutant is called kind@line:col, such as drop-wait@44:16; {name!r} is not")
    check_kind(match["kind"])
    return match["kind"]


def parse_mutation(mutation: str) -> tuple[str, str, bool]:
    """`WorldConfig.mutation` in its parts: kernel, mutant, whether kernels that lack the place are left alone.

    Raises:
        UsageError: it is not `kernel/mutant`.
    """
    kernel, slash, name = mutation.removesuffix(OPTIONAL).partition("/")
    if not slash or not kernel:
        raise UsageError(f"a mutation is called kernel/mutant, such as my_kernel/drop-wait@44:16; {mutation!r} is not")
    check_name(name)
    return kernel, name, mutation.endswith(OPTIONAL)


def _named(module: ModuleOp, kinds: Sequence[Kind]) -> dict[str, Place]:
    functions = [op for op in module.body.block.ops if isinstance(op, tt.FuncOp)]
    found = [(kind, place) for kind in kinds for function in functions for place in kind.places(function)]
    bare = [f"{kind.name}@{place.loc.line}:{place.loc.col}" for kind, place in found]
    several, seen, named = Counter(bare), Counter[str](), {}
    for name, (_, place) in zip(bare, found, strict=True):
        seen[name] += 1
        named[f"{name}#{seen[name]}" if several[name] > 1 else name] = place
    return named


def _mutant(name: str, place: Place, kernel: str) -> Mutant:
    calls = place.calls
    what = f"{place.what}, called from line {calls}" if calls else place.what
    return Mutant(name, name.partition("@")[0], kernel, place.loc.line, place.loc.col, place.loc.file, what)


__all__ = [
    "BEFORE",
    "KINDS",
    "OPTIONAL",
    "Kind",
    "Mutant",
    "check_kind",
    "check_name",
    "has_mutant",
    "mutants_of",
    "mutate",
    "parse_mutation",
]
