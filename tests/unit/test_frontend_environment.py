"""The front-end check tells triton-ascend from stock Triton, and a mixture of both in one folder."""

import importlib.metadata

import pytest

from tdist.errors import EnvironmentUnfit
from tdist.frontend import check_front_end, environment


class Package:
    """Stands for a file in a wheel's record."""

    def __init__(self, path, size):
        self.path, self.size = path, size

    def locate(self):
        return self.path

    def __str__(self):
        return f"triton/{self.path.name}"


@pytest.fixture
def packages(monkeypatch):
    """Make these packages the installed ones: name → version."""

    def install(**versions):
        found = {name.replace("_", "-"): version for name, version in versions.items()}

        def version(name):
            if name not in found:
                raise importlib.metadata.PackageNotFoundError(name)
            return found[name]

        monkeypatch.setattr(importlib.metadata, "version", version)

    return install


def test_nothing_installed(packages):
    packages()
    with pytest.raises(
        EnvironmentUnfit, match=r"no Triton front end is installed.*pip install.*triton-ascend==3\.2\.0"
    ):
        check_front_end()


def test_stock_triton_that_came_with_torch(packages):
    packages(triton="3.9.0")
    with pytest.raises(
        EnvironmentUnfit, match=r"stock triton 3\.9\.0 is installed.*CUDA build of torch.*Run: .*uninstall"
    ):
        check_front_end()


def test_another_version(packages):
    packages(triton_ascend="3.3.0")
    with pytest.raises(EnvironmentUnfit, match=r"triton-ascend 3\.2\.0 is needed, 3\.3\.0 is installed"):
        check_front_end()


def test_stock_triton_written_over_it(packages, monkeypatch, tmp_path):
    packages(triton_ascend="3.2.0", triton="3.9.0")
    overwritten = tmp_path / "__init__.py"
    overwritten.write_text("stock")
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [Package(overwritten, 4711)])
    with pytest.raises(
        EnvironmentUnfit, match=r"overwritten by triton 3\.9\.0 \(triton/__init__\.py\).*Repair it with"
    ):
        check_front_end()


def test_a_missing_requirement_of_it(packages, monkeypatch):
    packages(triton_ascend="3.2.0")

    def fail(name):
        raise ModuleNotFoundError("No module named 'pybind11'")

    monkeypatch.setattr(environment.importlib, "import_module", fail)
    with pytest.raises(EnvironmentUnfit, match=r"does not import \(ModuleNotFoundError: No module named 'pybind11'\)"):
        check_front_end()
    assert EnvironmentUnfit.exit_code == 3
