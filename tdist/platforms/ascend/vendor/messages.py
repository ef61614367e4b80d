"""What the vendor's programs say → what a kernel's author needs: which line, what is wrong, what to try.

One table for what they refuse (`REFUSALS`), one for crashes with a known cause (`CRASHES`). A message that neither
knows is passed on as it is, at the line it names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tdist.errors import EnvironmentUnfit, KernelError, TdistError
from tdist.frontend.locations import Locations, split_location
from tdist.ir.location import SourceLoc, in_the_kernel, to_source_loc
from tdist.platforms.ascend.vendor.run import ToolRun

KEEP_IR = "`--keep-ir DIR` keeps what each stage was given"
_MORE = 3
_WORDS = 600

# Said of every failure, or of what is not one.
_EMPTY = re.compile(
    r"Failed to run BiShengHIR pipeline|Failures have been detected while processing an MLIR pass pipeline"
    r"|External hivmc run fails"
)
_BY_LOCATION = re.compile(r"^loc\((?P<loc>.*)\): (?P<kind>error|warning|remark|note): (?P<text>.*)$")
_BY_FILE = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?P<col>\d+): (?P<kind>error|warning|remark|note): (?P<text>.*)$"
)
_BY_PROGRAM = re.compile(
    r"^\S+: (?P<text>Unknown command line argument .*|for the --\S+ option: .*"
    r"|error while loading shared libraries: .*|\S+: version `\S+' not found .*)$"
)
_BRACKETED = re.compile(r"^\[(?P<kind>NOTE|WARNING|ERROR)\] (?P<text>.*?)\s*$")
_ABOUT_HIVMC = re.compile(r"hivmc|Failed to run BiShengIR pipeline|^Executing:")
_RETRIED = re.compile(r"^Due to .* overflow, (?P<settings>.*); compilation (?:then succeeded|still failed)")
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system")
_SETTING = re.compile(r"set ([\w-]+) to false")


@dataclass(frozen=True)
class Diagnostic:
    """Something that a program said. `kind` is error, warning, remark or note."""

    kind: str
    text: str
    loc: SourceLoc | None = None


@dataclass(frozen=True)
class About:
    """What was compiled, by what.

    Attributes:
        tool: the program, with its version.
        kernel: its name.
        at: `file:line` of its definition; empty where unknown.
        target: the chip.
        source: the text that the program was given; causes of crashes are looked for in it.
        source_name: how the program calls that text in locations.
        in_pass: the vendor's pass that failed, where that is known.
        buffers: lines on what fills the memory that overflowed.
        hivmc: path of the last code generator, if it ran.
        hivmc_run: how it ended when it was asked alone, because it had failed without words.
    """

    tool: str
    kernel: str
    at: str = ""
    target: str = ""
    source: str = ""
    source_name: str = ""
    in_pass: str = ""
    buffers: Sequence[str] = ()
    hivmc: str | None = None
    hivmc_run: ToolRun | None = None


def diagnostics(text: str) -> list[Diagnostic]:
    """What stands in a program's output, in order. A text may have more lines: all up to the next head."""
    found: list[Diagnostic] = []
    for line in text.splitlines():
        head = _head(line)
        if head is not None:
            found.append(head)
        elif found and line.strip() and not line.startswith(("PLEASE submit", "Stack dump")):
            last = found[-1]
            found[-1] = Diagnostic(last.kind, f"{last.text}\n{line}", last.loc)
    return found


def _head(line: str) -> Diagnostic | None:
    if (match := _BY_LOCATION.match(line)) is not None:
        return Diagnostic(match["kind"], match["text"], to_source_loc(Locations([]).get(match["loc"])))
    if (match := _BY_FILE.match(line)) is not None:
        return Diagnostic(match["kind"], match["text"], SourceLoc(match["file"], int(match["line"]), int(match["col"])))
    if (match := _BY_PROGRAM.match(line)) is not None:
        return Diagnostic("error", match["text"])
    if (match := _BRACKETED.match(line)) is not None:
        return Diagnostic(match["kind"].lower(), match["text"])
    return None


def notes(stderr: str) -> tuple[str, ...]:
    """The notes and warnings of a run that went well, without what it says of a missing hivmc."""
    said = [each for each in diagnostics(stderr) if each.kind in ("note", "warning", "remark")]
    return tuple(dict.fromkeys(_placed(each) for each in said if not _ABOUT_HIVMC.search(each.text)))


def retried_without(stderr: str) -> tuple[str, ...]:
    """The options that the compiler turned off by itself when a memory overflowed."""
    for each in diagnostics(stderr):
        if (match := _RETRIED.match(each.text)) is not None:
            return tuple(_SETTING.findall(match["settings"]))
    return ()


@dataclass(frozen=True)
class Refusal:
    """A row: what the program says, what that means (`{name}` for a group of the pattern), and what to try."""

    pattern: re.Pattern[str]
    says: str | Callable[[re.Match[str]], str]
    cure: str
    error: type[TdistError] = KernelError


_MEMORY = {"ub": "UB", "cbuf": "L1", "cc": "L0C"}
_SMALLER = {
    "ub": "smaller tiles, or fewer of them in use at once; tiles of a loop are held twice with multibuffer=True",
    "cbuf": "a smaller block of K: L1 holds the tiles of both operands of tl.dot, twice with multibuffer=True",
    "cc": "a smaller block of M or N: L0C holds the sums of tl.dot, 4 bytes an element",
}


def _overflow(match: re.Match[str]) -> str:
    needed, there = (int(match[group]) // 8 for group in ("needed", "there"))
    return f"does not fit into {_MEMORY[match['space'].lower()]}: it needs {needed} bytes, {there} are there"


def _overflows(space: str) -> Refusal:
    words = rf"(?P<space>{space}) overflow, requires (?P<needed>\d+) bits while (?P<there>\d+) bits available"
    return Refusal(re.compile(words), _overflow, _SMALLER[space])


_OURS = (
    f"this is tdist's fault, or that of a pair of versions it does not know; {KEEP_IR}, and a report of it is welcome"
)
REFUSALS: tuple[Refusal, ...] = (
    *(_overflows(space) for space in _MEMORY),
    Refusal(
        re.compile(
            r"^'(?P<op>[\w.]+)' op failed to verify that operand at idx .*? should have element type (?P<types>.*)"
        ),
        "needs {op} for an element type that this chip's library does not have",
        "convert the values to one of: {types}",
    ),
    Refusal(
        re.compile(r"^'hivm\.hir\.vcast' op currently don't support cast (?P<from>\w+?)_to_(?P<to>\w+)_[a-z]+mode"),
        "converts {from} to {to}, which this chip's library does not do at once",
        "use or go through a signed integer type of the same width: its bits are the same",
    ),
    Refusal(
        re.compile(r"^'(?P<op>[\w.]+)' op operand #\d+ must be (?P<takes>.*), but got '(?P<type>[^']*)'"),
        "uses an operation for an element type that it does not take: {op} of {type}",
        "convert the values: it takes {takes}",
    ),
    Refusal(
        re.compile(r"^failed to legalize operation '(?P<op>[\w.]+)'"),
        "has an operation that the vendor's compiler cannot lower: {op}",
        "write it with other operations of tl, or with another element type",
    ),
    Refusal(
        re.compile(r"^'hivm\.hir\.custom' op Missing (?P<what>core type|pipe) information"),
        "has a library call without {what}",
        _OURS,
    ),
    Refusal(
        re.compile(r"^'hivm\.hir\.custom' op Missing implementation function name"),
        "has a library call without a symbol",
        _OURS,
    ),
    Refusal(
        re.compile(r"^custom op '(?P<op>[\w.]+)' is unknown|^Dialect `(?P<dialect>\w+)' not found"),
        "reached the vendor's compiler with an operation it does not know",
        _OURS,
    ),
    Refusal(
        re.compile(r"Unknown command line argument '(?P<flag>[^']*)'|for the (?P<option>--\S+) option: (?P<why>.*)"),
        "cannot be compiled with the flags that it asks for",
        "install the version that tdist is written for: `pip install 'tdist[ascend]'`",
        EnvironmentUnfit,
    ),
    Refusal(
        re.compile(r"^error while loading shared libraries: (?P<library>[^:]+)|: version `(?P<version>\S+)' not found"),
        "cannot be compiled: a library of the system is missing or too old: {library}{version}",
        "install it with the system's package manager (libstdc++6, zlib1g, libc6), or use a newer system",
        EnvironmentUnfit,
    ),
    Refusal(
        re.compile(r"^Cannot find (?!hivmc)(?P<program>\S+) under \$PATH"),
        "needs the program {program}, which is not on PATH",
        "install the vendor's toolkit that has it, or choose a target that does without",
        EnvironmentUnfit,
    ),
)


@dataclass(frozen=True)
class Crash:
    """A row: which program, in which pass or with which words, given what; why, and what to try.

    `given` is looked for in what the program was given, line by line: the first such line is the suspect.
    """

    tool: str
    cause: str
    cure: str
    in_pass: str = ""
    says: str = ""
    given: str = ""

    def fits(self, run: ToolRun, about: About) -> bool:
        """Whether this is such a crash."""
        return (
            about.tool.startswith(self.tool)
            and self.in_pass in ("", about.in_pass)
            and re.search(self.says, run.stderr) is not None
            and (not self.given or self._line(about) != "")
        )

    def suspect(self, about: About) -> str:
        """`file:line` of the operation that `given` tells; the kernel's where it tells none."""
        place = split_location(self._line(about))[1]
        loc = to_source_loc(Locations(about.source.splitlines()).get(place))
        return str(in_the_kernel(loc)) if loc is not None else about.at

    def _line(self, about: About) -> str:
        return next((line for line in about.source.splitlines() if self.given and re.search(self.given, line)), "")


CRASHES: tuple[Crash, ...] = (
    Crash(
        "bishengir-compile",
        "barrier_all makes this a kernel for cube and vector cores; where it has no tl.dot, this version cannot split "
        "it if a distributed operation with a result (rank, wait, symm_at, …) is for vector cores alone",
        "call barrier_all_vec(), or put the barrier into a kernel that has a tl.dot",
        in_pass="hivm-mark-real-core-type",
        given=r"aclshmem_barrier_all\b",
    ),
    Crash(
        "bishengir-compile",
        "the kernel divides, takes remainders of, compares or reduces unsigned integers in a way that this version has "
        "for signed integers only",
        "use signed integers of the same width: their bits are the same",
        in_pass="convert-hfusion-to-hivm",
        says=r"LLVM ERROR: (?:unsupported (?:linalg|hfusion) binary operation kind|Not implemented|mapCompareMode)",
        given=r"\barith\.(?:divui|remui|maxui|minui)\b|\barith\.cmpi\b.*(?:predicate = [6-9] :|\bu[lg][te],)",
    ),
    Crash(
        "triton-adapter-opt",
        "a loop carries a tensor of pointers that advances by something else than integers the adapter can see",
        "carry integer offsets through the loop, and compute the pointers in its body",
        says="encountered AddPtrOp produced by unsupported operation",
    ),
    Crash(
        "triton-adapter-opt",
        "a loop carries a block pointer whose steps the adapter cannot see, and loads it with boundary_check",
        "make the block pointer in the loop's body, from integer offsets",
        says=r"getFullShapeOp\(\) only support",
    ),
    Crash(
        "triton-adapter-opt",
        "an `if` or a choice between values merges two scalar pointers",
        "choose an integer offset instead, and add it to the kernel's argument where it is used",
        given=r"(?:\bscf\.if\b.*-> |^\s*\}\) : \(i1\) -> |\barith\.select\b).*(?<!x)!tt\.ptr<(?!tensor)",
    ),
)
_NO_CAUSE = f"cut the kernel down until it compiles, to see which construct it is; {KEEP_IR}"


def explain(run: ToolRun, about: About) -> TdistError:
    """The error for a program that did not do its work: the kernel's fault (KernelError), else EnvironmentUnfit."""
    if run.timed_out:
        return _given_up(about, f"did not finish {_doing(about)} within {run.seconds:.0f} s", "TDIST_VENDOR_SECONDS")
    if (full := _DISK_FULL.search(run.stderr)) is not None:
        return EnvironmentUnfit(
            f"{about.tool} could not write its files {_doing(about)}: {full[0]}; free some space, or set TMPDIR to a "
            "directory that has it"
        )
    if run.killed:
        return _killed(run, about)
    if run.out_of_memory:
        return _given_up(about, f"ran out of memory {_doing(about)}", "TDIST_VENDOR_MEMORY_MIB")
    if run.crashed:
        return _crashed(run, about)
    errors = _errors(run.stderr)
    if not errors and about.hivmc is not None and "External hivmc run fails" in run.stderr:
        return _hivmc_failed(run, about)
    return _refused(run, errors, about)


def says_why(stderr: str) -> bool:
    """Whether a program gives a reason for its failure."""
    return bool(_errors(stderr)) or "External hivmc run fails" in stderr


def _errors(stderr: str) -> list[Diagnostic]:
    errors = [each for each in diagnostics(stderr) if each.kind == "error"]
    return [each for each in errors if not _EMPTY.search(each.text) and not _ABOUT_HIVMC.search(each.text)]


def _doing(about: About) -> str:
    return f"on kernel `{about.kernel}`" + (f" in pass {about.in_pass}" if about.in_pass else "")


def _at(about: About, error: Diagnostic | None = None) -> str:
    """`file:line: `: of the error where it is in the kernel's source, else of the kernel."""
    loc = error.loc if error is not None else None
    if loc is None or loc.file.endswith(about.source_name or "\0"):
        return f"{about.at}: " if about.at else ""
    return f"{in_the_kernel(loc)}: "


def _given_up(about: About, what: str, variable: str) -> KernelError:
    return KernelError(
        f"{_at(about)}{about.tool} {what}\n"
        f"  try: a smaller kernel; where the machine is merely slow or small, {variable} sets the limit"
    )


def _killed(run: ToolRun, about: About) -> EnvironmentUnfit:
    """Our own limit of memory makes allocations fail, it kills nobody: this came from outside."""
    return EnvironmentUnfit(
        f"{_at(about)}{about.tool} was killed from outside {_doing(about)} after {run.seconds:.0f} s: {run.ending}, by "
        "the system as it ran out of memory, or by somebody\n"
        "  try: run it again; where the system's log tells of its out-of-memory killer, free memory, or give the "
        "container more"
    )


def _crashed(run: ToolRun, about: About) -> KernelError:
    known = next((row for row in CRASHES if row.fits(run, about)), None)
    where = f" in pass {about.in_pass}" if about.in_pass else ""
    at = known.suspect(about) if known else about.at
    lines = [f"{at}{': ' if at else ''}{about.tool} crashes on kernel `{about.kernel}`{where}: {run.ending}"]
    words = _last_words(run.stderr)
    lines += [f"  its words: {words}"] if words else []
    lines += [f"  known cause: {known.cause}", f"  try: {known.cure}"] if known else [f"  try: {_NO_CAUSE}"]
    return KernelError("\n".join(lines))


def _last_words(stderr: str) -> str:
    """What a program said before the dump of its stack, if it is about the crash."""
    before = re.split(r"PLEASE submit|Stack dump", stderr)[0]
    said = [line for line in before.splitlines() if line.strip() and not _ABOUT_HIVMC.search(line)]
    return " / ".join(said[-2:])[:_WORDS]


def words_of_hivmc(stderr: str) -> str | None:
    """What the code generator said, empty if nothing; None if it is not what failed."""
    if "External hivmc run fails" not in stderr or _errors(stderr):
        return None
    return " / ".join(line for line in stderr.splitlines() if line.strip() and _head(line) is None)[:_WORDS]


def _hivmc_failed(run: ToolRun, about: About) -> TdistError:
    alone = about.hivmc_run
    said = words_of_hivmc(run.stderr) or (alone is not None and _last_words(alone.stderr)) or "none"
    how = "refuses it" if alone is None else f"fails on it: {alone.ending}"
    if alone is not None and alone.signal is not None:
        how = f"{'was killed from outside' if alone.killed else 'crashes on it'}: {alone.ending}"
    kind = EnvironmentUnfit if alone is not None and alone.killed else KernelError
    return kind(
        f"{_at(about)}kernel `{about.kernel}` passes {about.tool}, and hivmc ({about.hivmc}) {how}\n"
        f"  its words: {said}\n"
        "  try: for a symbol of ACLSHMEM that is missing, an AscendNPU-IR that was built with its device library; "
        f"or take hivmc off PATH, and the final module, which was made, is checked as the result ({KEEP_IR})"
    )


def no_program(hivmc: str, about: About, why: object) -> EnvironmentUnfit:
    """The error for a hivmc that cannot be run at all."""
    return EnvironmentUnfit(
        f"{_at(about)}kernel `{about.kernel}` passes {about.tool}, and hivmc ({hivmc}) is no program that runs here: "
        f"{why}\n"
        "  try: install the CANN toolkit that it is from; or take it off PATH, and the final module, which was made, "
        f"is checked as the result ({KEEP_IR})"
    )


def _refused(run: ToolRun, errors: Sequence[Diagnostic], about: About) -> TdistError:
    if not errors:
        where = f" in pass {about.in_pass}" if about.in_pass else ""
        words = _last_words(run.stderr)
        said = f"  its words: {words}\n" if words else ""
        return KernelError(
            f"{_at(about)}{about.tool} refuses kernel `{about.kernel}`{where} without a reason: {run.ending}\n"
            f"{said}  try: {_NO_CAUSE}"
        )
    row, error, match = _best(errors)
    if row is None or match is None:
        return KernelError("\n".join([_headline(about, error, "is refused"), *_words(errors, error, about)]))
    groups = {name: value or "" for name, value in match.groupdict().items()}
    says = row.says(match) if callable(row.says) else row.says.format(**groups)
    lines = [_headline(about, error, says), *_words(errors, error, about), f"  try: {row.cure.format(**groups)}"]
    return row.error("\n".join(lines))


def _best(errors: Sequence[Diagnostic]) -> tuple[Refusal | None, Diagnostic, re.Match[str] | None]:
    """The first error that a row knows, else the first."""
    for error in errors:
        for row in REFUSALS:
            if (match := row.pattern.search(error.text)) is not None:
                return row, error, match
    return None, errors[0], None


def _headline(about: About, error: Diagnostic, says: str) -> str:
    target = f" ({about.target})" if about.target else ""
    return f"{_at(about, error)}kernel `{about.kernel}`{target} {says}"


def _words(errors: Sequence[Diagnostic], main: Diagnostic, about: About) -> list[str]:
    lines = [f"  {line}" for line in about.buffers]
    where = f", pass {about.in_pass}" if about.in_pass else ""
    lines.append(f"  {about.tool}{where}: {_short(main.text)}")
    others = dict.fromkeys(_placed(each) for each in errors if each != main)
    lines += [f"  and: {other}" for other in list(others)[:_MORE]]
    return lines + ([f"  and {len(others) - _MORE} more"] if len(others) > _MORE else [])


def _placed(said: Diagnostic) -> str:
    return f"{in_the_kernel(said.loc)}: {_short(said.text)}" if said.loc else _short(said.text)


def _short(text: str) -> str:
    first, *more = text.splitlines() or [""]
    return first[:_WORDS] + (" …" if more or len(first) > _WORDS else "")


def of_the_pass(reproducer: str) -> str:
    """The pass that failed, from a local crash reproducer of MLIR; empty if it does not say."""
    found = re.search(r'pipeline: "(.*)"', reproducer)
    if found is None:
        return ""
    bare = re.sub(r"\{[^{}]*\}", "", found[1])
    return ", ".join(re.findall(r"[\w-]+(?=[,)])", bare))
