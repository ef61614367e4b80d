"""`ModuleProxy`: exactly one predicate true, at use; pass-through; dispatch by the function's name."""

import shutil
import types

import pytest

from tdist.errors import UsageError
from tdist.language import backends
from tdist.language.extra import libshmem_device
from tdist.language.proxy import ModuleProxy
from tdist.platforms.base import activate


def library(name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    return module


A = library("vendor.a", put=lambda x: ("a", x), only_a=1)
B = library("vendor.b", put=lambda x: ("b", x))


def test_the_choice_is_made_at_each_use():
    active = "a"
    proxy = ModuleProxy([(lambda: active == "a", A), (lambda: active == "b", B)])

    @proxy.dispatch
    def put(x):
        """Declared once."""

    assert put(1) == ("a", 1) and put.__doc__ == "Declared once."
    active = "b"
    assert put(2) == ("b", 2) and proxy.put(3) == ("b", 3)


@pytest.mark.parametrize(
    ("truths", "text"), [((False, False), r"0 do \(none; known: a, b\)"), ((True, True), r"2 do \(a, b; known: a, b\)")]
)
def test_exactly_one_must_fit(truths, text):
    proxy = ModuleProxy([(lambda: truths[0], A), (lambda: truths[1], B)])
    with pytest.raises(UsageError, match=f"exactly one device library must fit the active platform, {text}"):
        _ = proxy.put


def test_constructing_one_asks_nothing():
    ModuleProxy([(lambda: pytest.fail("asked"), A)])


def test_a_missing_function_is_told_with_the_librarys_name():
    proxy = ModuleProxy([(lambda: True, B)])
    with pytest.raises(AttributeError, match="`only_a` is not in the device library of this platform \\(b\\)"):
        _ = proxy.only_a


def test_a_module_may_be_given_by_name():
    assert ModuleProxy([(lambda: True, "math")]).pi == pytest.approx(3.14159, abs=1e-5)


class Rank:
    """A rank on a target."""

    def __init__(self, target):
        self.target = target


@pytest.mark.parametrize(("target", "ascend"), [("Ascend910B3", True), ("gfx942", False)])
def test_the_active_platform_decides_and_not_the_machine(monkeypatch, target, ascend):
    monkeypatch.setattr(shutil, "which", lambda tool: "/usr/bin/nvidia-smi" if tool == "nvidia-smi" else None)
    assert (backends.is_cuda(), backends.is_ascend(), backends.active_is_ascend()) == (True, False, False)
    with activate(Rank(target)):  # pyright: ignore[reportArgumentType]
        assert backends.active_is_ascend() is ascend
        if not ascend:
            with pytest.raises(UsageError, match="exactly one device library must fit"):
                libshmem_device.my_pe()


@pytest.mark.parametrize(
    ("tool", "predicate"),
    [("npu-smi", "is_ascend"), ("nvidia-smi", "is_cuda"), ("rocm-smi", "is_hip"), ("mx-smi", "is_maca")],
)
def test_a_vendor_is_known_by_its_tool(monkeypatch, tool, predicate):
    monkeypatch.setattr(shutil, "which", lambda name: name if name == tool else None)
    predicates = ("is_ascend", "is_cuda", "is_hip", "is_maca")
    assert [name for name in predicates if getattr(backends, name)()] == [predicate]


def test_functions_that_only_this_library_has_pass_through():
    assert libshmem_device.LIBRARY == "libaclshmem_device"


@pytest.mark.parametrize(
    "name",
    [
        "putmem", "putmem_nbi", "putmem_nbi_block", "putmem_signal", "getmem_nbi", "put128", "iget", "signal_op",
        "signal_wait_until", "wait_until_all", "team_my_pe", "barrier", "barrier_vec", "sync_all", "atomic_add",
        "ACLSHMEM_SIGNAL_ADD", "float_putmem_nbi",
    ],
)  # fmt: skip
def test_what_aclshmem_has_is_not_simulated_yet(monkeypatch, name):
    monkeypatch.setenv("TDIST_PLATFORM", "sim")
    with pytest.raises(AttributeError, match=f"`{name}`: .* not simulated yet; (use|store|load) "):
        getattr(libshmem_device, name)


@pytest.mark.parametrize("name", ["getter", "barier_all", "nothing"])
def test_what_nobody_has_is_not_promised(monkeypatch, name):
    monkeypatch.setenv("TDIST_PLATFORM", "sim")
    with pytest.raises(AttributeError, match=f"`{name}` is not in the device library of this platform"):
        getattr(libshmem_device, name)
