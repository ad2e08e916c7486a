"""Packed sequences stream like rows: every token once, on any ranks, through any resume."""

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Shuffle, Tensor, Workers
from penstock.errors import InvalidInputError, NotFoundError
from tests.engine.reading import few, machines, shuffles
from tests.engine.test_resume import Stage, read_epoch, stages
from tests.servers import new_location

some = settings(few, max_examples=20)
EOS = 60_000
Documents = list[npt.NDArray[np.uint16]]


@cache
def corpus(kind: str) -> tuple[Dataset, Documents]:
    """Documents of distinct tokens, some empty and one long, in several fragments, some deleted."""
    random = np.random.default_rng(1)
    lengths = np.minimum(random.lognormal(3, 1, 400).astype(int), 250)
    lengths[[3, 77]] = 0
    lengths[40] = 900
    documents = np.split(np.arange(lengths.sum(), dtype=np.uint16), np.cumsum(lengths)[:-1])
    ds = penstock.create(
        new_location(kind).uri, {"n": Tensor("int64"), "tokens": Column(Tensor("uint16", (None,)), page_bytes=1024)}
    )
    for part in np.split(np.arange(len(documents)), [120, 121, 300]):
        ds.append({"n": part, "tokens": [documents[number] for number in part]})
    ds.delete(positions=[5, 6, 250])
    ds.commit()
    return ds, [document for number, document in enumerate(documents) if number not in (5, 6, 250)]


def pieces_of(batch: dict[str, Any]) -> list[npt.NDArray[np.uint16]]:
    """The pieces of all sequences that are no padding; checks that all columns agree on them."""
    found: list[npt.NDArray[np.uint16]] = []
    padding = batch.get("_pad", np.zeros(len(batch["tokens"]), bool))
    for index in np.flatnonzero(~np.asarray(padding)).tolist():
        tokens, segments, positions, ends = (
            np.asarray(batch[name])[index] for name in ("tokens", "segment_ids", "position_ids", "cu_seqlens")
        )
        assert ends[0] == 0
        bounds = np.unique(ends)
        for number, (start, end) in enumerate(pairwise(bounds.tolist())):
            assert (segments[start:end] == number + 1).all()
            assert (positions[start:end] == np.arange(end - start)).all()
            found.append(tokens[start:end])
        assert not segments[ends[-1] :].any()
    return found


def check_tokens(pieces: list[npt.NDArray[np.uint16]], documents: Documents, eos: int | None) -> None:
    """Every token of every document once; tokens are distinct, so a piece is a run of one document."""
    for piece in pieces:
        inside = piece[piece != EOS]
        assert (np.diff(inside.astype(int)) == 1).all()
        assert EOS not in piece[:-1], "an end of sequence ends its document"
    tokens = np.concatenate(pieces)
    assert np.array_equal(np.sort(tokens[tokens != EOS]), np.sort(np.concatenate(documents)))
    assert np.count_nonzero(tokens == EOS) == (0 if eos is None else len(documents))


@given(
    st.sampled_from(["memory", "folder"]), st.sampled_from(["concat", "fit"]), st.sampled_from([None, EOS]),
    st.sampled_from([16, 100, 333]), shuffles, st.lists(stages, max_size=3), machines,
)  # fmt: skip
@some
def test_every_token_once_through_ranks_and_resumes(
    kind: str, policy: Any, eos: int | None, length: int, shuffle: Shuffle | None, run: list[Stage], machine: Any
) -> None:
    ds, documents = corpus(kind)
    view = ds.pack("tokens", length=length, policy=policy, eos=eos)
    pieces: list[npt.NDArray[np.uint16]] = []

    def take(batch: dict[str, Any]) -> None:
        assert batch["tokens"].shape[1] == length
        pieces.extend(pieces_of(batch))

    read_epoch(view, run, machine, take, shuffle=shuffle)
    check_tokens(pieces, documents, eos)


@pytest.mark.parametrize("policy", ["concat", "fit"])
def test_worker_processes_build_the_same_sequences(policy: Any) -> None:
    view = corpus("folder")[0].pack("tokens", 64, policy, eos=EOS)
    found = []
    for workers in (Workers(2, "thread"), Workers(4, "process")):
        with view.numpy(batch_size=8, shuffle=Shuffle(block_bytes=4096, lanes=4), num_workers=workers) as loader:
            found.append({name: np.concatenate([batch[name] for batch in loader]) for name in view.schema.names[:1]})
            assert bool(loader.stats().processes) == (workers.type == "process")
    assert np.array_equal(found[0]["tokens"], found[1]["tokens"])


def test_fit_keeps_documents_whole() -> None:
    ds, documents = corpus("memory")
    pieces = pieces_of(ds.pack("tokens", length=300, policy="fit").to_numpy())
    whole = {piece.tobytes() for piece in pieces}
    assert all(document.tobytes() in whole for document in documents if 0 < len(document) <= 300)


def test_concat_is_the_stream_of_documents_in_table_order() -> None:
    ds, documents = corpus("memory")
    stream = np.concatenate(documents)
    view = ds.pack("tokens", length=128)
    assert len(view) == -(-len(stream) // 128)
    assert np.array_equal(view[3]["tokens"], stream[3 * 128 : 4 * 128])
    last = view[len(view) - 1]
    left = len(stream) % 128
    assert np.array_equal(last["tokens"][:left], stream[-left:])
    assert not last["segment_ids"][left:].any()
    assert len(view[5:8].select("tokens").to_numpy()["tokens"]) == 3


def test_a_filtered_view_is_packed_alone() -> None:
    ds, documents = corpus("memory")
    view = ds[100:150].pack("tokens", length=64, policy="fit", eos=EOS)
    check_tokens(pieces_of(view.to_numpy()), documents[100:150], EOS)


def test_bad_calls_are_named() -> None:
    ds, _ = corpus("memory")
    with pytest.raises(InvalidInputError, match="'n' holds int64"):
        ds.pack("n", length=8)
    with pytest.raises(NotFoundError, match="nothing"):
        ds.pack("nothing", length=8)
    with pytest.raises(InvalidInputError, match="length"):
        ds.pack("tokens", length=0)
    with pytest.raises(InvalidInputError, match="policy"):
        ds.pack("tokens", length=8, policy="best")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"eos=70000.*uint16"):
        ds.pack("tokens", length=8, eos=70_000)
    with pytest.raises(NotFoundError, match="no column 'n'"):
        ds.pack("tokens", length=8).select("n")
