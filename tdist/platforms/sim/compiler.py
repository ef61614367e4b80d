"""KernelIR → SimKernel: read, run the passes, generate Python, execute its definitions once; cached by content.

In memory, one `SimKernel` for each (IR, options). On disk, generated source (`source_cache.py`).
`TDIST_DUMP_DIR` gets a copy of each source that is compiled.
"""

from __future__ import annotations

import hashlib
import linecache
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp

from tdist import env
from tdist.frontend.kernel_ir import KernelArg, KernelIR
from tdist.passes import DEFAULT_PIPELINE, run_pipeline, split_sub_vec
from tdist.passes.report import CompileReport
from tdist.passes.split_sub_vec import gated_locations

from . import access, source_cache
from .codegen import arithmetic, device_library, reductions
from .codegen.function import Generated, Stats, generate
from .codegen.generator import Options
from .codegen.ir_access import prop
from .codegen.site import Site
from .tiles import TileCache

BARRIER_ALL = frozenset({"aclshmem_barrier_all", "aclshmemx_barrier_all"})
BARRIER_ALL_VEC = frozenset({"aclshmemx_barrier_all_vec", "aclshmem_barrier_all_vec"})


@dataclass(frozen=True)
class SimOptions:
    """How to compile.

    Attributes:
        detect: report accesses to the race detector, carry clocks.
        fuse: let loops that only multiply adjacent tiles become one multiplication.
        mutation: name of a mutant of the kernel to compile in its place, "" for the kernel itself.
        trace: each access tells the engine's tracer about itself.
        adversarial: for adversarial memory. Each load and store is a scheduling point, local ones too, and loads copy
            what they load, also where memory itself could stand for it.
        symbolic: tiles that nothing decides by are digests (`codegen/symbolic.py`), but for what the stores at these
            places (file, line, column) store; None for tiles as they are.
    """

    detect: bool = True
    fuse: bool = True
    mutation: str = ""
    trace: bool = False
    adversarial: bool = False
    symbolic: frozenset[tuple[str, int, int]] | None = None


@dataclass
class SimKernel:
    """A kernel ready to run on the simulated platform.

    `source` is the main core's generated Python; `second_source` the second vector core's, or None. `gated_sites` are
    the operations that depend on `sub_vec_id()`: each core has its own. `graphs`: of each core, where its stored values
    come from (`codegen/value_graph.py`, as JSON text), empty texts where runs are not traced.
    """

    name: str
    args: tuple[KernelArg, ...]
    source: str
    second_source: str | None
    has_dot: bool
    uses_barrier_all: bool
    uses_barrier_all_vec: bool
    uses_sub_vec: bool
    report: CompileReport
    sites: tuple[Site, ...]
    gated_sites: frozenset[Site]
    stats: Stats
    entries: tuple[Callable[..., Any], ...]
    graphs: tuple[str, ...] = ()

    def entry(self, core: int) -> Callable[..., Any]:
        """The generator function of a core: 0 main, 1 the second vector core.

        Raises:
            IndexError: the kernel has no such core.
        """
        return self.entries[core]


@dataclass
class _Lowered:
    """What the passes made of a kernel, before code generation."""

    main: ModuleOp
    second: ModuleOp | None
    report: CompileReport


_kernels: dict[str, SimKernel] = {}
_tiles = TileCache()


def compile_kernel(kernel: KernelIR, options: SimOptions | None = None) -> SimKernel:
    """Compile a kernel for the simulated platform.

    Raises:
        KernelError: the kernel uses something that cannot be compiled; names op, file and line.
        UsageError: the kernel has no mutant of the name in `options`.
    """
    options = options or SimOptions()
    key = content_key(kernel, options)
    if key not in _kernels:
        _kernels[key] = _compile(kernel, options, key)
    return _kernels[key]


@lru_cache(maxsize=1024)
def content_key(kernel: KernelIR, options: SimOptions) -> str:
    """A digest of all that generated source depends on."""
    places = None if options.symbolic is None else sorted(options.symbolic)  # a set has no order of its own
    said = (replace(options, symbolic=None), places)
    text = repr((kernel.name, kernel.ttir, kernel.args, said, source_cache.generator_digest()))
    return hashlib.sha256(text.encode()).hexdigest()


def clear_caches() -> None:
    """Forget compiled kernels and converted tiles (the disk cache stays)."""
    _kernels.clear()
    content_key.cache_clear()
    _tiles.clear()


def lower(kernel: KernelIR, mutation: str = "") -> tuple[ModuleOp, CompileReport]:
    """A kernel, or a mutant of it, as code is generated from it, and what the passes did.

    Raises:
        KernelError: the kernel uses something that cannot be compiled; names op, file and line.
        UsageError: the kernel has no such mutant.
    """
    from tdist.frontend.reader import read_ttir

    module = read_ttir(kernel.ttir)
    if not mutation:
        return module, run_pipeline(module, DEFAULT_PIPELINE)
    from tdist.mutations import BEFORE, mutate

    report = run_pipeline(module, BEFORE)
    mutate(module, mutation)
    report.extend(run_pipeline(module, DEFAULT_PIPELINE[len(BEFORE) :]))
    return module, report


def _compile(kernel: KernelIR, options: SimOptions, key: str) -> SimKernel:
    module, report = lower(kernel, options.mutation)
    main, second = split_sub_vec(module)
    uses = _Uses(module)
    codegen_options = Options(options.detect, options.fuse, options.trace, options.adversarial, options.symbolic)
    keep = not options.mutation  # mutants are many and each is met once
    first = _generate(main, kernel, codegen_options, key + "-0", keep)
    other = _generate(second, kernel, codegen_options, key + "-1", keep) if second is not None else None
    entry, sites, graph = _execute(first.source, kernel.name, key + "-0")
    gated = gated_locations(module)
    entries, graphs = [entry], [graph]
    if other is not None:
        second_entry, second_sites, second_graph = _execute(other.source, kernel.name, key + "-1")
        entries.append(second_entry)
        graphs.append(second_graph)
        sites += second_sites
    return SimKernel(
        name=kernel.name,
        args=kernel.args,
        source=first.source,
        second_source=other.source if other else None,
        has_dot=uses.dot,
        uses_barrier_all=uses.barrier_all,
        uses_barrier_all_vec=uses.barrier_all_vec,
        uses_sub_vec=second is not None,
        report=report,
        sites=tuple(dict.fromkeys(sites)),
        gated_sites=frozenset(site for site in sites if (site.file, site.line, site.col) in gated),
        stats=first.stats,
        entries=tuple(entries),
        graphs=tuple(graphs),
    )


class _Uses:
    """What a kernel contains that decides its launch mode."""

    def __init__(self, module: ModuleOp) -> None:
        names = [op.name for op in module.walk()]
        symbols = {prop(op, "symbol") for op in module.walk() if op.name == "distributed.extern_call"}
        self.dot = "tt.dot" in names
        self.barrier_all = bool(symbols & BARRIER_ALL)
        self.barrier_all_vec = bool(symbols & BARRIER_ALL_VEC)


def _generate(module: ModuleOp, kernel: KernelIR, options: Options, key: str, keep: bool) -> Generated:
    if not keep:
        return generate(module, kernel, options)
    cached = source_cache.load(key)
    if cached is not None:
        return cached
    made = generate(module, kernel, options)
    source_cache.save(key, made)
    return made


def _execute(source: str, name: str, key: str) -> tuple[Callable[..., Any], list[Site], str]:
    """Run the definitions of a source; its text is known to `linecache`, so that tracebacks show it."""
    filename = f"<tdist sim {name} {key[:12]}{key[-2:]}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    _dump(name, key, source)
    namespace = dict(_names())
    exec(compile(source, filename, "exec"), namespace)
    sites = [value for value in namespace.values() if isinstance(value, Site)]
    return namespace["kernel"], sites, namespace.get("GRAPH", "")


def _dump(name: str, key: str, source: str) -> None:
    folder = env.DUMP_DIR.get()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-{key[:12]}{key[-2:]}.py").write_text(source)


@cache
def _names() -> dict[str, Any]:
    """The names that generated source may use."""
    from . import symbolic_access, traced_access
    from .clocks import later

    names: dict[str, Any] = {"torch": torch, "inf": math.inf, "nan": math.nan, "later": later, "TILES": _tiles}
    for module in (arithmetic, device_library, reductions, access, traced_access, symbolic_access):
        names |= {k: v for k, v in vars(module).items() if not k.startswith("_") and callable(v)}
    return names | {"Site": Site}
