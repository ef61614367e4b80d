"""A scope that many may enter: set up once, undone once, and not at all if the setting up failed."""

from __future__ import annotations

import contextlib
import threading

import pytest

from tdist.scoped import CountedScope


def recording(log: list[str]) -> CountedScope:
    def set_up(undo: contextlib.ExitStack) -> None:
        log.append("up")
        undo.callback(log.append, "down")

    return CountedScope(set_up)


def test_nested_scopes_are_set_up_and_undone_once():
    log: list[str] = []
    scope = recording(log)
    with scope.joined(), scope.joined():
        assert log == ["up"]
    assert log == ["up", "down"]
    with scope.joined():
        assert log == ["up", "down", "up"]


def test_the_last_one_out_undoes_whoever_came_first():
    log: list[str] = []
    scope = recording(log)
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with scope.joined():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with scope.joined():
        thread.start()
        assert inside.wait(10)
    assert log == ["up"]
    leave.set()
    thread.join(10)
    assert log == ["up", "down"]


def test_a_set_up_that_fails_is_undone_and_may_be_tried_again():
    log: list[str] = []
    fails = [True, False]

    def set_up(undo: contextlib.ExitStack) -> None:
        undo.callback(log.append, "undone")
        if fails.pop(0):
            raise ZeroDivisionError

    scope = CountedScope(set_up)
    with pytest.raises(ZeroDivisionError), scope.joined():
        pytest.fail("nobody may be in")
    assert log == ["undone"]
    with scope.joined():
        assert log == ["undone"]
    assert log == ["undone", "undone"]


def test_an_exception_inside_undoes():
    log: list[str] = []
    with pytest.raises(ZeroDivisionError), recording(log).joined():
        raise ZeroDivisionError
    assert log == ["up", "down"]
