"""Users' import names work inside a scope, and the interpreter is as before afterwards."""

import importlib
import subprocess
import sys
import textwrap
import threading

import pytest

import tdist.importer as importer
import tdist.language
import tdist.shmem
from tdist.importer import provided_by, user_names


def ours():
    return sorted(name for name in sys.modules if name.split(".")[0] in ("triton_dist", "shmem") or ".cann" in name)


@pytest.fixture(autouse=True)
def unchanged():
    """No test here leaves anything behind."""
    import triton
    import triton.language.extra

    importlib.import_module("tdist.language.extra.cann.extension")
    finders, modules = list(sys.meta_path), ours()
    attributes = (set(vars(triton.language.extra)), set(vars(triton.language)), set(vars(triton.backends)))
    specs = (tdist.language.__spec__, tdist.shmem.__spec__)
    yield
    assert sys.meta_path == finders
    assert ours() == modules
    assert (set(vars(triton.language.extra)), set(vars(triton.language)), set(vars(triton.backends))) == attributes
    assert (tdist.language.__spec__, tdist.shmem.__spec__) == specs


def test_the_names_that_users_import():
    with user_names():
        import shmem as ash
        import triton_dist
        import triton_dist.language as dl
        import triton_dist.language.extra.libshmem_device as libshmem_device
        from triton.backends.ascend.driver import NPUUtils
        from triton.language.extra.cann.extension import sub_vec_id, sub_vec_num
        from triton_dist.language import notify
        from triton_dist.language.extra.ascend import libaclshmem_device

    assert dl is tdist.language and notify is tdist.language.notify
    assert ash is tdist.shmem
    assert libshmem_device is importlib.import_module("tdist.language.extra.libshmem_device")
    assert libaclshmem_device.__name__ == "tdist.language.extra.ascend.libaclshmem_device"
    assert sub_vec_id.__module__ == sub_vec_num.__module__ == "tdist.language.extra.cann.extension"
    assert NPUUtils.__module__ == "triton.backends.ascend.driver", "a real package is never stood over"
    assert triton_dist.jit is importlib.import_module("triton").jit


def test_outside_a_scope_the_names_do_not_exist():
    with user_names():
        importlib.import_module("triton_dist.language")
    for name in ("triton_dist.language", "shmem", "triton.language.extra.cann.extension"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)


def test_a_name_that_is_not_provided_says_what_is():
    with (
        user_names(),
        pytest.raises(ModuleNotFoundError, match=r"'triton_dist\.kernels'.*provides triton_dist, triton_"),
    ):
        importlib.import_module("triton_dist.kernels")


def test_scopes_nest_and_overlap_in_threads():
    first_has_left, second_is_in = threading.Event(), threading.Event()
    seen = []

    def second():
        with user_names():
            second_is_in.set()
            first_has_left.wait(timeout=30)
            seen.append(importlib.import_module("triton_dist.language"))

    thread = threading.Thread(target=second)
    with user_names():
        with user_names():
            importlib.import_module("triton_dist")
        assert "triton_dist" in sys.modules
        thread.start()
        assert second_is_in.wait(timeout=30)
    first_has_left.set()
    thread.join(timeout=30)
    assert seen == [tdist.language]


@pytest.fixture
def real_package(tmp_path, monkeypatch):
    """An installed `triton_dist` that is not ours."""
    folder = tmp_path / "triton_dist" / "language"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("real = True\n")
    (folder / "__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "triton_dist"]:
        del sys.modules[name]


def test_a_real_package_wins_and_this_is_said(real_package):
    with user_names():
        assert importlib.import_module("triton_dist.language").real
        assert importlib.import_module("shmem") is tdist.shmem
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'triton_dist\.language\.extra'$"):
            importlib.import_module("triton_dist.language.extra")
        text = provided_by("triton_dist.language")
    assert text.startswith(f"`triton_dist.language` comes from the real package at {real_package}/triton_dist")
    assert provided_by("shmem") == "`shmem` is provided by tdist while a world is open"
    assert provided_by("numpy") == "`numpy` is not a name that tdist provides"
    assert "triton_dist" in sys.modules, "what a scope did not provide it does not remove"


WITHOUT_ASCEND = """
    import importlib, sys, types
    # A Triton without the Ascend back end, as the stock one is.
    stock = types.ModuleType("triton"); stock.__path__ = []; stock.jit = print
    extra = types.ModuleType("triton.language.extra"); extra.__path__ = []
    back_ends = types.ModuleType("triton.backends"); back_ends.__path__ = []
    language = types.ModuleType("triton.language"); language.__path__ = []
    for module in (stock, extra, back_ends, language):
        sys.modules[module.__name__] = module
    from tdist.importer import user_names
    from tdist.platforms.base import activate
    class Rank: target, cube_cores, vector_cores = "Ascend910B1", 25, 50
    with user_names(), activate(Rank()):
        from triton.backends.ascend.driver import NPUUtils
        print(NPUUtils().get_aicore_num(), NPUUtils().get_aivector_core_num(), NPUUtils().get_arch())
    print(sorted(n for n in sys.modules if n.startswith("triton")), hasattr(back_ends, "ascend"))
"""


def test_core_counts_where_triton_has_no_ascend_back_end():
    command = [sys.executable, "-c", textwrap.dedent(WITHOUT_ASCEND)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [
        "25 50 Ascend910B1",
        "['triton', 'triton.backends', 'triton.language', 'triton.language.extra'] False",
    ], done.stderr


def test_every_alias_leads_to_a_module():
    for target in importer._ALIASES.values():
        assert importlib.import_module(target).__name__ == target


def test_an_autotuned_kernel_can_be_defined_with_no_device_and_is_benchmarked_by_the_real_driver():
    import triton
    from triton.runtime.driver import driver

    def define():
        configs = [triton.Config({"B": size}) for size in (16, 32)]
        return triton.autotune(configs, key=[])(triton.jit(kernel_to_tune))

    before = driver.active
    with user_names():
        tuned = define()
        assert driver.active is not before
    assert driver.active is before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.active, "_obj", RealDriver())
        assert tuned.do_bench(lambda: 1, quantiles=(0.5,)) == ("benchmarked", 1, (0.5,))


class RealDriver:
    """The driver of a machine with a device."""

    def get_benchmarker(self):
        return lambda call, quantiles: ("benchmarked", call(), quantiles)


def kernel_to_tune(x_ptr, B):
    """A body that is never compiled."""


def test_a_world_that_opens_during_an_import_still_restores_the_driver():
    from triton.runtime.driver import driver

    from tdist.platforms.sim.driver import sim_driver

    before, names, world = driver.active, user_names(), sim_driver()
    names.__enter__()
    world.__enter__()
    names.__exit__(None, None, None)
    assert driver.active.get_current_device() == 0, "the world's driver is still the active one"
    world.__exit__(None, None, None)
    assert driver.active is before


def test_on_demand_loads_nothing_until_a_name_is_asked_for_and_then_serves_what_imports_it(tmp_path, monkeypatch):
    (tmp_path / "imports_shmem.py").write_text("import shmem as ash\nPE = ash.my_pe\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    with importer.on_demand():
        assert "shmem" not in sys.modules
        assert callable(importlib.import_module("imports_shmem").PE)
    assert sys.meta_path == before
    assert "shmem" not in sys.modules
    sys.modules.pop("imports_shmem")
