"""Windows, packed sequences, weights, filters and mixtures compose, with every guarantee of the loader."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Shuffle, Workers
from penstock.errors import InvalidInputError
from tests.engine.reading import machines, shuffles
from tests.engine.test_packed import corpus, pieces_of
from tests.engine.test_resume import Stage, read_epoch, stages
from tests.engine.test_windows import OFFSETS, check_batch, expected, robots, some

SHUFFLE = Shuffle(block_bytes=40_000, lanes=4, spread=1)
fewest = settings(some, max_examples=10)


def numbers_of(batch: dict[str, Any]) -> list[tuple[int, int]]:
    """Source and row of each sample that is no padding."""
    padding = np.asarray(batch["_pad"]) if "_pad" in batch else np.zeros(len(batch["_source"]), bool)
    rows = np.asarray(batch["action"])[:, 0, 0]
    return [
        (int(source), int(row))
        for source, row, padded in zip(np.asarray(batch["_source"]), rows, padding, strict=True)
        if not padded
    ]


@given(shuffles, st.lists(stages, max_size=3), machines, st.sampled_from(["mixed", "single"]))
@fewest
def test_a_mixture_of_windows_of_filtered_views_reads_each_window_once(
    shuffle: Shuffle | None, run: list[Stage], machine: dict[str, Any], per_batch: Any
) -> None:
    plain, mixed = robots("plain"), robots("mixed")
    keep = pc.field("episode") < 12
    options: dict[str, Any] = {"within": "episode", "order_by": "step", "offsets": OFFSETS}
    views = {"a": plain.ds[keep].windows(**options), "b": mixed.ds[keep].windows(**options)}
    windows = [expected(table, table.rows[table.episode[table.rows] < 12], 1, pad=False) for table in (plain, mixed)]
    assert [len(view) for view in views.values()] == list(map(len, windows))
    mixture = penstock.mix(views, weights={"a": 2, "b": 1}, stop="all", per_batch=per_batch)
    seen: list[tuple[int, int]] = []

    def take(batch: dict[str, Any]) -> None:
        for source, table in enumerate((plain, mixed)):
            mine = np.asarray(batch["_source"]) == source
            part = {
                name: [value for value, chosen in zip(values, mine, strict=True) if chosen]
                if isinstance(values, list)
                else values[mine]
                for name, values in batch.items()
            }
            if mine.any():
                check_batch(part, windows[source], table.step, pad=False)
        seen.extend(numbers_of(batch))

    size = run[0].batch_size if run and per_batch == "single" else None
    read_epoch(mixture, run, machine, take, shuffle=shuffle, batch_size=size)
    counts = Counter(seen)
    for source, known in enumerate(windows):
        found = {row: count for (number, row), count in counts.items() if number == source}
        assert found.keys() == known.keys(), "both have been read at least once"
        assert max(found.values()) - min(found.values()) <= 1, "a source ends an epoch before it begins the next one"


@pytest.mark.parametrize("workers", [0, 2, Workers(4, "process")])
def test_a_mixture_of_packed_corpora(workers: int | Workers) -> None:
    ds, documents = corpus("folder")
    halves = {"left": ds[:200].pack("tokens", 64, "fit"), "right": ds[200:].pack("tokens", 64, "concat")}
    mixture = penstock.mix(halves, weights={"left": 1, "right": 3}, stop="all", columns=["tokens", "segment_ids"])
    tokens: list[int] = []
    with mixture.numpy(batch_size=8, shuffle=SHUFFLE, num_workers=workers) as loader:
        for batch in loader:
            tokens += batch["tokens"].reshape(-1).tolist()
    assert set(np.concatenate(documents).tolist()) <= set(tokens)


@pytest.mark.parametrize("workers", [0, 2, Workers(4, "process")])
def test_windows_are_drawn_by_the_weight_of_their_anchor(workers: int | Workers) -> None:
    table = robots("folder")
    view = table.ds.windows(within="episode", order_by="step", offsets=OFFSETS)
    anchors = np.array(list(expected(table, table.rows, 1, pad=False)))
    weights = (table.step[anchors] == 3).astype(float)
    windows = expected(table, table.rows, 1, pad=False)
    with view.weighted(weights, rows=100).numpy(batch_size=16, shuffle=SHUFFLE, num_workers=workers) as loader:
        for _ in range(2):
            drawn = [row for batch in loader for row in check_batch(batch, windows, table.step, pad=False)]
            assert len(drawn) == 100
            assert set(drawn) <= set(anchors[weights > 0].tolist())
    with view.balanced("episode", rows=500).numpy(batch_size=16, num_workers=0) as loader:
        drawn = [row for batch in loader for row in check_batch(batch, windows, table.step, pad=False)]
    counts = Counter(table.episode[drawn].tolist())
    assert max(counts.values()) < 3 * min(counts.values()), "episodes of any length come equally often"


def test_packed_sequences_are_drawn_by_an_array() -> None:
    view = corpus("memory")[0].pack("tokens", 64)
    weights = np.zeros(len(view))
    weights[[3, 5]] = 1
    pieces = [piece for batch in view.weighted(weights, rows=20).numpy(batch_size=4) for piece in pieces_of(batch)]
    allowed = {token for index in (3, 5) for token in view[index]["tokens"].tolist()}
    assert {token for piece in pieces for token in piece.tolist()} == allowed
    with pytest.raises(InvalidInputError, match="no column weights it"):
        view.weighted("n").numpy()
