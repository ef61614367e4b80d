"""Each kind of mutant changes the kernel where and how it says: by what the mutated code does, and by its IR."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which prints the kernels")

import mutation_kernels as kernels
from codegen_harness import FakeAgent, _arguments

from tdist.errors import UsageError
from tdist.frontend.kernel_ir import KernelIR
from tdist.frontend.reader import read_ttir
from tdist.frontend.triton_ascend import compile_source
from tdist.mutations import BEFORE, KINDS, Mutant, has_mutant, mutants_of, mutate, parse_mutation
from tdist.passes import DEFAULT_PIPELINE, run_pipeline
from tdist.platforms.sim.compiler import SimOptions, compile_kernel, content_key
from tdist.platforms.sim.engine_port import mutant_to_run
from tdist.verify.mutation.equivalence import code_of, same_code

B = 8
SIGNATURES = {
    "exchange": {"x_ptr": "*fp32", "buffer_ptr": "*fp32", "out_ptr": "*fp32", "ready_ptr": "*i32"},
    "counting": {"x_ptr": "*fp32", "count_ptr": "*i32", "ready_ptr": "*i32", "n": "i32"},
    "polling": {"x_ptr": "*i32", "flag_ptr": "*i32", "n": "i32"},
    "many": {"x_ptr": "*i32", "ready_ptr": "*i32", "n": "i32"},
}
SIGNATURES["exchange"] |= {"epoch": "i32", "slots": "i32", "n": "i32"}


@pytest.fixture(scope="module")
def irs() -> dict[str, KernelIR]:
    return {
        name: compile_source(
            getattr(kernels, name), signature, {"B": B} if "B" in getattr(kernels, name).arg_names else {}
        )
        for name, signature in SIGNATURES.items()
    }


@dataclass
class Agent(FakeAgent):
    """Two ranks; keeps addresses and the order of stores and signals."""

    nranks: int = 2
    order: list[str] = field(default_factory=list)

    def wr(self, *record):
        self.order.append("store")
        super().wr(*record)

    def rd(self, *record):
        self.order.append("load")
        super().rd(*record)

    def notify(self, addr, al, value, pe, op, width, site):
        self.order.append("notify")
        self.events.append(("notify at", addr - al.lo))
        super().notify(addr, al, value, pe, op, width, site)

    def wait(self, addr, al, n, value, width, semantic, site):
        self.events.append(("wait at", addr - al.lo))
        return (yield from super().wait(addr, al, n, value, width, semantic, site))


@dataclass(frozen=True)
class Ran:
    """What a kernel did: events of the agent, and what tensors held at the end."""

    events: list[tuple]
    order: list[str]
    tensors: tuple[torch.Tensor, ...]

    def named(self, name: str) -> list[tuple]:
        return [event for event in self.events if event[0] == name]


def run(ir: KernelIR, mutant: str, tensors: list[torch.Tensor], *numbers: int, programs: int = 1) -> Ran:
    """Run a kernel, or a mutant of it, on rank 0 of 2."""
    kernel = compile_kernel(ir, SimOptions(mutation=mutant))
    agent = Agent(detect=True)
    values = _arguments([*tensors, *numbers])
    for program in range(programs):
        for _ in kernel.entry(0)(agent, program, 0, 0, programs, 1, 1, *values):
            pass
    return Ran(agent.events, agent.order, tuple(tensors))


def exchange(irs: dict[str, KernelIR], mutant: str = "", programs: int = 1) -> Ran:
    x = torch.arange(1, 2 * B + 1, dtype=torch.float32)
    signals = torch.zeros(64, dtype=torch.int32)
    tensors = [x, torch.full((2 * B,), -1.0), torch.full((2 * B,), -2.0), signals]
    return run(irs["exchange"], mutant, tensors, 6, 2, B - 3, programs=programs)


def counting(irs: dict[str, KernelIR], mutant: str = "", programs: int = 1) -> Ran:
    tensors = [torch.zeros(2 * B), torch.zeros(16, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)]
    return run(irs["counting"], mutant, tensors, B - 3, programs=programs)


def line_of(kernel: str, text: str, number: int = 0) -> int:
    """The line of the file in which `text` stands in a kernel's source."""
    source, first = inspect.getsourcelines(getattr(kernels, kernel).fn)
    return [first + at for at, line in enumerate(source) if text in line][number]


def only(irs: dict[str, KernelIR], kernel: str, kind: str, line: int | None = None) -> list[Mutant]:
    found = [mutant for mutant in mutants_of(irs[kernel], [kind]) if line in (None, mutant.line)]
    assert found, f"{kernel} has no {kind}"
    return found


# ---- what each kind does --------------------------------------------------------------------------------------------


def test_the_kernel_itself(irs):
    ran = exchange(irs)
    assert ran.named("notify") == [("notify", 7, 0, 1, 4), ("notify", 7, 1, 1, 4)]
    assert ran.named("wait") == [("wait", 2, 7, 4, "acquire")]
    assert ran.tensors[2].tolist() == [1, 2, 3, 4, 5] + [-2] * (2 * B - 5)


def test_an_omitted_operation_is_gone(irs):
    for kind, event in (("drop-notify", "notify"), ("drop-fence", "fence"), ("drop-symm-at", "symm_at")):
        (mutant,) = only(irs, "exchange", kind)
        assert exchange(irs).named(event)
        assert exchange(irs, mutant.name).named(event) == []


@pytest.mark.parametrize("kind", ["drop-wait", "drop-consume-token"])
def test_a_token_that_nobody_consumes_takes_its_wait_along(irs, kind):
    (mutant,) = only(irs, "exchange", kind)
    assert exchange(irs, mutant.name).named("wait") == []


def test_a_polling_loop_is_a_wait(irs):
    lines = [line_of("polling", text) for text in ("volatile=True", "tl.atomic_add")]
    mutants = only(irs, "polling", "drop-wait")
    assert [(mutant.line, mutant.what) for mutant in mutants] == [(n, "the polling loop is missing") for n in lines]
    for mutant, left in zip(mutants, ("atomic", "volatile"), strict=True):
        tensors = [torch.zeros(16, dtype=torch.int32), torch.ones(16, dtype=torch.int32)]
        looked = {event[0] for event in run(irs["polling"], mutant.name, tensors, 3).events}
        assert looked & {"atomic", "volatile"} == {left}


def test_an_atomic_that_nobody_uses_the_result_of(irs):
    (mutant,) = only(irs, "counting", "drop-atomic")
    assert counting(irs).named("atomic") and not counting(irs, mutant.name).named("atomic")
    assert mutants_of(irs["polling"], ["drop-atomic"]) == ()


def test_barriers(irs):
    (inner,) = only(irs, "exchange", "drop-barrier")
    (last,) = only(irs, "exchange", "no-exit-barrier")
    lines = [line_of("exchange", "barrier_all", number) for number in (0, 1)]
    assert [inner.line, last.line] == lines
    for mutant in (inner, last):
        assert len(exchange(irs, mutant.name).named("barrier")) == 1
    gated = only(irs, "exchange", "gated-barrier")
    assert [mutant.line for mutant in gated] == lines
    assert len(exchange(irs, programs=3).named("barrier")) == 6
    assert len(exchange(irs, gated[0].name, programs=3).named("barrier")) == 4


def test_a_last_barrier_in_a_loop_is_missing_in_the_last_iteration_only(irs):
    (mutant,) = only(irs, "counting", "no-exit-barrier")
    assert len(counting(irs).named("barrier")) == B - 3
    assert len(counting(irs, mutant.name).named("barrier")) == B - 4
    (dropped,) = only(irs, "counting", "drop-barrier")
    assert counting(irs, dropped.name).named("barrier") == []


def test_a_signal_comes_before_what_it_announces(irs):
    step = ["load", "store", "notify"]
    assert exchange(irs).order[:3] == step
    for kind, order in (
        ("swap-store-notify", ["load", "notify", "store"]),
        ("swap-load-notify", ["notify", *step[:2]]),
    ):
        (mutant,) = only(irs, "exchange", kind)
        assert exchange(irs, mutant.name).order[:3] == order


def test_a_gated_signal_is_moved_with_its_condition(irs):
    (mutant,) = only(irs, "counting", "swap-store-notify")
    assert counting(irs, mutant.name, programs=2).order == ["load", "notify", "store", "load", "store"]


def test_another_rank(irs):
    by_line = {mutant.line: mutant for mutant in only(irs, "exchange", "wrong-peer")}
    notify = exchange(irs, by_line[line_of("exchange", "dl.notify")].name)
    assert [event[2] for event in notify.named("notify")] == [1, 0]
    (stored,) = set(by_line) - {line_of("exchange", "dl.notify")}
    assert [event[1] for event in exchange(irs, by_line[stored].name).named("symm_at")] == [1, 0]


def test_another_slot(irs):
    by_line = {mutant.line: mutant.name for mutant in only(irs, "exchange", "wrong-slot")}
    wait = exchange(irs, by_line[line_of("exchange", "dl.wait")])
    assert wait.named("wait at") == [("wait at", 64)] and wait.named("notify at") == [("notify at", 0)] * 2
    notify = exchange(irs, by_line[line_of("exchange", "dl.notify")])
    assert notify.named("wait at") == [("wait at", 0)] and notify.named("notify at") == [("notify at", 64)] * 2


def test_another_value(irs):
    by_line = {mutant.line: mutant.name for mutant in only(irs, "exchange", "wrong-value")}
    wait = exchange(irs, by_line[line_of("exchange", "dl.wait")])
    assert wait.named("wait")[0][2] == 8 and wait.named("notify")[0][1] == 7
    notify = exchange(irs, by_line[line_of("exchange", "dl.notify")])
    assert notify.named("wait")[0][2] == 7 and notify.named("notify")[0][1] == 8
    (stale,) = only(irs, "exchange", "stale-value")
    assert exchange(irs, stale.name).named("wait")[0][2] == 6
    (short,) = only(irs, "exchange", "short-wait")
    assert exchange(irs, short.name).named("wait")[0][1] == 1


def test_the_epoch_of_the_first_launch_on_both_sides(irs):
    (mutant,) = only(irs, "exchange", "constant-epoch")
    ran = exchange(irs, mutant.name)
    assert ran.named("wait")[0][2] == 2 and [event[1] for event in ran.named("notify")] == [2, 2]


def test_strength(irs):
    (relaxed,) = only(irs, "exchange", "relaxed-wait")
    assert exchange(irs, relaxed.name).named("wait")[0][4] == "relaxed"
    (added,) = only(irs, "exchange", "add-instead-of-set")
    assert {event[3] for event in exchange(irs, added.name).named("notify")} == {2}
    (replaced,) = only(irs, "counting", "set-instead-of-add")
    assert {event[3] for event in counting(irs, replaced.name).named("notify")} == {1}
    (weak,) = only(irs, "counting", "relaxed-atomic")
    assert counting(irs).named("atomic")[0][2:4] == ("release", "sys")
    assert counting(irs, weak.name).named("atomic")[0][2] == "relaxed"
    (narrow,) = only(irs, "counting", "narrow-atomic")
    assert counting(irs, narrow.name).named("atomic")[0][3] == "gpu"


@pytest.mark.parametrize(("kind", "stored"), [("shrink-mask", 4), ("widen-mask", 6), ("drop-mask", 8)])
def test_the_mask_of_one_store(irs, kind, stored):
    (mutant,) = only(irs, "exchange", kind, line_of("exchange", "tl.store(out_ptr"))
    ran = exchange(irs, mutant.name)
    assert int((ran.tensors[2] != -2).sum()) == stored
    assert int((ran.tensors[1] != -1).sum()) == B - 3  # the helper's store has its own


def test_the_mask_of_one_load(irs):
    line = line_of("exchange", "tl.load(arrived_ptr")
    (less,) = only(irs, "exchange", "shrink-mask", line)
    assert exchange(irs, less.name).tensors[2][:5].tolist() == [1, 2, 3, 4, 0]
    (more,) = only(irs, "exchange", "widen-mask", line)
    assert exchange(irs, more.name).tensors[2].equal(exchange(irs).tensors[2])  # the store's mask stays


@pytest.mark.parametrize(("kind", "added"), [("shrink-mask", 4), ("widen-mask", 6), ("drop-mask", 8)])
def test_the_bounds_of_a_block_pointer(irs, kind, added):
    text = "tl.store(block" if kind == "drop-mask" else "make_block_ptr"
    (mutant,) = only(irs, "counting", kind, line_of("counting", text))
    assert int((counting(irs, mutant.name).tensors[0] != 0).sum()) == added


TWO_ACCESSES = """
import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, m, n, B: tl.constexpr):
    rows = tl.arange(0, B)[:, None]
    columns = tl.arange(0, B)[None, :]
    mask = (rows < m) & (n > columns)
    tl.store(y_ptr + rows * B + columns, tl.load(x_ptr + rows * B + columns, mask=mask, other=0.0), mask=mask)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    path = tmp_path_factory.mktemp("copy") / "two_accesses.py"
    path.write_text(TWO_ACCESSES)
    namespace: dict = {"__name__": "two_accesses", "__file__": str(path)}
    exec(compile(TWO_ACCESSES, str(path), "exec"), namespace)
    import linecache

    linecache.checkcache(str(path))
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "m": "i32", "n": "i32"}
    return compile_source(namespace["copy"], signature, {"B": B})


def lanes(copy: KernelIR, mutant: str = "") -> tuple[int, int]:
    y = torch.zeros(B, B)
    run(copy, mutant, [torch.ones(B, B), y], 3, 5)
    return int(y.any(1).sum()), int(y.any(0).sum())


def test_each_dimension_of_a_mask_by_itself(copy):
    assert lanes(copy) == (3, 5)
    stores = [mutant for mutant in mutants_of(copy, ["shrink-mask"]) if "store" in mutant.what]
    assert [lanes(copy, mutant.name) for mutant in stores] == [(2, 5), (3, 4)]
    assert [mutant.name[-2:] for mutant in stores] == ["#3", "#4"] or len(mutants_of(copy, ["shrink-mask"])) == 4


@pytest.mark.parametrize(("kind", "found"), [("shrink-bound", {(2, 5), (3, 4)}), ("widen-bound", {(4, 5), (3, 6)})])
def test_a_bound_that_load_and_store_share(copy, kind, found):
    assert {lanes(copy, mutant.name) for mutant in mutants_of(copy, [kind])} == found


# ---- where the places are -------------------------------------------------------------------------------------------


def test_every_place_of_helpers_loops_and_branches(irs):
    lines = Counter(mutant.line for mutant in mutants_of(irs["many"], ["drop-notify"]))
    helper, branch, unrolled = (line_of(*where) for where in (("_signal", "notify"), ("many", "32"), ("many", "16")))
    assert lines == {helper: 2, branch: 1, unrolled: 3}
    assert [mutant.line for mutant in mutants_of(irs["many"], ["drop-wait"])] == [line_of("many", "dl.wait")]


def test_a_helpers_place_says_who_calls_it(irs):
    line = line_of("_signal", "notify")
    found = [mutant for mutant in mutants_of(irs["many"], ["drop-notify"]) if mutant.line == line]
    calls = [line_of("many", "_signal(", number) for number in (0, 1)]
    assert [mutant.what for mutant in found] == [f"the notify is missing, called from line {call}" for call in calls]
    assert [mutant.name for mutant in found] == [f"drop-notify@{line}:{found[0].col}#{n}" for n in (1, 2)]


def test_one_call_of_a_helper_is_one_place(irs):
    first, second = [m for m in mutants_of(irs["many"], ["drop-notify"]) if m.line == line_of("_signal", "notify")]
    for mutant, left in ((first, 1), (second, 0)):
        tensors = [torch.zeros(16, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)]
        ran = run(irs["many"], mutant.name, tensors, 5)
        assert [event[1] for event in ran.named("notify at") if event[1] in (0, 64)].count(64 if left else 0) == 2
        assert len(ran.named("notify")) == 4


def test_every_kind_has_a_place_here(irs, copy):
    found = {mutant.kind for ir in [*irs.values(), copy] for mutant in mutants_of(ir)}
    assert found == set(KINDS)


def test_every_mutant_is_another_valid_program(irs, copy):
    for ir in [*irs.values(), copy]:
        plain = read_ttir(ir.ttir)
        run_pipeline(plain, BEFORE)
        for mutant in mutants_of(ir):
            module = read_ttir(ir.ttir)
            run_pipeline(module, BEFORE)
            mutate(module, mutant.name)
            module.verify()
            assert str(module) != str(plain), mutant.name
            run_pipeline(module, DEFAULT_PIPELINE[len(BEFORE) :])
            module.verify()
            compile_kernel(ir, SimOptions(mutation=mutant.name))


def test_the_fault_is_planted_before_the_passes_that_go_by_effects():
    assert DEFAULT_PIPELINE[: len(BEFORE)] == BEFORE


def test_names_are_unique_and_stable(irs):
    for ir in irs.values():
        names = [mutant.name for mutant in mutants_of(ir)]
        assert len(set(names)) == len(names)
        assert names == [mutant.name for mutant in mutants_of(ir)]
        for mutant in mutants_of(ir):
            assert mutant.name.startswith(f"{mutant.kind}@{mutant.line}:{mutant.col}")
            assert mutant.file.endswith("mutation_kernels.py")


# ---- names, and what compiles them ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("drop-wate@1:2", "did you mean 'drop-wait'"),
        ("drop-wait", "kind@line:col"),
        ("drop-wait@1", "kind@line:col"),
        ("drop-wait@1:2#x", "kind@line:col"),
        ("drop-wait@1:2", "the kernel has drop-wait@"),
    ],
)
def test_a_name_that_is_none(irs, name, says):
    with pytest.raises(UsageError, match=says):
        compile_kernel(irs["exchange"], SimOptions(mutation=name))


@pytest.mark.parametrize("text", ["", "exchange", "/drop-wait@1:2", "exchange/wait"])
def test_a_mutation_that_is_none(text):
    with pytest.raises(UsageError):
        parse_mutation(text)


def test_which_kernels_of_a_world_are_mutated(irs):
    name = mutants_of(irs["exchange"], ["drop-wait"])[0].name
    assert mutant_to_run(irs["exchange"], f"exchange/{name}") == name
    assert mutant_to_run(irs["many"], f"exchange/{name}") == ""
    assert mutant_to_run(irs["exchange"], "") == ""
    assert mutant_to_run(irs["exchange"], "exchange/drop-wait@1:2") == "drop-wait@1:2"  # to be refused
    assert mutant_to_run(irs["exchange"], "exchange/drop-wait@1:2?") == ""
    assert mutant_to_run(irs["exchange"], f"exchange/{name}?") == name
    assert has_mutant(irs["exchange"], name) and not has_mutant(irs["exchange"], "drop-wait@1:2")


def test_a_mutant_is_compiled_beside_the_kernel(irs):
    name = mutants_of(irs["exchange"], ["drop-wait"])[0].name
    keys = {content_key(irs["exchange"], SimOptions(mutation=mutation)) for mutation in ("", name)}
    assert len(keys) == 2
    assert exchange(irs, name).named("wait") == [] and exchange(irs).named("wait")


def test_identical_code_is_a_proof(irs):
    """The token of a wait hung on a value that is only stored back into it: nothing else is the same code."""
    same = [m for m in mutants_of(irs["many"], ["drop-consume-token"]) if same_code(m, [irs["many"]])]
    assert same == []
    assert code_of(irs["many"]) == code_of(irs["many"], "")
    dead = KernelIR("dead", irs["exchange"].ttir.replace("exchange", "dead"), irs["exchange"].args)
    assert code_of(dead) != code_of(irs["exchange"])
