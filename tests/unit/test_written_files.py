"""Files that commands write: whole or not at all, pipes only where somebody reads."""

from __future__ import annotations

import os
import select
import threading

import pytest

from tdist.errors import UsageError
from tdist.tools.files import write_text


def test_a_pipe_that_nobody_reads_is_told_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match=r"cannot write --trace .*pipe: "):
        write_text("--trace", pipe, "text")


def test_a_pipe_that_is_read_gets_everything(tmp_path):
    pipe, text = tmp_path / "pipe", "x" * 300_000
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write = threading.Thread(target=write_text, args=("--trace", pipe, text))
    write.start()
    assert select.select([reader], [], [], 20)[0]
    os.set_blocking(reader, True)
    with open(reader) as stream:
        got = stream.read()
    write.join(20)
    assert got == text


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "report"
    path.write_text("before")
    write_text("--json", path, "after")
    assert path.read_text() == "after" and [p.name for p in tmp_path.iterdir()] == ["report"]
