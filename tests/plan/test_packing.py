"""Packing: every token once, full sequences in "concat", whole documents and few free places in "fit"."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.plan import Packing, pack_concat, pack_fit
from penstock.plan.samples._packing import _POOL_SEQUENCES, Int64Array

documents = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 90)), max_size=80)
"""Tokens of each document."""
lengths_of_sequences = st.integers(1, 40)


def tokens(packing: Packing) -> list[tuple[int, int]]:
    """Every token as (document, index), in the order of the sequences."""
    return [
        (document, start + index)
        for document, start, count in zip(packing.documents, packing.starts, packing.lengths, strict=True)
        for index in range(count)
    ]


def filled(packing: Packing) -> Int64Array:
    """The places filled of each sequence."""
    ends = np.concatenate([[0], np.cumsum(packing.lengths)])[packing.offsets]
    return np.diff(ends)


def check(packing: Packing, found: Int64Array, length: int) -> None:
    """What holds for every policy."""
    assert packing.length == length
    assert packing.offsets.tolist()[:1] == [0]
    assert packing.offsets[-1] == len(packing.documents) == len(packing.starts) == len(packing.lengths)
    assert (np.diff(packing.offsets) > 0).all(), "no sequence is empty"
    assert packing.sequences == len(packing.offsets) - 1
    assert all(array.dtype == np.int64 for array in (packing.offsets, packing.documents, packing.starts))
    assert (packing.lengths >= 1).all()
    assert (filled(packing) <= length).all()
    everything = [(document, token) for document, count in enumerate(found.tolist()) for token in range(count)]
    assert sorted(tokens(packing)) == everything, "every token exactly once"
    for first, end in zip(packing.offsets[:-1], packing.offsets[1:], strict=True):
        pieces = list(zip(packing.documents[first:end], packing.starts[first:end], strict=True))
        assert pieces == sorted(pieces), "pieces are in document order"


@given(documents, lengths_of_sequences)
@example([], 4)
@example([0, 0], 4)
@example([4, 0, 4], 4)
@example([0, 13, 0], 4)
@settings(deadline=None)
def test_concat_cuts_one_stream_of_documents(found: list[int], length: int) -> None:
    counts = np.array(found, np.int64)
    packing = pack_concat(counts, length=length)
    check(packing, counts, length)
    assert tokens(packing) == sorted(tokens(packing)), "documents are in order"
    assert (filled(packing)[:-1] == length).all(), "only the last sequence has free places"


@given(documents, lengths_of_sequences)
@example([], 4)
@example([0, 0], 4)
@example([3, 3, 1, 9], 4)
@settings(deadline=None)
def test_fit_keeps_documents_whole(found: list[int], length: int) -> None:
    counts = np.array(found, np.int64)
    packing = pack_fit(counts, length=length)
    check(packing, counts, length)
    assert (packing.starts % length == 0).all(), "a document is cut only where a sequence is full"
    rest = counts[packing.documents] - packing.starts
    assert (packing.lengths == np.minimum(rest, length)).all()
    firsts = packing.offsets[:-1]
    order = list(zip(packing.documents[firsts], packing.starts[firsts], strict=True))
    assert order == sorted(order), "sequences are ordered by their first piece"


@given(st.integers(0, 2**32), st.integers(8, 200), st.integers(0, 30_000))
@settings(deadline=None, max_examples=30)
def test_documents_of_a_sequence_are_near_each_other(seed: int, length: int, count: int) -> None:
    found = np.random.default_rng(seed).integers(0, 2 * length, count)
    packing = pack_fit(found, length=length)
    ends = np.cumsum(found)
    pool = _POOL_SEQUENCES * length
    for first, end in zip(packing.offsets[:-1], packing.offsets[1:] - 1, strict=True):
        begin = ends[packing.documents[first]] - found[packing.documents[first]] + packing.starts[first]
        last = ends[packing.documents[end]] - found[packing.documents[end]] + packing.starts[end]
        assert last - begin <= pool + length


@pytest.mark.parametrize(("mean", "length"), [(300, 4096), (800, 4096), (1500, 4096), (200, 2048), (20, 2048)])
@pytest.mark.parametrize("sigma", [0.5, 0.8, 1.2, 1.8])
def test_fit_fills_nearly_all_places_with_log_normal_documents(mean: int, length: int, sigma: float) -> None:
    rng = np.random.default_rng(7)
    drawn = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, 3000 * length // mean // 10)
    found = np.maximum(1, drawn).astype(np.int64)
    packing = pack_fit(found, length=length)
    assert found.sum() >= 0.97 * packing.sequences * length


@given(st.integers(0, 2**32), st.integers(10, 200))
@settings(deadline=None, max_examples=30)
def test_fit_is_near_the_optimum_where_documents_do_not_fit_together(seed: int, length: int) -> None:
    """Two documents of more than half a sequence never share one; small ones fill the rest."""
    rng = np.random.default_rng(seed)
    large = rng.integers(length // 2 + 1, length + 1, 300)
    packing = pack_fit(large, length=length)
    assert packing.sequences == len(large)
    mixed = rng.permutation(np.concatenate([large, rng.integers(1, max(2, length // 8), 2000)]))
    optimum = max(len(large), -(-int(mixed.sum()) // length))
    pools = mixed.sum() / (_POOL_SEQUENCES * length) + 1
    assert pack_fit(mixed, length=length).sequences <= 1.12 * optimum + pools


def test_packing_is_deterministic() -> None:
    found = np.random.default_rng(3).integers(0, 5000, 5000)
    for pack in (pack_concat, pack_fit):
        one, other = pack(found, length=1024), pack(found, length=1024)
        for name in ("offsets", "documents", "starts", "lengths"):
            assert (getattr(one, name) == getattr(other, name)).all()
