"""Rows for torch's own DataLoader: random access, batched reads, every kind of worker."""

import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Subset, random_split

import penstock
from penstock import Boxes, Bytes, Column, Dataset, Image, Json, Tensor, Text
from penstock.errors import CorruptError, InvalidInputError, NotFoundError, PenstockWarning, SampleError
from penstock.storage import open_store
from penstock.table._pages import NarrowPages
from penstock.testing import CountingStore
from tests.adapters.transforms import doubled
from tests.servers import new_location

ROWS = 120
PAGE_ROWS = 10
WIDTH = 64

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def numbered(place: Any, rows: int = ROWS, **options: Any) -> Dataset:
    """A table of two columns in files of their own, ten rows to a page."""
    page = {"page_bytes": PAGE_ROWS * WIDTH * 4, "file_bytes": 3 * PAGE_ROWS * WIDTH * 4}
    schema = {"n": Tensor("int64"), "x": Column(Tensor("float32", (WIDTH,)), **page)}  # type: ignore[arg-type]
    ds = penstock.create(place, schema, **options)
    n = np.arange(rows)
    ds.append({"n": n, "x": np.repeat(n, WIDTH).reshape(rows, WIDTH).astype(np.float32)})
    ds.commit()
    return ds


@pytest.fixture(scope="module")
def ds() -> Dataset:
    return numbered("memory://")


def check(sample: dict[str, Any], number: int) -> None:
    assert sample["n"] == number
    assert torch.equal(sample["x"], torch.full((WIDTH,), float(number)))


def test_length_and_indexing_work_as_for_a_list(ds: Dataset) -> None:
    rows = ds.pytorch()
    assert len(rows) == ROWS
    for index in (0, 7, ROWS - 1, -1, -ROWS):
        check(rows[index], index % ROWS)
        check(rows[np.int64(index)], index % ROWS)  # type: ignore[index]
        check(rows[torch.tensor(index)], index % ROWS)  # type: ignore[index]
    for index in (ROWS, -ROWS - 1, 10**9):
        with pytest.raises(IndexError, match=f"no row {index}: there are {ROWS}"):
            rows[index]
    with pytest.raises(IndexError):
        rows.__getitems__([1, ROWS, 2])
    assert [int(sample["n"]) for sample in rows] == list(range(ROWS))  # type: ignore[attr-defined]


def test_samples_come_in_the_requested_order_with_repeats(ds: Dataset) -> None:
    asked = [5, 3, 3, 119, 0, -1, 64, 5]
    samples = ds.pytorch().__getitems__(asked)
    for sample, index in zip(samples, asked, strict=True):
        check(sample, index % ROWS)
    assert ds.pytorch().__getitems__([]) == []


def test_writing_to_a_sample_changes_no_other() -> None:
    table = penstock.create("memory://", {"n": int, "p": Image(), "b": Boxes(), "j": Json()})
    table.append([{"n": k, "p": np.full((2, 2, 3), k, np.uint8), "b": [[k] * 4], "j": {"k": k}} for k in range(3)])
    table.commit()
    samples = table.pytorch().__getitems__([1, 1, 2])
    for name in ("n", "p", "b"):
        samples[0][name] += 50
        assert samples[1][name].max() == 1
        assert samples[2][name].max() == 2
    samples[0]["j"]["k"] = 50
    assert samples[1]["j"] == {"k": 1}
    assert table.pytorch()[1]["p"].max() == 1


@pytest.mark.parametrize("key", [slice(10, 50), slice(None, None, -3), [4, 90, 4, 7], slice(0, 0)], ids=str)
def test_views_are_datasets_too(ds: Dataset, key: Any) -> None:
    expected = np.arange(ROWS)[key].tolist()
    rows = ds[key].select(["n", "_row_id"]).pytorch()
    assert len(rows) == len(expected)
    assert [int(sample["n"]) for sample in rows] == expected
    assert [int(sample["_row_id"]) for sample in rows] == expected
    assert set(ds[key].select(["x"]).pytorch().__getitems__([0])[0] if expected else {"x"}) == {"x"}


def drawn(sample: dict[str, Any], generator: np.random.Generator) -> tuple[int, float]:
    return int(sample["n"]), float(generator.random())


@pytest.mark.parametrize(
    "workers",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["here", "workers", "persistent workers"],
)
def test_random_values_differ_by_row_and_epoch_and_follow_torchs_seed(ds: Dataset, workers: dict[str, Any]) -> None:
    def epochs(seed: int) -> list[dict[int, float]]:
        torch.manual_seed(seed)
        loader = DataLoader(ds.pytorch(transform=drawn), 7, shuffle=True, **workers)
        return [
            {n: x for batch in loader for n, x in zip(batch[0].tolist(), batch[1].tolist(), strict=True)}
            for _ in range(4)
        ]

    first = epochs(3)
    assert all(sorted(epoch) == list(range(ROWS)) for epoch in first)
    values = {value for epoch in first for value in epoch.values()}
    assert len(values) == 4 * ROWS, "no row of no epoch has the value of another"
    assert epochs(3) == first
    assert values.isdisjoint(value for epoch in epochs(4) for value in epoch.values())


def test_random_values_of_samples_that_are_read_directly(ds: Dataset) -> None:
    rows = ds.pytorch(transform=drawn)
    torch.manual_seed(3)
    first = [*rows.__getitems__([4, 5, 4, -1]), rows[4]]
    assert [number for number, _ in first] == [4, 5, 4, ROWS - 1, 4]
    assert len({value for _, value in first}) == 5
    torch.manual_seed(3)
    assert [*rows.__getitems__([4, 5, 4, -1]), rows[4]] == first
    state = torch.get_rng_state()
    assert ds.pytorch(transform=doubled)[7]["n"] == 14
    assert torch.equal(torch.get_rng_state(), state), "a transform without a generator leaves torch's alone"


def test_standard_samplers_subsets_and_splits(ds: Dataset) -> None:
    rows = ds.pytorch()
    drawn = DataLoader(rows, batch_size=50, sampler=RandomSampler(rows, replacement=True, num_samples=200))
    assert sum(len(batch["n"]) for batch in drawn) == 200
    subset = DataLoader(Subset(rows, [9, 1, 1]), batch_size=3)
    assert [batch["n"].tolist() for batch in subset] == [[9, 1, 1]]
    parts = random_split(rows, [0.75, 0.25])
    assert sorted(int(part[k]["n"]) for part in parts for k in range(len(part))) == list(range(ROWS))
    share = DataLoader(rows, batch_size=7, sampler=DistributedSampler(rows, num_replicas=3, rank=1, shuffle=False))
    assert [n for batch in share for n in batch["n"].tolist()] == list(range(1, ROWS, 3))


def test_a_batch_costs_a_get_for_each_page_at_most() -> None:
    store = CountingStore(open_store("memory://"))
    ds = numbered(store)
    generator = np.random.default_rng(0)
    for size in (1, 8, 32, 64):
        rows = ds.select(["x"]).pytorch()  # which keeps no page yet
        store.reset()
        asked = generator.integers(0, ROWS, size).tolist()
        for sample, index in zip(rows.__getitems__(asked), asked, strict=True):
            assert sample["x"][0] == index
        pages = {index // PAGE_ROWS for index in asked}
        assert 0 < store.requests["get"] <= len(pages)


def test_pages_of_narrow_columns_are_fetched_once() -> None:
    """The labels and captions of a batch are few rows of many pages, and the next batch needs the same pages."""
    store = CountingStore(open_store("memory://"))
    schema = {"n": Column(int, page_bytes=800), "t": Column(Text(), page_bytes=2000), "x": Tensor("float32", (4096,))}
    table = penstock.create(store, schema)
    table.append({"n": np.arange(ROWS), "t": [f"row {n}" * 8 for n in range(ROWS)], "x": np.zeros((ROWS, 4096))})
    table.commit()
    rows = table.select(["n", "t"]).pytorch()
    store.reset()
    for start in range(0, ROWS, 40):
        rows.__getitems__(list(range(start, start + 40)))
    size = sum(info.size for info in store.list("data/"))
    assert 0 < store.bytes["get"] < size - ROWS * 4 * 4096
    store.reset()
    order = np.random.default_rng(0).permutation(ROWS).tolist()
    samples = rows.__getitems__(order)
    assert [int(sample["n"]) for sample in samples] == order
    assert [sample["t"] for sample in samples] == [f"row {n}" * 8 for n in order]
    assert not store.requests["get"]
    pickle.loads(pickle.dumps(rows)).__getitems__([1])  # a worker process starts without them


@pytest.mark.parametrize("kind", [Bytes(), Tensor("uint8", (80_000,))], ids=["variable", "fixed"])
def test_rows_in_pages_of_their_own_cost_their_bytes(kind: penstock.Kind) -> None:
    store = CountingStore(open_store("memory://"))
    table = penstock.create(store, {"n": int, "x": Column(kind, page_bytes=1)})
    values = np.random.default_rng(0).integers(0, 256, (ROWS, 80_000), np.uint8)
    table.append({"n": np.arange(ROWS), "x": [row.tobytes() for row in values] if kind == Bytes() else values})
    table.commit()
    rows = table.pytorch()
    store.reset()
    order = np.random.default_rng(1).permutation(ROWS)
    for start in range(0, ROWS, 8):
        for sample, row in zip(rows.__getitems__(order[start : start + 8].tolist()), order[start:], strict=False):
            assert np.asarray(sample["x"]).tobytes() == values[row].tobytes()
    assert store.bytes["get"] < 1.1 * values.nbytes


def test_the_cache_of_pages_is_bounded() -> None:
    store = open_store("memory://")
    table = penstock.create(store, {"t": Column(Text(), page_bytes=1000)})
    table.append({"t": [f"row {n}" * 10 for n in range(ROWS)]})
    table.commit()
    fragment = next(iter(table._reader.tree.fragments(table._reader.snapshot.nodes)))
    [file] = fragment.files_of(table.schema["t"].id)
    cache = NarrowPages(max_bytes=3000)
    for _ in range(2):
        for position in range(ROWS):
            [raw] = table._reader.raw_columns([table.schema["t"]], [np.array([position])], cache=cache)
            assert raw["t"].array is not None
            assert raw["t"].array.to_pylist() == [f"row {position}" * 10]
            assert 0 < sum(map(len, cache._pages.values())) <= 3000
    assert file.offsets[-1] - file.offsets[0] > 3000


def test_pages_that_are_kept_may_lie_between_those_that_are_fetched() -> None:
    """Rows in any order: some of their pages are known, and others are fetched together with those in between."""
    table = penstock.create("memory://", {"t": Column(Text(), page_bytes=300)})
    table.append({"t": [f"row {n}" * 10 for n in range(ROWS)]})
    table.commit()
    random = np.random.default_rng(0)
    for _ in range(30):
        cache = NarrowPages()
        for _ in range(8):
            rows = np.unique(random.integers(0, ROWS, 12))
            [raw] = table._reader.raw_columns([table.schema["t"]], [rows], cache=cache)
            assert raw["t"].array is not None
            assert raw["t"].array.to_pylist() == [f"row {row}" * 10 for row in rows]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_every_start_method_read_a_bucket_after_their_parent(method: str) -> None:
    place = new_location("s3")
    numbered(place.uri, storage_options=place.options)
    ds = penstock.load(place.uri, storage_options=place.options)
    assert ds[1]["n"] == 1
    rows = ds.pytorch(transform=doubled)
    check(ds.pytorch()[5], 5)
    loader = DataLoader(rows, batch_size=25, shuffle=True, num_workers=2, multiprocessing_context=method, timeout=240)
    numbers = []
    for batch in loader:
        numbers += batch["n"].tolist()
        assert torch.equal(batch["x"][:, 0] * 2, batch["n"].float())
    assert sorted(numbers) == list(range(0, 2 * ROWS, 2))
    assert ds[1]["n"] == 1


def test_a_worker_forked_while_threads_read_does_not_deadlock(tmp_path: Path) -> None:
    """A lock that another thread holds at the fork stays locked in the child."""
    ds = numbered(tmp_path / "t")
    stopping = threading.Event()

    def read_on() -> None:
        while not stopping.is_set():
            for _ in ds.pytorch(batch_size=16, num_workers=2):
                pass

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        for _ in range(5):
            loader = DataLoader(ds.pytorch(), batch_size=40, num_workers=2, timeout=240)
            assert [n for batch in loader for n in batch["n"].tolist()] == list(range(ROWS))
    finally:
        stopping.set()
        reader.join()


def test_a_pickled_dataset_is_small_and_reads(tmp_path: Path) -> None:
    rows = numbered(tmp_path / "t").select(["n"]).pytorch()
    pickled = pickle.dumps(rows)
    assert len(pickled) < 80_000
    assert pickle.loads(pickled)[7] == {"n": 7}


def test_a_bad_row_is_named() -> None:
    good = penstock.create("memory://", {"p": Image("png")})
    good.append({"p": [np.zeros((2, 2, 3), np.uint8)] * 3 + [b"\x89PNG\r\n\x1a\n and then nothing"]})
    good.commit()
    rows = good.pytorch()
    assert rows[2]["p"].shape == (2, 2, 3)
    with pytest.raises(SampleError, match="column 'p'") as caught:
        rows.__getitems__([0, 3])
    assert caught.value.__notes__ == ["in row 3 of the table"]
    assert good.pytorch(decode=False)[3]["p"].endswith(b"nothing")


def test_a_damaged_page_is_corruption_and_other_rows_are_read(tmp_path: Path) -> None:
    ds = numbered(tmp_path / "t")
    [path] = (path for path in (tmp_path / "t" / "data").iterdir() if path.stat().st_size < 5000)
    path.write_bytes(path.read_bytes()[:-1500] + bytes(1500))
    with pytest.raises(CorruptError):
        ds.pytorch()[0]
    assert ds.select(["x"]).pytorch()[0]["x"].shape == (WIDTH,)
    path.unlink()
    with pytest.raises((CorruptError, NotFoundError)):
        penstock.load(tmp_path / "t").pytorch()[0]


def test_a_damaged_page_of_a_light_column_affects_no_other_page(tmp_path: Path) -> None:
    ds = penstock.create(tmp_path / "t", {"n": Column(Tensor("int64"), page_bytes=128)})
    ds.append({"n": np.arange(64)})
    ds.commit()
    [path] = (tmp_path / "t" / "data").iterdir()
    data = bytearray(path.read_bytes())
    at = data.rindex((63).to_bytes(8, "little"))
    data[at] ^= 1
    path.write_bytes(data)
    rows = penstock.load(tmp_path / "t").pytorch()
    assert rows[0]["n"] == 0
    with pytest.raises(CorruptError):
        rows[63]
    assert [int(sample["n"]) for sample in rows.__getitems__([7, 3])] == [7, 3]


def test_several_ranks_are_warned_once(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            ds.pytorch()
    assert [warning.category for warning in caught] == [PenstockWarning]
    assert "DistributedSampler" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_default_collate_stacks_values() -> None:
    table = penstock.create("memory://", {"t": Text(), "m": Column(Tensor("int32"), nullable=True)})
    table.append({"t": ["a", "b"], "m": [1, None]})
    table.commit()
    [batch] = DataLoader(table.pytorch(), batch_size=2)
    assert batch["t"] == ["a", "b"]
    assert batch["m"].tolist() == [1, 0]
    assert batch["m_mask"].tolist() == [True, False]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_values_of_different_shapes_are_an_error_that_names_the_column_and_the_remedies(num_workers: int) -> None:
    table = penstock.create("memory://", {"n": int, "photo": Column(Image("png"), nullable=True)})
    sizes = [(2, 3), (4, 5), (2, 3)]
    table.append({"n": range(3), "photo": [np.zeros((*size, 3), np.uint8) for size in sizes]})
    table.commit()
    with pytest.raises(InvalidInputError, match="column 'photo'") as caught:
        list(DataLoader(table.pytorch(), batch_size=3, num_workers=num_workers))
    for word in ("(2, 3, 3) and (4, 5, 3)", "image_size", "transform", "collate_fn"):
        assert word in str(caught.value)
    [batch] = DataLoader(table.pytorch(image_size=4), batch_size=3)
    assert type(batch) is dict
    assert batch["photo"].shape == (3, 4, 4, 3)
    [batch] = DataLoader(table.pytorch(), batch_size=3, collate_fn=list)
    assert [tuple(sample["photo"].shape[:2]) for sample in batch] == sizes
    with pytest.raises(InvalidInputError, match="column 'photo'"):  # of a transform's own dictionary too
        list(DataLoader(table.pytorch(transform=lambda sample: {**sample, "k": 1}), batch_size=3))
    table.append({"n": [3], "photo": [None]})
    table.commit()
    with pytest.raises(InvalidInputError, match=r"column 'photo'.*NoneType"):
        list(DataLoader(table[2:].pytorch(), batch_size=2))
