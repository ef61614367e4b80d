"""`TDIST_*` variables: typed, documented, a wrong value names its variable."""

from pathlib import Path

import pytest

from tdist import env
from tdist.errors import EnvironmentUnfit, UsageError


def test_every_variable_is_documented_and_its_default_is_valid(monkeypatch):
    for name, variable in env.REGISTRY.items():
        monkeypatch.delenv(name, raising=False)
        assert name.startswith("TDIST_") and variable.help.endswith(".") and variable.expects
        assert variable.get() == variable.default
        assert variable.default is None or variable.parse(str(variable.default)) == variable.default


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("TDIST_PLATFORM", "sim", "sim"),
        ("TDIST_CACHE_DIR", "/tmp/x", Path("/tmp/x")),
        ("TDIST_WATCHDOG_SECONDS", "2.5", 2.5),
        ("TDIST_WATCHDOG_SECONDS", "", 60.0),
        ("TDIST_DUMP_DIR", "", None),
        ("TDIST_NO_CACHE", "1", True),
    ],
)
def test_values(monkeypatch, name, text, value):
    monkeypatch.setenv(name, text)
    assert env.REGISTRY[name].get() == value


@pytest.mark.parametrize(
    ("name", "text", "expects"),
    [
        ("TDIST_PLATFORM", "gpu", '"sim"'),
        ("TDIST_CACHE_DIR", "relative/path", "an absolute directory"),
        ("TDIST_WATCHDOG_SECONDS", "soon", "a number of seconds above 0"),
        ("TDIST_WATCHDOG_SECONDS", "0", "a number of seconds above 0"),
        ("TDIST_WATCHDOG_SECONDS", "nan", "a number of seconds above 0"),
        ("TDIST_WATCHDOG_SECONDS", "inf", "a number of seconds above 0"),
    ],
)
def test_an_invalid_value_names_the_variable(monkeypatch, name, text, expects):
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=rf"^{name} must be {expects}, got '{text}'$"):
        env.REGISTRY[name].get()


def test_a_misspelt_variable_is_refused(monkeypatch):
    monkeypatch.setenv("TDIST_PLATFROM", "sim")
    with pytest.raises(UsageError, match=r"^TDIST_PLATFROM is not a variable of tdist; it has: .*TDIST_PLATFORM"):
        env.check_environment()
    monkeypatch.delenv("TDIST_PLATFROM")
    env.check_environment()


def test_a_working_directory_that_is_gone_is_told(monkeypatch, tmp_path):
    """Where it is, importing torch ends the process without a word of ours."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(EnvironmentUnfit, match="the working directory is gone"):
        env.check_environment()


@pytest.mark.parametrize(("text", "value"), [("1", True), ("off", False), ("TRUE", True), ("no", False)])
def test_flags(text, value):
    assert env.flag(text) is value
    with pytest.raises(ValueError, match="maybe"):
        env.flag("maybe")
