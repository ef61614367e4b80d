"""Linalg → the vendor's final module: functions split by core, memory planned, synchronisation in place.

Everything up to that module is the vendor's own compiler. The code generator behind it, `hivmc`, comes with CANN only:
where it is on PATH it runs too, else the final module is the result and `Compiled.form` says so.

Ordering:
    The final module is what the checks of order read; whatever the vendor moved, merged or dropped has been by then.

Source:
    `--save-temps` of bishengir-compile leaves `module.hivm.opt.mlir` also when the code generator is missing; a run
    that does not leave it has failed.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tdist.errors import EnvironmentUnfit, KernelError
from tdist.frontend.locations import Locations
from tdist.ir.location import in_the_kernel, to_source_loc
from tdist.platforms.ascend.lowering.memory import (
    MemoryUse,
    from_json,
    read_memory_display,
    sum_addresses,
    to_json,
)
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import ONE_THREAD, CompileOptions, bishengir_flags
from tdist.platforms.ascend.targets import Target, find_target
from tdist.platforms.ascend.vendor import cache, find, messages
from tdist.platforms.ascend.vendor.run import ToolRun

STAGE = "bishengir"
_SOURCE = "linalg.mlir"
_OBJECT = "kernel.o"
_FINAL = "module.hivm.opt.mlir"
_NO_BACK_END = "External hivmc run fails, returning module before running external compiler"
_TO_HIVMC = re.compile(rf"^\[ERROR\] Executing: (.*{re.escape(_FINAL)}.*)$", re.MULTILINE)
_REPRODUCER = "reproducer.mlir"
_LARGEST = 5
_ALWAYS = ("--enable-debug-info=true", "--enable-memory-display")
_GENERIC = ("--mlir-print-op-generic", "--mlir-print-debuginfo")
_KERNEL = re.compile(
    r'func\.func (?:public )?@"?([\w.$-]+)"?\('
    r'|"func\.func"\(\) <\{(?![^\n]*sym_visibility = "private")[^\n]*?sym_name = "([^"]+)"'
)
_DEFINED_AT = re.compile(r'\bloc\(("(?:[^"\\]|\\.)+":\d+:0)\)')  # only a definition begins in column 0

# What a kept result looks like.
_LOC: dict[str, Any] = {"file": str, "line": int, "col": int}
_LOC["callers"] = [_LOC]
_BUFFER = {
    "offsets_bytes": [int],
    "extent_bytes": int,
    "life": (None, [int, int]),
    "loc": (None, _LOC),
    "shape": str,
}
_MEMORY = {"memory": str, "needed_bytes": int, "capacity_bytes": int, "buffers": [_BUFFER]}
_FUNCTION = {"name": str, "core": str, "memories": [_MEMORY]}
_REFUSED = {"refused": str}
_MADE = {
    "final_text": str,
    "notes": [str],
    "retried_without": [str],
    "memory": {"functions": [_FUNCTION], "planned": bool},
    "seconds": float,
    "stderr": str,
}


class LinalgText(Protocol):
    """What `to_linalg` makes, as far as this stage goes."""

    @property
    def text(self) -> str: ...


@dataclass(frozen=True)
class Hivmc:
    """The code generator that ran."""

    path: str
    digest: str

    def __str__(self) -> str:
        return f"{self.path} (SHA-256 {self.digest})"


@dataclass(frozen=True)
class Compiled:
    """A kernel that went through.

    Attributes:
        final_text: the final module in generic form, with locations.
        form: "object" where hivmc made object code, "final module" where there is no hivmc and nothing was linked.
        notes: what the vendor's compiler noted or warned of.
        retried_without: options that it turned off by itself because a memory overflowed with them.
        seconds: of the vendor's programs, also where the result comes from the cache.
    """

    final_text: str
    form: str
    notes: tuple[str, ...]
    retried_without: tuple[str, ...]
    memory: MemoryUse
    hivmc: Hivmc | None
    seconds: float
    stderr: str
    cached: bool = False


def compile_linalg(linalg: LinalgText | str, target: Target | str, options: CompileOptions, steps: Steps) -> Compiled:
    """Compile a Linalg module as far as this machine can.

    Args:
        linalg: in any form that MLIR reads; locations in it are the kernel's.
        target: takes the place of one that the module names.
        options: the kernel's launch options.
        steps: keeps the final module as stage `final`, or on failure the module before the pass that failed.

    Raises:
        KernelError: the vendor's compiler refuses the kernel, crashes on it, or does not come to an end.
        EnvironmentUnfit: a program is missing or does not fit.
        UsageError: an unknown target.
    """
    text = linalg if isinstance(linalg, str) else linalg.text
    chip = target if isinstance(target, Target) else find_target(target)
    compiler, back_end = find.bishengir_compile(), find.hivmc()
    job = _Job(text, chip, options, steps, compiler, back_end)
    kept = cache.load(job.key)
    cached = cache.fits(kept, (_REFUSED, _MADE))  # one of another shape is a miss
    made: dict[str, Any] = kept if cached else job.outcome()  # pyright: ignore[reportAssignmentType]
    if "refused" in made:
        raise KernelError(made["refused"])
    compiled = _compiled(made, back_end, cached=cached)
    steps.keep("final", compiled.final_text)
    return compiled


@dataclass
class _Attempt:
    """One run of the compiler, and what it left."""

    run: ToolRun
    folder: Path
    final_text: str | None

    def reproducer(self) -> str:
        """The module before the pass that failed, if that was asked for."""
        path = self.folder / _REPRODUCER
        return path.read_text(errors="replace") if path.is_file() else ""


@dataclass
class _Job:
    """One module, target and set of options."""

    text: str
    target: Target
    options: CompileOptions
    steps: Steps
    compiler: find.Tool
    back_end: find.Tool | None

    @property
    def flags(self) -> tuple[str, ...]:
        # hivmc is given the module in the form in which the compiler prints it by itself
        form = _GENERIC if self.back_end is None else ()
        return (*bishengir_flags(self.options, self.target), *_ALWAYS, *form)

    @property
    def key(self) -> str:
        back_end = "" if self.back_end is None else f"{self.back_end.path} {self.back_end.digest}"
        return cache.key("bishengir", self.text, self.compiler.digest, back_end, *self.flags)

    @property
    def kernel(self) -> str:
        found = _KERNEL.search(self.text)
        return (found[1] or found[2]) if found else "?"

    def outcome(self) -> dict[str, Any]:
        """Run the compiler; a refusal that would come again is kept like a result."""
        attempt = self._attempt(STAGE)
        by_chance: tuple[str, ...] = ()
        if not self._went_through(attempt):
            if not _worth_repeating(attempt.run):
                return self._refuse(attempt, "")
            first, attempt = attempt, self._again()
            if not self._went_through(attempt):
                return self._refuse(first, attempt.reproducer())
            by_chance = (f"{self.compiler} ended with {first.run.ending}, and went through when it ran again",)
        made = self._result(attempt, by_chance)
        if not by_chance:
            cache.save(self.key, made)
        return made

    def _attempt(self, stage: str, *more: str) -> _Attempt:
        source = self.steps.write(_SOURCE, self.text).resolve()
        folder = self.steps.folder(stage).resolve()
        shutil.rmtree(folder)
        saved = folder / "saved"
        argv = [self.compiler.path, source, *self.flags, *more, f"--save-temps={saved}", "-o", folder / _OBJECT]
        self.steps.folder(stage)
        run = self.steps.run(stage, argv)
        stderr = run.stderr.replace(str(source), _SOURCE).replace(str(folder), "")
        path = saved / _FINAL
        final = path.read_text(errors="replace").replace(str(source), _SOURCE) if path.is_file() else None
        return _Attempt(dataclasses.replace(run, stderr=stderr), folder, final or None)

    def _again(self) -> _Attempt:
        """Run it once more, so that it says in which pass it fails."""
        flags = (f"--mlir-pass-pipeline-crash-reproducer={_REPRODUCER}", "--mlir-pass-pipeline-local-reproducer")
        return self._attempt(f"{STAGE}-again", *flags)

    def _went_through(self, attempt: _Attempt) -> bool:
        if attempt.final_text is None:
            return False
        run = attempt.run
        without = self.back_end is None and run.returncode == 1 and _NO_BACK_END in run.stderr
        return run.ok or without

    def _refuse(self, attempt: _Attempt, reproducer: str) -> dict[str, Any]:
        """Raise, or the refusal for the cache."""
        run = attempt.run
        if run.crashed or not messages.says_why(run.stderr):
            find.check_whole(self.compiler)
        if reproducer:
            self.steps.keep("before-the-failing-pass", reproducer)
        about = messages.About(
            tool=str(self.compiler),
            kernel=self.kernel,
            at=self._defined_at(),
            target=self.target.name,
            source=self.text,
            source_name=_SOURCE,
            in_pass=messages.of_the_pass(reproducer),
            buffers=self._overflow(attempt),
            hivmc=None if self.back_end is None else str(self.back_end.path),
        )
        about = self._asked_alone(attempt, about)
        error = messages.explain(run, about)
        if not isinstance(error, KernelError) or run.signal is not None or run.timed_out or run.out_of_memory:
            raise error
        made = {"refused": str(error)}
        if self.back_end is None:  # what a toolkit refuses may be due to its environment, which no key holds
            cache.save(self.key, made)
        return made

    def _asked_alone(self, attempt: _Attempt, about: messages.About) -> messages.About:
        """With how hivmc ends by itself, where it failed without a word: the compiler does not pass that on.

        Raises:
            EnvironmentUnfit: hivmc is no program.
        """
        if self.back_end is None or attempt.final_text is None or messages.words_of_hivmc(attempt.run.stderr) != "":
            return about
        self.steps.keep("final", attempt.final_text)
        asked = _TO_HIVMC.findall(attempt.run.stderr)
        flags = [word for word in (asked[-1].split() if asked else ()) if word.startswith("--")]
        module = attempt.folder / "saved" / _FINAL
        try:
            run = self.steps.run(f"{STAGE}-hivmc", [self.back_end.path, module, *flags, "-o", attempt.folder / _OBJECT])
        except EnvironmentUnfit as error:
            raise messages.no_program(str(self.back_end.path), about, error) from error
        return dataclasses.replace(about, hivmc_run=run)

    def _defined_at(self) -> str:
        found = _DEFINED_AT.search(self.text)
        loc = to_source_loc(Locations([]).get(found[1])) if found else None
        return str(loc or "")

    def _overflow(self, attempt: _Attempt) -> tuple[str, ...]:
        """The largest buffers of the memory that overflowed, with the kernel's lines."""
        use = read_memory_display(attempt.folder, self.target)
        found = use.overflow() if use is not None else None
        if found is None:
            return ()
        function, memory = found
        lines = [f"largest buffers in {memory.memory} of {function.name} ({function.core}):"]
        lines += [f"  {in_the_kernel(b.loc) if b.loc else 'unknown place'}: {b}" for b in memory.largest(_LARGEST)]
        tried = messages.retried_without(attempt.run.stderr)
        return (*lines, *((f"also tried without {', '.join(tried)}",) if tried else ()))

    def _result(self, attempt: _Attempt, by_chance: tuple[str, ...]) -> dict[str, Any]:
        assert attempt.final_text is not None  # it went through
        final = attempt.final_text
        if self.back_end is not None:
            self._check_object(attempt)
            final = self._generic(final)
        memory = read_memory_display(attempt.folder, self.target) or sum_addresses(final, self.target)
        run = attempt.run
        return {
            "final_text": final,
            "notes": [*by_chance, *messages.notes(run.stderr)],
            "retried_without": list(messages.retried_without(run.stderr)),
            "memory": to_json(memory),
            "seconds": run.seconds,
            "stderr": run.stderr,
        }

    def _check_object(self, attempt: _Attempt) -> None:
        made = [attempt.folder / name for name in (_OBJECT, "kernel_reloc.o")]
        if not any(path.is_file() and path.stat().st_size for path in made):
            assert self.back_end is not None
            raise EnvironmentUnfit(
                f"{self.back_end.path} ended well but made no object code: it does not fit {self.compiler}; "
                "take it off PATH, or install the CANN toolkit that goes with it"
            )

    def _generic(self, final: str) -> str:
        """A final module in generic form: the vendor's printer, in a process of its own."""
        opt = find.bishengir_opt()
        path = self.steps.write("final.mlir", final)
        printed = self.steps.directory / "final-generic.mlir"
        printed.unlink(missing_ok=True)
        run = self.steps.run(f"{STAGE}-print", [opt.path, path, ONE_THREAD, *_GENERIC, "-o", printed])
        if not run.ok or not printed.is_file():
            raise EnvironmentUnfit(
                f"{opt} cannot read what {self.compiler} has written ({run.ending}); install both from one package"
            )
        return printed.read_text(errors="replace").replace(str(path.resolve()), _SOURCE)


def _worth_repeating(run: ToolRun) -> bool:
    """Whether to run once more: it may have crashed by chance, or can be asked in which pass it fails."""
    if run.timed_out or run.out_of_memory:
        return False
    return run.crashed or not messages.says_why(run.stderr)


def _compiled(made: dict[str, Any], back_end: find.Tool | None, *, cached: bool) -> Compiled:
    return Compiled(
        final_text=made["final_text"],
        form="final module" if back_end is None else "object",
        notes=tuple(made["notes"]),
        retried_without=tuple(made["retried_without"]),
        memory=from_json(made["memory"]),
        hivmc=None if back_end is None else Hivmc(str(back_end.path), back_end.digest),
        seconds=made["seconds"],
        stderr=made["stderr"],
        cached=cached,
    )
