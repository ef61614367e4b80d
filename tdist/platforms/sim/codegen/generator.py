"""From one function of the IR to one Python generator function.

`Generator` walks the operations in order and asks the rule of each for code; rules live in `rules_*.py`, one file for
each kind of operation, and register themselves with `@rule`. The generator keeps what is known of each SSA value
(`values.py`), the lines written so far (`emitter.py`) and the clocks that control the current place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.ir import Block, Operation, SSAValue

from tdist.errors import KernelError
from tdist.ir.location import loc_of

from .elements import I1, I64, Element, TypeInfo, UnknownType, type_info
from .emitter import Emitter
from .facts import UNKNOWN, Facts
from .poly import ONE, Poly
from .site import Site
from .symbolic import Symbolic, combine
from .values import (
    NO_CLK,
    AddressTile,
    Box,
    Clk,
    Cond,
    IndexTile,
    Lattice,
    Origin,
    PointerTile,
    Scalar,
    Shape,
    Splat,
    Tile,
    Value,
    carrying,
)

Rule = Callable[["Generator", Operation], None]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of the operations with these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


class Restart(Exception):
    """A loop-carried value did not keep its symbolic form: generate again with it materialised."""

    def __init__(self, key: tuple[Operation, int]) -> None:
        super().__init__(key)
        self.key = key


@dataclass
class Options:
    """What the generated code depends on besides the IR."""

    detect: bool
    fuse: bool
    trace: bool = False
    adversarial: bool = False
    symbolic: frozenset[tuple[str, int, int]] | None = None


@dataclass
class Module:
    """What the functions of one kernel share: definitions in front of them, sites, counts.

    `numbers`: what traced events call an operation; empty without tracing. `symbolic`: which tiles are digests.
    """

    kernel: str
    options: Options
    numbers: dict[Operation, int] = field(default_factory=dict)
    symbolic: Symbolic | None = None
    definitions: list[str] = field(default_factory=list)
    tiers: Counter[tuple[str, int, str, str]] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    fused_loops: int = 0
    views: int = 0
    cached: int = 0

    def define(self, prefix: str, expression: str) -> str:
        name = f"{prefix}{len(self.definitions)}"
        self.definitions.append(f"{name} = {expression}")
        return name

    def access(self, prefix: str, function: str, spec: str, options: str, op: Operation) -> str:
        """Define what makes one memory access; where runs are traced, it tells the tracer too (`sim/tracing.py`)."""
        made = f"{function}({spec}{', ' if options else ''}{options})"
        if self.options.trace:
            made = f"traced_{function}({made}, {spec}, {self.numbers.get(op, -1)})"
        return self.define(prefix, made)

    def site(self, site: Site) -> str:
        parts = (site.kernel, site.file, site.line, site.col, site.op, site.arg, site.hidden)
        return self.define("S", f"Site({', '.join(map(repr, parts))})")


class Generator:
    """State of one function under generation."""

    def __init__(self, module: Module, facts: Facts, forced: set[tuple[Operation, int]]) -> None:
        self.module = module
        self.facts = facts
        self.forced = forced
        self.emit = Emitter()
        self.env: dict[SSAValue, Value] = {}
        self.control: Clk = NO_CLK
        self.fusion: Any = None
        self.returns_clock = False
        self._sites: dict[tuple[Operation, str], str] = {}

    # --- walking

    def block(self, block: Block) -> None:
        """Code for all operations of a block but its terminator."""
        for op in block.ops:
            if op.name not in ("scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return"):
                self.operation(op)

    def operation(self, op: Operation) -> None:
        if self.module.symbolic is not None and self.module.symbolic.is_abstract(op):
            if self.fusion is None:
                combine(self, op)
                return
            if op.name not in ("tt.dot", "tt.trans"):
                self.fusion.refuse("an operation on symbolic tiles besides the multiplication")
        function = RULES.get(op.name)
        if function is None:
            raise self.error(op, f"the simulator has no rule for {op.name}")
        try:
            function(self, op)
        except UnknownType as error:
            raise self.error(op, f"{op.name} has a type that the simulator does not know: {error}") from None

    def error(self, op: Operation, message: str) -> KernelError:
        """A user's error, with the kernel's own position."""
        loc = loc_of(op)
        where = f"{loc.file}:{loc.line}" if loc else f"kernel {self.module.kernel}"
        return KernelError(f"{where}: {message}").at(loc)

    # --- values

    def is_abstract(self, ssa: SSAValue) -> bool:
        """Whether a value is a digest that stands for a tile."""
        return self.module.symbolic is not None and ssa in self.module.symbolic.abstract

    def value(self, ssa: SSAValue) -> Value:
        return self.env[ssa]

    def operands(self, op: Operation) -> list[Value]:
        return [self.env[v] for v in op.operands]

    def set(self, op: Operation, value: Value) -> None:
        """The first result of `op`; it carries what controls this place as well."""
        self.env[op.results[0]] = carrying(value, self.control)

    def set_value(self, ssa: SSAValue, value: Value) -> None:
        self.env[ssa] = carrying(value, self.control)

    def clk_of(self, *values: Value | None) -> Clk:
        return frozenset().union(*(v.clk for v in values if v is not None))

    def clock(self, clk: Clk) -> str:
        """An expression for the join of clocks: a local, or `None`."""
        if not clk or not self.module.options.detect:
            return "None"
        first, *rest = sorted(clk)
        text = first
        for name in rest:
            text = self.emit.bind(f"later({text}, {name})", "clk")
        return text

    def result_type(self, op: Operation) -> TypeInfo:
        return type_info(op.results[0].type)

    # --- sites

    def site(self, op: Operation, kind: str | None = None, origin: Origin | None = None) -> str:
        """The name of the constant that holds the operation's `Site`."""
        kind = kind or op.name.split(".")[-1]
        key = (op, kind)
        if key not in self._sites:
            loc = loc_of(op)
            file, line, col = (loc.file, loc.line, loc.col) if loc else ("<unknown>", 0, 0)
            self._sites[key] = self.module.site(
                Site(
                    self.module.kernel,
                    file,
                    line,
                    col,
                    kind,
                    origin.arg if origin else None,
                    origin.hidden if origin else "",
                )
            )
        return self._sites[key]

    def site_text(self, op: Operation) -> str:
        loc = loc_of(op)
        return f"{loc.file}:{loc.line}" if loc else op.name

    def forget_sites(self, definitions: int) -> None:
        """Forget sites whose definitions were taken back."""
        self._sites = {key: name for key, name in self._sites.items() if int(name[1:]) < definitions}

    def note_access(self, op: Operation, *, view: bool, cached: bool) -> None:
        self.module.views += view
        self.module.cached += cached

    def count(self, op: Operation, tier: str) -> None:
        """Note which tier an access got, by source line."""
        loc = loc_of(op)
        self.module.tiers[(loc.file if loc else "<unknown>", loc.line if loc else 0, op.name, tier)] += 1

    # --- integers

    def poly_text(self, poly: Poly) -> str:
        return self.emit.text(poly)

    def opaque(self, expression: str, hint: str = "v") -> Poly:
        """A new symbol for something outside the algebra."""
        return Poly.symbol(self.emit.bind(expression, hint))

    def exact(self, value: Scalar) -> Poly:
        """The value where it leaves the ring: wrapped to its width."""
        poly, element = value.poly, value.element
        if poly.value is not None:
            bits = element.bits
            half = 1 << (bits - 1)
            return Poly.const(((poly.value + half) & ((1 << bits) - 1)) - half)
        if poly.name is not None:
            return poly
        text = self.emit.text(poly)
        if poly.terms and self.emit.level.get(text) is None:
            text = self.emit.bind(text, "e")
        expression = f"{text} if {element.low} <= {text} <= {element.high} else wrap({text}, {element.bits})"
        return Poly.symbol(self.emit.reuse(("wrap", poly, element.bits), expression, "w"))

    def exact_text(self, value: Scalar) -> str:
        return self.emit.text(self.exact(value))

    def guard(self, op: Operation, lattice: Lattice, element: Element) -> None:
        """Where an index tensor leaves the ring: fault if it would have wrapped.

        The common case costs one comparison: a base within a quarter of the range, and strides that were checked once.
        """
        if element.bits >= 64 or static_span(lattice, element):
            return
        if self.fusion is not None:
            self.fusion.guard(op, lattice, element)
            return
        self.emit_guard(op, lattice, element)

    def emit_guard(self, op: Operation, lattice: Lattice, element: Element) -> None:
        spans = [(n - 1, s) for n, s in zip(lattice.shape, lattice.strides, strict=True) if s and n > 1]
        key = ("guard", lattice.base, tuple(spans), lattice.vecs, element.bits)
        if self.emit.find(key) is not None:
            return
        limit = 1 << (element.bits - 2)
        site = self.site(op)
        self._guard_strides(site, spans, element, limit)
        base = self.emit.text(lattice.base)
        constant = lattice.base.value
        if static_span(lattice, element) is False or (constant is None and (lattice.base.name is None or spans)):
            pairs = "".join(f"({n}, {self.emit.text(s)}), " for n, s in spans)
            test = "" if constant is not None else f"if not {-limit} <= {base} <= {limit}: "
            self.emit.line(f"{test}check_span(ag, {site}, {base}, ({pairs}), {element.bits})")
        self.emit.scopes[-1].known[key] = base
        self._guard_vectors(site, base, lattice, element)

    def _guard_vectors(self, site: str, base: str, lattice: Lattice, element: Element) -> None:
        """Vectors move the index too, where they are live at run time and a scale may take them out of the range."""
        if all(v.scale == ONE for v in lattice.vecs) and len(lattice.vecs) <= 1:
            return
        steps = zip(lattice.shape, lattice.strides, strict=True)
        axes = "".join(f"({extent}, {self.emit.text(stride)}), " for extent, stride in steps)
        live = " or ".join(f"{v.local} is not None" for v in lattice.vecs)
        vecs = self.vecs_text(lattice)
        self.emit.line(f"if {live}: check_vectors(ag, {site}, {base}, ({axes}), {vecs}, {element.bits})")

    def _guard_strides(self, site: str, spans: Sequence[tuple[int, Poly]], element: Element, limit: int) -> None:
        room = max(1, limit // max(1, sum(n for n, _ in spans)))
        for _, stride in spans:
            key = ("stride", stride, room)
            if stride.value is not None or self.emit.find(key) is not None:
                continue
            text = self.emit.text(stride)
            pairs = "".join(f"({n}, {self.emit.text(s)}), " for n, s in spans)
            self.emit.line(f"if not {-room} <= {text} <= {room}: check_span(ag, {site}, 0, ({pairs}), {element.bits})")
            self.emit.scopes[-1].known[key] = text

    # --- materialising

    def tile(self, value: Value) -> Tile:
        """Any value as a torch tensor in a local."""
        match value:
            case Tile():
                return value
            case Splat():
                text = f"torch.full({value.shape}, {value.text}, dtype={value.element.text})"
                return self._new_tile(text, value.shape, value.element, value.clk)
            case Scalar():
                text = f"torch.tensor({self.exact_text(value)}, dtype={value.element.text})"
                return self._new_tile(text, (), value.element, value.clk)
            case Cond():
                return self._new_tile(f"torch.tensor({value.text})", (), I1, value.clk)
            case IndexTile():
                text = f"{self.lattice_text(value.lattice)}.to({value.element.text})"
                return self._shared_tile(text, value.shape, value.element, value.clk, ("tile", value.lattice))
            case Box():
                text = f"box_mask({value.shape}, {self.box_text(value) or _all(value.shape)})"
                return self._shared_tile(text, value.shape, I1, value.clk, ("mask", value.bounds, value.conditions))
            case PointerTile() | AddressTile():
                return Tile(self.addresses(value).local, value.shape, I64, clk=value.clk)
        raise TypeError(f"{type(value).__name__} has no tensor form")

    def _new_tile(self, text: str, shape: Shape, element: Element, clk: Clk) -> Tile:
        return Tile(self.emit.bind(text, "t"), shape, element, owned=True, clk=clk)

    def _shared_tile(self, text: str, shape: Shape, element: Element, clk: Clk, key: Any) -> Tile:
        return Tile(self.emit.reuse((*key, shape, element.name), text, "t"), shape, element, clk=clk)

    def lattice_text(self, lattice: Lattice) -> str:
        strides = "".join(f"{self.emit.text(s)}, " for s in lattice.strides)
        vecs = f", {self.vecs_text(lattice)}" if lattice.vecs else ""
        return f"lattice({lattice.shape}, {self.emit.text(lattice.base)}, ({strides}){vecs})"

    def vecs_text(self, lattice: Lattice) -> str:
        return "(" + "".join(f"({v.axis}, {v.local}, {self.emit.text(v.scale)}), " for v in lattice.vecs) + ")"

    def addresses(self, value: PointerTile | AddressTile) -> AddressTile:
        if isinstance(value, AddressTile):
            return value
        text = self.emit.reuse(("tile", value.lattice, value.shape, "i64"), self.lattice_text(value.lattice), "addr")
        return AddressTile(text, value.shape, value.origin, value.clk)

    def box_text(self, box: Box) -> str | None:
        """The box as the flat tuple that access.py wants; None if all lanes are on."""
        lows: list[list[str]] = [[] for _ in box.shape]
        highs: list[list[str]] = [[] for _ in box.shape]
        for bound in box.bounds:
            if bound.low is not None:
                lows[bound.axis].append(self.emit.text(bound.low))
            if bound.high is not None:
                highs[bound.axis].append(self.emit.text(bound.high))
        if not any(lows) and not any(highs) and not box.conditions:
            return None
        sides = []
        for axis, extent in enumerate(box.shape):
            sides.append(_extreme("max", lows[axis], "0"))
            sides.append(_extreme("min", highs[axis], str(extent)))
        text = f"({', '.join(sides)})"
        if box.conditions:
            nothing = f"({', '.join(['0'] * (2 * len(box.shape)))})"
            text = f"{text} if {' and '.join(box.conditions)} else {nothing}"
        return self.emit.reuse(("box", text), text, "box")

    def operand(self, value: Value) -> str:
        """An operand of an element-wise torch expression: a number's text where the value is uniform."""
        match value:
            case Splat() | Cond():
                return value.text
            case Scalar():
                return self.exact_text(value)
            case IndexTile() if value.lattice.is_uniform:
                return self.exact_text(Scalar(value.lattice.base, value.element))
            case Box() if not value.bounds:
                return self.condition(value).text
        return self.tile(value).local

    @staticmethod
    def is_uniform(value: Value) -> bool:
        """Whether `operand` gives a number for this value and not a tensor."""
        match value:
            case IndexTile():
                return value.lattice.is_uniform
            case Box():
                return not value.bounds
        return isinstance(value, (Splat, Cond, Scalar))

    def condition(self, value: Value) -> Cond:
        """A uniform mask or a scalar of one bit as a `Cond`."""
        match value:
            case Cond():
                return value
            case Box() if not value.bounds:
                if len(value.conditions) <= 1:
                    return Cond(*(value.conditions or ("True",)), clk=value.clk)
                return Cond(self.emit.bind(" and ".join(value.conditions), "c"), value.clk)
            case Tile() if value.shape == ():
                return Cond(self.emit.bind(f"bool({value.local})", "c"), value.clk)
        raise TypeError(f"{type(value).__name__} is not a condition")

    def scalar_of(self, text: str, element: Element, clk: Clk) -> Value:
        """A scalar value from an expression that yields a Python number."""
        if element.is_float:
            return Splat((), self.emit.bind(text, "x"), element, clk)
        if element.is_bool:
            return Cond(self.emit.bind(text, "c"), clk)
        return Scalar(self.opaque(text), element, clk)

    def result(self, text: str, shape: Shape, element: Element, clk: Clk, *, owned: bool = True) -> Tile:
        """A tile from an expression."""
        return Tile(self.emit.bind(text, "t"), shape, element, owned=owned, clk=clk)

    # --- pointers

    def origin_of(self, ssa: SSAValue, element: Element, al: str) -> Origin:
        """The origin of a pointer value whose allocation is in local `al`."""
        roots = self.facts.roots.get(ssa, frozenset())
        arg = next(iter(roots)) if len(roots) == 1 and UNKNOWN not in roots else None
        return Origin(al, element, arg, ssa in self.facts.remote, "?" if ssa in self.facts.hidden else "")


def _extreme(function: str, texts: list[str], default: str) -> str:
    unique = list(dict.fromkeys(texts))
    if not unique:
        return default
    return unique[0] if len(unique) == 1 else f"{function}({', '.join(unique)})"


def _all(shape: Shape) -> str:
    return "(" + ", ".join(f"0, {n}" for n in shape) + ",)"


def static_span(lattice: Lattice, element: Element) -> bool | None:
    """Whether a lattice of constants fits its integers; None if it is not known at compile time."""
    numbers = [lattice.base.value, *(s.value for s in lattice.strides)]
    if lattice.vecs or any(n is None for n in numbers):
        return None
    low = high = lattice.base.value or 0
    for extent, stride in zip(lattice.shape, lattice.strides, strict=True):
        reach = (extent - 1) * (stride.value or 0)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return element.low <= low and high <= element.high


def uniform_like(shape: Shape, value: Scalar) -> IndexTile:
    """A scalar in all lanes."""
    return IndexTile(Lattice.uniform(shape, value.poly), value.element, value.clk)
