"""Random kernels that move two pointers through branches, loops and calls, and what their stores must reach.

A program is a tree of statements. It is written out as a kernel, and followed by hand: which memory, local (`buf`) or
remote (`ptr(buf)`), each store can reach, over all paths. Tokens change no address and do not count here.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

Memory = frozenset[str]
LOCAL, REMOTE = frozenset({"buf"}), frozenset({"ptr(buf)"})

HEAD = """import triton
import triton.language as tl
import tdist.language as dl


@triton.jit
def program(x, buf, sig, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    values = tl.load(x + offs)
    p = buf
    q = dl.symm_at(buf, 0)
"""
SIGNATURE = {"x": "*fp16", "buf": "*fp16", "sig": "*i32", "n": "i32"}
_PLAIN = {"local": 1, "remote": 3, "step": 2, "copy": 1, "consume": 2, "choice": 1, "store": 4}
_NESTED = {"if": 3, "for": 2, "while": 1}


@dataclass
class Statement:
    """One statement: `to` is assigned or stored through, `of` is read."""

    kind: str
    to: str = "p"
    of: str = "q"
    number: int = 0
    bodies: list[list[Statement]] = field(default_factory=list)
    line: int = 0


class Program:
    """A program by its seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0
        self.lines = HEAD.splitlines()
        body = [self._statement(3) for _ in range(self._random.randrange(3, 7))]
        body += [Statement("store", "p"), Statement("store", "q")]
        self._write(body, 1)
        self.source = "\n".join(self.lines) + "\n"
        self.reached: dict[int, Memory] = defaultdict(frozenset)
        self.loop_changes_memory = False
        self._follow(body, {"p": (LOCAL, "p"), "q": (REMOTE, "q")})

    # -- making

    def _statement(self, depth: int) -> Statement:
        kinds = {**_PLAIN, **(_NESTED if depth else {})}
        (kind,) = self._random.choices(list(kinds), list(kinds.values()))
        self._count += 1
        made = Statement(kind, self._random.choice("pq"), self._random.choice("pq"), self._count)
        if kind in _NESTED:
            made.bodies = [[self._statement(depth - 1) for _ in range(self._random.randrange(1, 4))]]
        if kind == "if" and self._random.random() < 0.7:
            made.bodies.append([self._statement(depth - 1)])
        return made

    # -- writing

    def _write(self, body: list[Statement], depth: int) -> None:
        for statement in body:
            for text in self._texts(statement):
                self.lines.append("    " * depth + text)
            statement.line = len(self.lines)
            for index, inner in enumerate(statement.bodies):
                if index:
                    self.lines.append("    " * depth + "else:")
                self._write(inner, depth + 1)
            if statement.kind == "while":
                self.lines.append("    " * (depth + 1) + f"i{statement.number} += 1")

    def _texts(self, statement: Statement) -> list[str]:
        to, of, k = statement.to, statement.of, statement.number
        return {
            "local": [f"{to} = buf + {k}"],
            "remote": [f"{to} = dl.symm_at(buf + {k}, n + {k})"],
            "step": [f"{to} = {of} + {k}"],
            "copy": [f"{to} = {of}"],
            "consume": [f'{to} = dl.consume_token({of}, dl.wait(sig + {16 * k}, 1, "gpu", "acquire"))'],
            "choice": [f"{to} = tl.where(n % {k + 2} > 0, p, q)"],
            "store": [f"tl.store({to} + offs, values)"],
            "if": [f"if n % {k + 2} > 1:"],
            "for": [f"for i{k} in range(0, n + {k}):"],
            "while": [f"i{k} = 0", f"while i{k} < n:"],
        }[statement.kind]

    # -- following; a value is its memory, and which assignment made it

    def _follow(self, body: list[Statement], values: dict[str, tuple[Memory, str]]) -> dict[str, tuple[Memory, str]]:
        for statement in body:
            values = self._step(statement, values)
        return values

    def _step(self, statement: Statement, values: dict[str, tuple[Memory, str]]) -> dict[str, tuple[Memory, str]]:
        to, of, made = statement.to, statement.of, str(statement.number)
        match statement.kind:
            case "store":
                self.reached[statement.line] |= values[to][0]
            case "local":
                return {**values, to: (LOCAL, "local")}
            case "remote":
                return {**values, to: (REMOTE, made)}
            case "step" | "copy" | "consume":
                return {**values, to: values[of]}
            case "choice":
                return {**values, to: self._either(values["p"], values["q"], made)}
            case "if":
                ends = [self._follow(inner, values) for inner in statement.bodies]
                other = ends[1] if len(ends) > 1 else values
                return {name: self._either(ends[0][name], other[name], made) for name in values}
            case _:
                return self._loop(statement.bodies[0], values, made)
        return values

    def _loop(self, body: list[Statement], values: dict[str, tuple[Memory, str]], made: str):
        for _ in range(3):  # memory comes from at most two places
            end = self._follow(body, values)
            self.loop_changes_memory |= any(end[name][1] != values[name][1] for name in values)
            values = {name: self._either(values[name], end[name], made) for name in values}
        return values

    @staticmethod
    def _either(one: tuple[Memory, str], other: tuple[Memory, str], made: str) -> tuple[Memory, str]:
        return (one[0] | other[0], one[1] if one[1] == other[1] else made)
