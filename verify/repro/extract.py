"""What a name needs of its source: statements of a file and of its neighbours, as they stand, imports rewritten.

Nothing is executed. A statement is kept if it binds a name that is needed; what it reads by name is needed too. Kept
statements are copied byte for byte: only import lines change, where they name tdist.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tdist.errors import UsageError

VENDOR: Mapping[str, str] = {
    "tdist.language": "triton_dist.language",
    "tdist.language.extra": "triton_dist.language.extra",
    "tdist.language.extra.libshmem_device": "triton_dist.language.extra.libshmem_device",
    "tdist.language.extra.ascend": "triton_dist.language.extra.ascend",
    "tdist.language.extra.ascend.libaclshmem_device": "triton_dist.language.extra.ascend.libaclshmem_device",
    "tdist.language.extra.cann": "triton.language.extra.cann",
    "tdist.language.extra.cann.extension": "triton.language.extra.cann.extension",
    "tdist.shmem": "shmem",
}
"""Our modules by the names that the vendor's have."""
SUPPORT = "repro_support"
SUPPORTED: Mapping[str, tuple[str, ...]] = {
    "tdist.verify": ("operator", "Case", "Operator", "Reference", "ensure_shmem"),
    "tdist.verify.operator": ("operator", "Case", "Operator"),
    "tdist.verify.heap": ("ensure_shmem", "release_shmem"),
    "tdist.platforms.base": ("RankRuntime",),
    "tdist.errors": ("TdistError", "UsageError", "KernelError"),
}
"""What the support module stands in for."""
EXTRACTED = ("tdist.kernels", "tdist.golden", "tdist.verify.inputs", "tdist.verify.operators")
"""What of ours is copied like a user's files: plain torch and kernels."""
RESERVED = ("repro", SUPPORT)
_ROOT = Path(__file__).parents[2]
_FOLDERS = {"verify": _ROOT / "verify", "golden": _ROOT / "golden"}
_NAMES = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}


@dataclass(frozen=True)
class Import:
    """One name that an import statement binds.

    Attributes:
        name: what it binds. `attribute`: of which name of `module`; empty if it binds the module itself.
    """

    name: str
    module: str
    attribute: str
    line: int


@dataclass
class Source:
    """A file, and which of its top-level statements are kept."""

    name: str
    path: Path
    folder: Path
    text: str
    body: list[ast.stmt]
    kept: set[int] = field(default_factory=set)
    imports: dict[str, list[Import]] = field(default_factory=dict)
    used_imports: set[str] = field(default_factory=set)
    future: bool = False
    done: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, name: str, path: Path) -> Source:
        """Parse a file.

        Raises: UsageError if it is no Python text.
        """
        try:
            text = path.read_text(encoding="utf-8")
            body = ast.parse(text).body
        except (OSError, SyntaxError, ValueError) as error:
            raise UsageError(f"{path}: cannot be read as Python in UTF-8: {error}") from None
        made = cls(name, path, path.parent, text, body)
        made.future = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in body)
        for node in body:
            for bound in _imports(node, path):
                made.imports.setdefault(bound.name, []).append(bound)
        return made

    def binds(self, name: str) -> list[int]:
        """Statements that bind or change a name, imports left out."""
        return [index for index, node in enumerate(self.body) if name in _bound(node)]

    def lines(self, node: ast.stmt) -> str:
        """A statement as it stands, decorators included."""
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        return "".join(self.text.splitlines(keepends=True)[first - 1 : node.end_lineno])


class Extraction:
    """Collects what one name of one file needs, file by file. `files()` is the result."""

    def __init__(self, path: Path, name: str, module: str = "") -> None:
        """Args: module: of ours, if `path` is a file of tdist."""
        self._sources: dict[Path, Source] = {}
        self.external: set[str] = set()
        self.main = self._source(path, _flat(module) if module else path.stem)
        if not self._needs(self.main, name, path.name):
            raise UsageError(
                f"{path.name} binds no {name} at its top level: it cannot be extracted; "
                "define it there, by `def`, `class`, an assignment or an import"
            )

    def files(self) -> dict[str, str]:
        """Text of each file, by its name."""
        return {f"{source.name}.py": self._text(source) for source in self._sources.values() if source.done}

    # ------------------------------------------------------------ following names

    def _source(self, path: Path, name: str) -> Source:
        known = self._sources.get(path)
        if known is None:
            if name in RESERVED or any(other.name == name for other in self._sources.values()):
                raise UsageError(f"{path.name}: two files of the script would be named {name}.py: rename one")
            known = self._sources[path] = Source.read(name, path)
        return known

    def _needs(self, source: Source, name: str, by: str) -> bool:
        """Keep what binds `name`; False if nothing in the file does."""
        if name in source.done:
            return True
        found = source.binds(name)
        if not found and name not in source.imports:
            return False
        source.done.add(name)
        for bound in source.imports.get(name, ()):
            self._needs_import(source, bound, by)
        for index in found:
            self._keep(source, index)
        return True

    def _keep(self, source: Source, index: int) -> None:
        if index in source.kept:
            return
        source.kept.add(index)
        node = source.body[index]
        local = set(_bound_inside(node))
        for bound in _bound(node):
            self._needs(source, bound, source.path.name)
        for bound in _imports_inside(node, source.path):
            self._needs_import(source, bound, source.path.name, nested=True)
        for name, line in _read(node, source.future):
            if name in _NAMES or self._needs(source, name, source.path.name) or name in local:
                continue
            place = f"{source.path.name}:{line}"
            raise UsageError(f"{place}: {name} is bound by no top-level statement: it cannot be extracted")
        for alias, attribute in _attributes(node):
            self._needs_attribute(source, alias, attribute)

    def _needs_import(self, source: Source, bound: Import, by: str, nested: bool = False) -> None:
        if not nested:
            source.used_imports.add(bound.name)
        place = f"{source.path.name}:{bound.line}"
        kind, target = self._resolve(source, bound, place)
        if kind == "external":
            self.external.add(target.partition(".")[0])
        elif kind == "attribute" and not self._needs(self._at(source, target, place), bound.attribute, by):
            raise UsageError(f"{place}: {bound.attribute} is bound by no top-level statement of {target}")

    def _needs_attribute(self, source: Source, alias: str, attribute: str) -> None:
        """`alias.attribute`, where the alias is a module of which a part is taken."""
        for bound in source.imports.get(alias, ()):
            place = f"{source.path.name}:{bound.line}"
            kind, target = self._resolve(source, bound, place)
            if kind == "module" and not self._needs(self._at(source, target, place), attribute, alias):
                raise UsageError(f"{place}: {attribute} is bound by no top-level statement of {target}")

    # ------------------------------------------------------------ where an import leads

    def _resolve(self, source: Source, bound: Import, place: str) -> tuple[str, str]:
        """What an import becomes: ("external" | "vendor" | "support" | "attribute" | "module", module)."""
        whole = f"{bound.module}.{bound.attribute}" if bound.attribute else bound.module
        if bound.attribute == "*":
            raise UsageError(f"{place}: `from {bound.module} import *` cannot be extracted: name what is imported")
        if whole in VENDOR or bound.module in VENDOR:
            return "vendor", bound.module
        if bound.attribute in SUPPORTED.get(bound.module, ()):
            return "support", bound.module
        if _is_ours(whole) and not whole.startswith(EXTRACTED):
            raise UsageError(f"{place}: {whole} has no counterpart in a script without tdist")
        if self._file(source, whole) is not None:
            return "module", whole
        if self._file(source, bound.module) is not None and bound.attribute:
            return "attribute", bound.module
        return "external", bound.module

    def _file(self, source: Source, module: str) -> Path | None:
        """The file of a module of ours or beside the user's file; None for what is installed."""
        parts = module.lstrip(".").split(".")
        base = source.folder
        if _is_ours(module):
            parts, base = parts[1:], _ROOT / "tdist"
            if parts and parts[0] in _FOLDERS:
                base, parts = _FOLDERS[parts[0]], parts[1:]
        candidates = (base.joinpath(*parts, "__init__.py"), base.joinpath(*parts).with_suffix(".py") if parts else None)
        return next((path for path in candidates if path is not None and path.is_file()), None)

    def _at(self, source: Source, module: str, place: str) -> Source:
        path = self._file(source, module)
        if path is None:
            raise UsageError(f"{place}: no file of {module} was found")
        return self._source(path, _flat(module))

    # ------------------------------------------------------------ writing

    def _text(self, source: Source) -> str:
        pieces = ["from __future__ import annotations\n"] if source.future else []
        used = (bound for name in source.used_imports for bound in source.imports[name])
        imports = sorted(used, key=lambda bound: (bound.line, bound.name))
        pieces += [self._import_line(source, bound) for bound in imports]
        head = "".join(dict.fromkeys(pieces))
        body = [self._statement(source, source.body[index]) for index in sorted(source.kept)]
        return "\n\n".join(filter(None, [head, *body]))

    def _import_line(self, source: Source, bound: Import) -> str:
        kind, target = self._resolve(source, bound, f"{source.path.name}:{bound.line}")
        whole = f"{bound.module}.{bound.attribute}" if bound.attribute else bound.module
        if kind == "support":
            return _from(SUPPORT, bound.attribute, bound.name)
        if kind == "module":
            return f"import {_flat(target)} as {bound.name}\n"
        if kind == "attribute":
            return _from(_flat(target), bound.attribute, bound.name)
        if whole in VENDOR:
            parent, _, last = VENDOR[whole].rpartition(".")
            return _from(parent, last, bound.name) if parent else _import(last, bound.name)
        module = VENDOR.get(bound.module, bound.module)
        return _from(module, bound.attribute, bound.name) if bound.attribute else _import(module, bound.name)

    def _statement(self, source: Source, node: ast.stmt) -> str:
        """A kept statement as it stands; imports inside functions are rewritten where they lead to us."""
        text = source.lines(node)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                bound = list(_imports(inner, source.path))
                new = "; ".join(self._import_line(source, one).rstrip() for one in bound)
                old = ast.get_source_segment(source.text, inner)
                if old is not None and any(_is_ours(one.module) or self._file(source, one.module) for one in bound):
                    text = text.replace(old, new)
        return text


def _from(module: str, attribute: str, name: str) -> str:
    renamed = "" if attribute == name else f" as {name}"
    return f"from {module} import {attribute}{renamed}\n"


def _import(module: str, name: str) -> str:
    return f"import {module}\n" if module.partition(".")[0] == name else f"import {module} as {name}\n"


def _flat(module: str) -> str:
    """File name of a module: ours without `tdist`, dots as underscores."""
    return module.removeprefix("tdist.").replace(".", "_")


def _is_ours(module: str) -> bool:
    return module == "tdist" or module.startswith("tdist.")


# ---------------------------------------------------------------- what statements bind and read


def _imports(node: ast.stmt, path: Path) -> Iterator[Import]:
    if isinstance(node, ast.ImportFrom) and node.module != "__future__":
        if node.level:
            raise UsageError(f"{path.name}:{node.lineno}: a relative import cannot be extracted: import by name")
        for alias in node.names:
            yield Import(alias.asname or alias.name, node.module or "", alias.name, node.lineno)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.asname or alias.name.partition(".")[0], alias.name, "", node.lineno)


def _imports_inside(node: ast.stmt, path: Path) -> Iterator[Import]:
    for inner in ast.walk(node):
        if inner is not node and isinstance(inner, ast.Import | ast.ImportFrom):
            yield from _imports(inner, path)


def _bound(node: ast.stmt) -> set[str]:
    """Names of the module that a top-level statement binds, or changes in place; imports left out."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom) or _for_checkers(node):
        return set()
    if isinstance(node, ast.Expr):
        return _changed(node.value)
    stored = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    defined = {inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef | ast.ClassDef)}
    nested = (inner for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom))
    defined |= {alias.asname or alias.name.partition(".")[0] for inner in nested for alias in inner.names}
    return stored | defined | _changed_places(node)


def _changed(value: ast.expr) -> set[str]:
    """`TABLE.append(…)`, `TABLE.update(…)`: what a call in a statement of its own is made on."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return set()
    return {value.func.value.id} if isinstance(value.func.value, ast.Name) else set()


def _changed_places(node: ast.stmt) -> set[str]:
    """`TABLE[key] = …`, `thing.field = …`: what they change."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    places = (target.value for target in targets if isinstance(target, ast.Subscript | ast.Attribute))
    return {place.id for place in places if isinstance(place, ast.Name)}


def _for_checkers(node: ast.stmt) -> bool:
    """`if TYPE_CHECKING:`, which never runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"


def _bound_inside(node: ast.stmt) -> Iterator[str]:
    """Every name that is bound anywhere within a statement: arguments, variables, imports, handlers."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store | ast.Del):
            yield inner.id
        elif isinstance(inner, ast.arg):
            yield inner.arg
        elif isinstance(inner, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.ExceptHandler):
            yield inner.name or ""
        elif isinstance(inner, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in inner.names)


def _read(node: ast.stmt, future: bool) -> Iterator[tuple[str, int]]:
    """Names that a statement reads, with the line. Annotations count only where they are evaluated."""
    for inner in _walk(node, future):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            yield inner.id, inner.lineno


def _attributes(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """`alias.attribute` wherever it stands."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
            yield inner.value.id, inner.attr


def _walk(node: ast.AST, future: bool) -> Iterator[ast.AST]:
    """All nodes but annotations that nobody evaluates."""
    yield node
    for name, value in ast.iter_fields(node):
        if future and name in ("annotation", "returns") and not _keeps_annotations(node):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, future)


def _keeps_annotations(node: ast.AST) -> bool:
    """A jit function's `tl.constexpr` is read by Triton, as text or not."""
    return isinstance(node, ast.arg) and node.annotation is not None and "constexpr" in ast.unparse(node.annotation)
