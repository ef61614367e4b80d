"""A change in what a kernel reads by name is noticed; anything else is not."""

import types

import triton
import triton.language as tl

from tdist.frontend.surroundings import Surroundings

SIZE = tl.constexpr(4)
UNREAD = 1
library = types.ModuleType("library")


@triton.jit
def leaf(x):
    return x + library.BIAS


@triton.jit
def root(p):
    tl.store(p, leaf(SIZE))


library.BIAS = tl.constexpr(1)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_global_of_the_kernel(monkeypatch):
    seen = Surroundings(root)
    assert seen.unchanged()
    monkeypatch.setitem(globals(), "UNREAD", 2)
    assert seen.unchanged()
    monkeypatch.setitem(globals(), "SIZE", tl.constexpr(8))
    assert not seen.unchanged()
    assert Surroundings(root).unchanged()


def test_a_member_of_a_module_that_a_called_function_reads(monkeypatch):
    seen = Surroundings(root)
    monkeypatch.setattr(library, "BIAS", tl.constexpr(2))
    assert not seen.unchanged()


def test_a_called_function_that_is_replaced_or_rewritten(monkeypatch):
    seen = Surroundings(root)
    monkeypatch.setattr(leaf, "src", leaf.src.replace("+", "-"))
    assert not seen.unchanged()
    monkeypatch.undo()
    assert seen.unchanged()
    monkeypatch.setitem(globals(), "leaf", triton.jit(leaf.fn))
    assert not seen.unchanged()


def test_a_global_that_vanishes(monkeypatch):
    seen = Surroundings(root)
    monkeypatch.delitem(globals(), "SIZE")
    assert not seen.unchanged()


def test_a_variable_of_the_enclosing_function():
    size = tl.constexpr(4)

    @triton.jit
    def kernel(p):
        tl.store(p, size)

    seen = Surroundings(kernel)
    assert seen.unchanged()
    size = tl.constexpr(5)
    assert not seen.unchanged()


def test_functions_that_call_each_other_end():
    @triton.jit
    def ping(x):
        return pong(x)

    @triton.jit
    def pong(x):
        return ping(x)

    assert Surroundings(ping).unchanged()
