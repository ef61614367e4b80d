"""Policies: what they accept, what they must not, and what they say about the worst element."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tdist.errors import UsageError
from tdist.golden import Reference, gemm_reference
from tdist.verify.policies import MIN_SAMPLES, POLICIES, Setting, compare

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def gemm(dtype, k=256, size=48, seed=0):
    source = torch.Generator().manual_seed(seed)
    a = torch.randn((size, k), generator=source).to(dtype)
    b = torch.randn((k, size), generator=source).to(dtype)
    return a, b, gemm_reference(a, b)


def in_order(a, b, order, step=32):
    """The product with float32 partial sums of `step` terms, added up in the given order, rounded once."""
    total = torch.zeros((a.shape[0], b.shape[1]))
    for block in order:
        piece = slice(block * step, (block + 1) * step)
        total += a[:, piece].float() @ b[piece].float()
    return total.to(a.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("policy", ["auto", "bound", "gamma", "bias"])
def test_legal_orders_of_addition_are_accepted(dtype, policy):
    a, b, ref = gemm(dtype)
    blocks = a.shape[1] // 32
    for order in (range(blocks), reversed(range(blocks)), torch.randperm(blocks, generator=torch.Generator()).tolist()):
        assert compare(policy, in_order(a, b, order), ref, Setting(nranks=8)).passed


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_missing_last_term_is_rejected(dtype):
    a, b, ref = gemm(dtype)
    wrong = (a[:, :-1].float() @ b[:-1].float()).to(dtype)
    assert not compare("bound", wrong, ref, Setting(nranks=8)).passed


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_stale_tile_is_rejected_and_located(dtype):
    a, b, ref = gemm(dtype)
    y = in_order(a, b, range(8))
    y[16:32, 32:48] = in_order(a, b, range(7))[16:32, 32:48]
    judged = compare("auto", y, ref, Setting(nranks=8, tile=(16, 16)))
    assert not judged.passed
    assert judged.wrong_tiles == ((1, 2),)
    assert judged.tiles == 9
    assert judged.worst_index is not None
    assert 16 <= judged.worst_index[0] < 32 <= judged.worst_index[1] < 48


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_low_precision_accumulation_is_rejected(dtype):
    a, b, ref = gemm(dtype)
    total = torch.zeros_like(ref.same_precision)
    for column in range(a.shape[1]):
        total = (total.float() + a[:, column : column + 1].float() * b[column : column + 1].float()).to(dtype)
    assert not compare("auto", total, ref, Setting()).passed


def test_bias_sees_a_systematic_error_that_the_bound_allows():
    *_, ref = gemm(torch.float16, k=64, size=64)
    y = ref.same_precision.clone()
    nudged = torch.nextafter(y, torch.full_like(y, math.inf))
    within = (nudged.double() - ref.value).abs() <= 2.0**-11 * ref.value.abs()
    drifting = torch.where(within, nudged, y)
    assert compare("bound", drifting, ref, Setting()).passed
    judged = compare("bias", drifting, ref, Setting())
    assert not judged.passed
    assert "mean error" in judged.notes[0]


def test_bias_does_not_judge_few_elements():
    _, _, ref = gemm(torch.float16, size=8)
    judged = compare("bias", ref.same_precision, ref, Setting())
    assert judged.passed
    assert f"{MIN_SAMPLES} are needed" in judged.notes[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_rejects_one_unit_in_the_last_place(dtype):
    value = torch.arange(1.0, 65.0).to(dtype).reshape(8, 8)
    y = value.clone()
    y[3, 4] = torch.nextafter(y[3, 4], torch.tensor(math.inf, dtype=dtype))
    judged = compare("exact", y, Reference(value), Setting())
    assert (judged.passed, judged.wrong_elems, judged.worst_index) == (False, 1, (3, 4))
    assert judged.worst_error == math.inf
    assert judged.expected == 29.0


@pytest.mark.parametrize("policy", ["exact", "allclose"])
def test_nan_and_infinity_are_compared(policy):
    value = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    assert compare(policy, value.clone(), Reference(value), Setting()).passed
    for place, wrong in ((0, 1.0), (1, math.nan), (1, -math.inf), (2, 0.0), (3, math.nan), (3, math.inf)):
        y = value.clone()
        y[place] = wrong
        judged = compare(policy, y, Reference(value), Setting())
        assert (judged.passed, judged.worst_index) == (False, (place,)), (place, wrong)


def test_overflow_is_right_only_where_the_golden_overflows():
    value = torch.tensor([65504.0, 65519.0, 65520.0, 1e6], dtype=torch.float64)
    rounded = value.to(torch.float16)
    assert rounded.isinf().tolist() == [False, False, True, True]
    assert compare("exact", rounded, Reference(value), Setting()).passed
    too_early = torch.full((4,), math.inf, dtype=torch.float16)
    judged = compare("exact", too_early, Reference(value), Setting())
    assert judged.wrong_elems == 2


def test_allclose_takes_given_tolerances_and_says_so():
    value = torch.full((4,), 100.0)
    y = value + 1
    assert not compare("allclose", y, Reference(value), Setting()).passed
    judged = compare("allclose", y, Reference(value), Setting(rtol=0.02, atol=0.0))
    assert judged.passed
    assert judged.notes == ("allclose with rtol 0.02, atol 0",)
    assert judged.allowed == 2.0


def test_auto_is_exact_for_movement():
    value = torch.randn(64, generator=torch.Generator().manual_seed(1)).half()
    off = value.clone()
    off[5] = torch.nextafter(off[5], torch.tensor(9.0, dtype=torch.float16))
    assert compare("auto", value, Reference(value), Setting()).policy == "exact"
    assert not compare("auto", off, Reference(value), Setting()).passed


def test_gamma_proves_what_the_bound_only_suspects():
    _, _, ref = gemm(torch.float32)
    zeros = torch.zeros_like(ref.same_precision)
    judged = compare("auto", zeros, ref, Setting())
    assert "wrong on every machine" in " ".join(judged.notes)


def test_declared_partials_widen_the_bound_and_need_their_squares():
    a, b, ref = gemm(torch.float16, k=256, size=32)
    halves = [(a[:, part].float() @ b[part].float()).half() for part in (slice(0, 128), slice(128, 256))]
    y = (halves[0].float() + halves[1].float()).half()
    declared = dataclasses.replace(ref, partials_sq=halves[0].double() ** 2 + halves[1].double() ** 2)
    assert compare("bound", y, declared, Setting(nranks=2, partials=True)).passed
    assert not compare("bound", y, ref, Setting(nranks=2)).passed
    with pytest.raises(UsageError, match="partials_sq"):
        compare("bound", y, ref, Setting(nranks=2, partials=True))


def test_mere_and_mare_are_reported_and_do_not_gate():
    value = torch.tensor([1e-6, 1.0], dtype=torch.float64)
    y = torch.tensor([2e-6, 1.0])
    judged = compare("allclose", y, Reference(value), Setting(rtol=0.0, atol=1e-3))
    assert judged.passed
    assert judged.metrics["mare"] > 0.5
    assert judged.metrics["cann_community"] == 0.0


@pytest.mark.parametrize(
    ("policy", "y", "ref", "text"),
    [
        ("exakt", torch.zeros(2), Reference(torch.zeros(2)), "did you mean 'exact'"),
        ("exact", torch.zeros(2), Reference(torch.zeros(3)), r"shape \(2,\), its golden \(3,\)"),
        ("exact", torch.zeros(2, dtype=torch.complex64), Reference(torch.zeros(2)), "cannot be compared"),
        ("bound", torch.zeros(2), Reference(torch.zeros(2)), "magnitude"),
        ("bias", torch.zeros(2), Reference(torch.zeros(2)), "same_precision"),
    ],
)
def test_misuse_is_named(policy, y, ref, text):
    with pytest.raises(UsageError, match=text):
        compare(policy, y, ref, Setting())


def test_outputs_without_elements_pass():
    empty = torch.empty((0, 4))
    assert compare("auto", empty, Reference(empty), Setting()).passed


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    place=st.tuples(st.integers(0, 9), st.integers(0, 6)),
    tile=st.tuples(st.integers(1, 12), st.integers(1, 12)),
)
def test_a_single_wrong_element_is_found_in_its_tile(place, tile):
    value = torch.arange(70.0).reshape(10, 7)
    y = value.clone()
    y[place] += 1
    judged = compare("exact", y, Reference(value), Setting(tile=tile))
    assert judged.worst_index == place
    assert judged.wrong_tiles == ((place[0] // tile[0], place[1] // tile[1]),)


def test_every_policy_rejects_a_wholly_wrong_result():
    a, b, ref = gemm(torch.float16)
    for policy in POLICIES:
        assert not compare(policy, in_order(a, b, range(4)), ref, Setting(nranks=8)).passed, policy


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool], ids=lambda dtype: str(dtype)
)
def test_integers_are_exact_under_every_policy(policy, dtype):
    right = torch.tensor([[0, 1, 0], [1, 1, 0]]).to(dtype)
    assert compare(policy, right, Reference(right.double()), Setting(tile=(1, 2))).passed
    wrong = right.clone()
    wrong[1, 2] = 1
    judged = compare(policy, wrong, Reference(right), Setting(tile=(1, 2), rtol=9.0, atol=9.0))
    assert (judged.policy, judged.passed, judged.wrong_elems) == ("exact", False, 1)
    assert (judged.worst_index, judged.got, judged.expected) == ((1, 2), 1, 0)
    assert (judged.tiles, judged.wrong_tiles) == (4, ((1, 1),))


def test_int64_is_not_rounded_on_the_way():
    """float64 holds no odd number beyond 2^53."""
    golden = torch.tensor([2**53, -(2**62)])
    assert compare("exact", golden.clone(), Reference(golden), Setting()).passed
    assert not compare("exact", golden + 1, Reference(golden), Setting()).passed


def test_a_golden_with_a_fraction_is_met_by_no_integer():
    assert not compare("exact", torch.tensor([1]), Reference(torch.tensor([1.5])), Setting()).passed
    assert not compare("exact", torch.tensor([0]), Reference(torch.tensor([math.nan])), Setting()).passed
