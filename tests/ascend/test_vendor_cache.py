"""Results by content: all that decides a result is in its key, and nothing that somebody else wrote is trusted."""

from __future__ import annotations

import itertools
import os
import stat

import pytest

from tdist import private_cache
from tdist.platforms.ascend.vendor import cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TDIST_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TDIST_NO_CACHE", raising=False)
    return tmp_path / "ascend"


def test_a_result_is_kept_privately_and_read_back(folder):
    key = cache.key("kind", "text")
    assert cache.load(key) is None
    cache.save(key, {"text": "ä", "seconds": 0.5})
    assert cache.load(key) == {"text": "ä", "seconds": 0.5}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o077 for path in folder.iterdir()] == [0]


def test_a_key_tells_all_parts_apart(monkeypatch):
    inputs = [
        ("kind", "ab", "c"),
        ("kind", "a", "bc"),
        ("kind", "abc"),
        ("kind", "c", "ab"),
        ("kinda", "b", "c"),
        ("kind",),
    ]
    keys = [cache.key(*parts) for parts in inputs]
    assert len(set(keys)) == len(keys) and keys == [cache.key(*parts) for parts in inputs]
    monkeypatch.setattr(cache, "our_digest", lambda: "another tdist")
    assert not set(keys) & {cache.key(*parts) for parts in inputs}


def test_our_digest_follows_our_sources(tmp_path, monkeypatch):
    (tmp_path / "vendor").mkdir()
    for name in ("vendor/cache.py", "vendor/run.py", "targets.py", "options.py"):
        (tmp_path / name).write_text(name)
    (tmp_path / "lowering").mkdir()
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "vendor" / "cache.py"))
    seen = []
    for change in ("", "vendor/run.py", "options.py", "lowering/new.py"):
        if change:
            (tmp_path / change).write_text("changed")
        cache.our_digest.cache_clear()
        seen.append(cache.our_digest())
    cache.our_digest.cache_clear()
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_half_a_file_is_a_miss(folder, cut):
    key = cache.key("kind", "text")
    cache.save(key, {"text": "x" * 100})
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:cut])
    assert cache.load(key) is None


def test_each_changed_byte_is_a_miss(folder):
    key = cache.key("kind", "text")
    cache.save(key, {"text": "x"})
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for at in itertools.chain(range(0, 64, 7), range(64, len(whole))):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache.load(key) is None, f"byte {at}"


def test_links_and_open_directories_are_not_used(folder):
    key = cache.key("kind", "text")
    cache.save(key, {"text": "x"})
    (path,) = folder.iterdir()
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    assert cache.load(key) is None
    path.unlink()
    (folder / "elsewhere").rename(path)
    assert cache.load(key) is not None
    folder.chmod(0o750)
    assert cache.load(key) is None


def test_a_pipe_or_a_folder_is_a_miss_and_not_waited_for(folder):
    key = cache.key("kind", "text")
    cache.save(key, {"text": "x"})
    (path,) = folder.iterdir()
    path.unlink()
    os.mkfifo(path)
    assert cache.load(key) is None
    path.unlink()
    path.mkdir()
    assert cache.load(key) is None


def test_a_file_of_another_user_is_not_read(folder, monkeypatch):
    key = cache.key("kind", "text")
    cache.save(key, {"text": "x"})
    real = private_cache.os.fstat

    def fstat(descriptor):
        info = list(real(descriptor))
        info[stat.ST_UID] += 1
        return os.stat_result(info)

    monkeypatch.setattr(private_cache.os, "fstat", fstat)
    assert cache.load(key) is None


def test_a_full_disk_leaves_nothing_behind(folder, monkeypatch):
    def no_space(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_cache.os, "replace", no_space)
    cache.save(cache.key("kind", "text"), {"text": "x"})
    assert not list(folder.iterdir())


def test_it_can_be_turned_off(folder, monkeypatch):
    monkeypatch.setenv("TDIST_NO_CACHE", "1")
    cache.save(cache.key("kind", "text"), {"text": "x"})
    assert cache.load(cache.key("kind", "text")) is None and not folder.exists()
