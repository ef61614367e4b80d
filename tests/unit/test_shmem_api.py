"""The host API: the sequence that programs use, every rule it checks, and what its messages name."""

from __future__ import annotations

import pytest
import torch

import tdist.shmem as ash
from tdist.errors import UsageError, WorldStopped
from tdist.platforms.sim.world import World

GIB = 1 << 30


def attributes(rt, **changes) -> ash.InitAttr:
    attr = ash.InitAttr()
    attr.my_rank = rt.rank
    attr.n_ranks = rt.nranks
    attr.local_mem_size = GIB
    attr.ip_port = "tcp://127.0.0.1:8666"
    attr.option_attr.data_op_engine_type = ash.OpEngineType.MTE
    for name, value in changes.items():
        setattr(attr, name, value)
    return attr


def init(rt, **changes) -> None:
    assert ash.set_conf_store_tls(False, "") == 0
    assert ash.aclshmem_init(attributes(rt, **changes)) == 0


def run(host, nranks: int = 2, **config):
    with World(nranks=nranks, **config) as world:
        return world.run(host)


def refused(host, nranks: int = 2) -> str:
    with pytest.raises(UsageError) as caught:
        run(host, nranks)
    return str(caught.value)


def test_the_usual_sequence():
    def host(rt):
        init(rt)
        peer_mem = ash.aclshmem_create_tensor((4, 8), dtype=torch.float16, device_id=rt.rank)
        peer_mem.fill_(rt.rank + 1)
        assert (ash.my_pe(), ash.pe_count()) == (rt.rank, rt.nranks)
        assert peer_mem.is_contiguous() and peer_mem.shape == (4, 8) and peer_mem.dtype is torch.float16
        total = peer_mem.float().sum().item()
        ash.aclshmem_free_tensor(peer_mem)
        assert ash.aclshmem_finalize() == 0
        return total

    assert run(host, 3) == [32.0, 64.0, 96.0]


def test_the_misspelt_finalize_is_the_same_function():
    assert ash.aclshmem_finialize is ash.aclshmem_finalize


def test_engine_types_are_a_bit_mask():
    assert [int(kind) for kind in (ash.OpEngineType.MTE, ash.OpEngineType.SDMA)] == [1, 2]
    assert [int(kind) for kind in (ash.OpEngineType.ROCE, ash.OpEngineType.UDMA)] == [4, 8]


def test_status_follows_init_and_finalize():
    def host(rt):
        before = ash.aclshmemx_init_status()
        init(rt)
        between = ash.aclshmemx_init_status()
        ash.aclshmem_finalize()
        return before, between, ash.aclshmemx_init_status()

    nothing, done = ash.InitStatus.NOT_INITIALIZED, ash.InitStatus.INITIALIZED
    assert run(host, 1) == [(nothing, done, nothing)]


def test_init_again_after_finalize():
    def host(rt):
        for _ in range(2):
            init(rt)
            ash.aclshmem_create_tensor((4,))
            ash.aclshmem_finalize()

    run(host)


def test_addresses_translate_to_the_peer():
    def host(rt):
        init(rt)
        tensor = ash.aclshmem_create_tensor((16,), dtype=torch.int32)
        address = ash.aclshmem_malloc(64)
        own = ash.aclshmem_ptr(address, rt.rank)
        through_tensor = ash.aclshmem_ptr(tensor.data_ptr(), 1 - rt.rank)
        return address, own, ash.aclshmem_ptr(address, 1 - rt.rank), through_tensor, ash.aclshmem_ptr(address, 7)

    (mine, own, peer, tensor_peer, nowhere), (other, *_) = run(host)
    assert own == mine
    assert peer == other
    assert 0 < other - tensor_peer <= 64
    assert nowhere == 0
    assert run(lambda rt: (init(rt), ash.aclshmem_ptr(0x10, 0))[1], 1) == [0]


def test_calloc_zeroes_and_align_aligns():
    def host(rt):
        init(rt)
        ash.aclshmem_malloc(24)
        aligned = ash.aclshmem_align(512, 40)
        zeros = ash.aclshmem_calloc(8, 4)
        return aligned % 512, rt.tensor(zeros, (8,), torch.int32).tolist()

    assert run(host) == [(0, [0] * 8)] * 2


def test_small_allocations_are_sixteen_bytes_apart():
    def host(rt):
        init(rt)
        return ash.aclshmem_malloc(4), ash.aclshmem_malloc(4)

    ((first, second), _) = run(host)
    assert second - first == 16


def test_new_memory_is_poison_not_zero():
    def host(rt):
        init(rt)
        return ash.aclshmem_create_tensor((16,), dtype=torch.uint8)

    assert set(run(host, 1, poison=0xAB)[0].tolist()) == {0xAB}


def test_a_large_heap_costs_nothing():
    def resident_kib() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssShmem"))

    def host(rt):
        init(rt, local_mem_size=40 * GIB)
        ash.aclshmem_create_tensor((1024,))

    before = resident_kib()
    with World(nranks=4) as world:
        world.run(host)
        assert resident_kib() - before < 4096


class TestRules:
    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"my_rank": None}, "InitAttr.my_rank is not set"),
            ({"my_rank": 5}, "InitAttr.my_rank is 5, expected 0 … 1"),
            ({"my_rank": 1}, "InitAttr.my_rank is 1, expected 0, the rank that calls"),
            ({"n_ranks": 3}, "InitAttr.n_ranks is 3, expected 2"),
            ({"n_ranks": 0}, "InitAttr.n_ranks is 0, expected 1 … 16384"),
            ({"local_mem_size": 0}, "InitAttr.local_mem_size is 0, expected 1 byte … 40 GiB"),
            ({"local_mem_size": 41 * GIB}, "expected 1 byte … 40 GiB"),
            ({"local_mem_size": 1.5}, "must be an int, got 1.5"),
            ({"ip_port": "x" * 64}, "at most 63 characters"),
            ({"option_attr": ash.OptionalAttr(data_op_engine_type=16)}, "a mask of OpEngineType"),
            ({"option_attr": ash.OptionalAttr(shm_init_timeout=0)}, "shm_init_timeout is 0"),
        ],
    )
    def test_attributes_out_of_range(self, changes, text):
        def host(rt):
            ash.aclshmem_init(attributes(rt, **(changes if rt.rank == 0 else {})))

        assert text in refused(host)

    def test_tls_is_refused(self):
        assert "no network" in refused(lambda rt: ash.set_conf_store_tls(True, "x"))

    def test_sizes_that_differ_name_the_ranks(self):
        def host(rt):
            init(rt, local_mem_size=GIB * (1 + rt.rank))

        with World(nranks=2) as world:
            results = world.run(host)
            assert all(isinstance(result, WorldStopped) for result in results)
            text = str([found.to_json() for found in world.findings])
        assert f"local_mem_size={GIB}" in text
        assert f"local_mem_size={2 * GIB}" in text

    def test_init_twice(self):
        assert "already initialised" in refused(lambda rt: (init(rt), init(rt)))

    @pytest.mark.parametrize(
        "use",
        [
            ash.my_pe,
            ash.pe_count,
            ash.aclshmem_finalize,
            lambda: ash.aclshmem_malloc(16),
            lambda: ash.aclshmem_create_tensor((4,)),
            lambda: ash.aclshmem_ptr(0, 0),
        ],
    )
    def test_use_before_init_and_after_finalize(self, use):
        assert "call aclshmem_init first" in refused(lambda rt: use())
        assert "after aclshmem_finalize" in refused(lambda rt: (init(rt), ash.aclshmem_finalize(), use()))

    def test_freeing_a_view_at_an_offset(self):
        def host(rt):
            init(rt)
            workspace = ash.aclshmem_create_tensor((16,))
            ash.aclshmem_free_tensor(workspace[4:])

        assert "16 bytes into workspace of 64 bytes" in refused(host)

    def test_freeing_twice(self):
        def host(rt):
            init(rt)
            workspace = ash.aclshmem_create_tensor((16,))
            ash.aclshmem_free_tensor(workspace)
            ash.aclshmem_free_tensor(workspace)

        assert "workspace of 64 bytes was freed before (double free)" in refused(host)

    def test_freeing_what_is_not_symmetric(self):
        assert "not on the symmetric heap" in refused(lambda rt: (init(rt), ash.aclshmem_free_tensor(torch.ones(4))))
        assert "not an allocation" in refused(lambda rt: (init(rt), ash.aclshmem_free(0x1234)))

    @pytest.mark.parametrize("size", [0, -4, 2.5, True])
    def test_sizes_that_are_none(self, size):
        assert "positive number of bytes" in refused(lambda rt: (init(rt), ash.aclshmem_malloc(size)))

    def test_alignment_is_a_power_of_two(self):
        assert "48 is not a power of two" in refused(lambda rt: (init(rt), ash.aclshmem_align(48, 16)))

    def test_a_full_heap_names_what_is_left(self):
        def host(rt):
            init(rt, local_mem_size=4096)
            ash.aclshmem_malloc(4000)
            ash.aclshmem_malloc(200)

        text = refused(host)
        assert "200 bytes asked for, 96 of 4096 left" in text
        assert "local_mem_size" in text

    def test_teams_other_than_the_world(self):
        assert "team 3 does not exist" in refused(lambda rt: (init(rt), ash.my_pe(3)))

    def test_outside_a_world(self):
        with pytest.raises(UsageError, match=r"no rank is active .*World\(nranks=4\)"):
            ash.aclshmem_init(ash.InitAttr())


class TestArguments:
    """Of another type than the function takes: its name, the rank, the argument, what was given and what is taken."""

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda: ash.aclshmem_create_tensor("abc"), "aclshmem_create_tensor on rank 0: shape is 'abc'"),
            (lambda: ash.aclshmem_create_tensor((1.5,)), "aclshmem_create_tensor on rank 0: shape is (1.5,)"),
            (lambda: ash.aclshmem_create_tensor((-1, -3)), "shape is (-1, -3), expected sizes of at least 0"),
            (lambda: ash.aclshmem_create_tensor((4,), dtype="float32"), "dtype is 'float32', expected a torch dtype"),
            (lambda: ash.aclshmem_calloc(-2, -4), "aclshmem_calloc on rank 0: nmemb is -2, expected 1 or more"),
            (lambda: ash.aclshmem_align("a", 4), "aclshmem_align on rank 0: alignment is 'a', expected an int"),
            (lambda: ash.aclshmem_free("x"), "aclshmem_free on rank 0: ptr is 'x', expected an int"),
            (lambda: ash.aclshmem_free_tensor(None), "aclshmem_free_tensor on rank 0: tensor is None"),
            (lambda: ash.aclshmem_ptr(None, 1), "aclshmem_ptr on rank 0: ptr is None, expected an int"),
            (lambda: ash.aclshmem_ptr(16, 1.0), "aclshmem_ptr on rank 0: peer is 1.0, expected an int"),
        ],
    )
    def test_of_another_type(self, call, text):
        def host(rt):
            init(rt)
            call()

        assert text in refused(host)

    @pytest.mark.parametrize(("name", "value"), [("shm_init_timeout", "x"), ("data_op_engine_type", None)])
    def test_options_of_another_type(self, name, value):
        options = ash.OptionalAttr()
        setattr(options, name, value)
        text = f"InitAttr.option_attr.{name} is {value!r}, expected"
        assert text in refused(lambda rt: init(rt, option_attr=options))


class TestCollective:
    def test_different_sizes_name_ranks_and_lines(self):
        def host(rt):
            init(rt)
            ash.aclshmem_create_tensor((16 + rt.rank,))

        with World(nranks=2) as world:
            world.run(host)
            (found,) = world.findings
        assert found.kind == "tdist.asymmetric-alloc"
        assert {(p.rank, p.file, p.line) for p in found.parties} == {
            (rank, __file__, host.__code__.co_firstlineno + 2) for rank in range(2)
        }

    def test_different_order_is_found(self):
        def host(rt):
            init(rt)
            pair = [ash.aclshmem_malloc(64), ash.aclshmem_malloc(128)]
            for address in pair if rt.rank else reversed(pair):
                ash.aclshmem_free(address)

        with World(nranks=2) as world:
            world.run(host)
            assert [found.kind for found in world.findings] == ["tdist.asymmetric-alloc"]

    def test_memory_is_used_again(self):
        def host(rt):
            init(rt, local_mem_size=1 << 20)
            for _ in range(10):
                tensor = ash.aclshmem_create_tensor((1 << 19,), dtype=torch.uint8)
                ash.aclshmem_free_tensor(tensor)

        run(host)


def test_users_import_it_as_shmem():
    def host(rt):
        import shmem  # provided while a world is open

        init(rt)
        return shmem.my_pe()

    assert run(host, 2) == [0, 1]
