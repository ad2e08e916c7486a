"""Windows stream like rows: exactly once, on any ranks, through any resume, with the values of the model."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import BadSamples, Column, Dataset, Image, Shuffle, Tensor, Text, Workers
from penstock.codecs import decode_images
from penstock.engine.assembly import _decode
from penstock.engine.planning import _shared_images
from penstock.errors import InvalidInputError, NotFoundError, SampleError
from penstock.storage import open_store
from penstock.testing import CountingStore
from tests.engine.reading import few, machines, shuffles
from tests.engine.test_bad_samples import truncated
from tests.engine.test_resume import Stage, read_epoch, stages
from tests.servers import new_location

SCHEMA = {
    "episode": Column(Tensor("int64"), page_bytes=256),
    "step": Column(Tensor("int64"), page_bytes=256),
    "time": Tensor("float64"),
    "action": Column(Tensor("int64", (2,)), page_bytes=256),
    "raw": Column(Tensor("uint8", (5000,)), page_bytes=20_000),
    "image": Column(Image("png", (8, 8, 3)), page_bytes=2048),
    "note": Text(),
}
some = settings(few, max_examples=20)
OFFSETS = {"image": [-1, 0], "action": range(5), "raw": [0, 2]}


@dataclass(frozen=True)
class Robots:
    """A table of episodes, and its live rows in order."""

    ds: Dataset
    rows: npt.NDArray[np.int64]
    episode: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]

    def groups(self, rows: npt.NDArray[np.int64]) -> list[list[int]]:
        """Rows of each episode by step, given live rows by their number."""
        found: dict[int, list[int]] = {}
        for row in rows.tolist():
            found.setdefault(int(self.episode[row]), []).append(row)
        return [sorted(episode, key=lambda row: self.step[row]) for episode in found.values()]


def rows_of(numbers: npt.NDArray[np.int64], episode: Any, step: Any) -> dict[str, Any]:
    shade = (numbers % 251).astype(np.uint8)
    return {
        "episode": episode[numbers], "step": step[numbers], "time": step[numbers] * 0.1,
        "action": np.stack([numbers, step[numbers]], axis=1),
        "raw": np.repeat(shade[:, None], 5000, axis=1),
        "image": np.broadcast_to(shade[:, None, None, None], (len(numbers), 8, 8, 3)),
        "note": [f"row {n}" for n in numbers],
    }  # fmt: skip


@cache
def robots(form: str) -> Robots:
    """Ragged episodes: in order, or in any order in several fragments, some deleted."""
    random = np.random.default_rng(3)
    lengths = random.integers(1, 30, 18)
    episode = np.repeat(np.arange(18), lengths)
    step = np.concatenate([np.arange(length) for length in lengths])
    if form == "mixed":
        order = random.permutation(len(episode))
        episode, step = episode[order], step[order]
    numbers = np.arange(len(episode))
    ds = penstock.create(new_location("folder" if form == "folder" else "memory").uri, SCHEMA)
    for part in np.split(numbers, [] if form == "folder" else [40, 41, 150]):
        ds.append(rows_of(part, episode, step))
    gone = numbers[random.random(len(numbers)) < (0.1 if form != "folder" else 0)]
    if len(gone):
        ds.delete(positions=gone.tolist())
    ds.commit()
    return Robots(ds, np.setdiff1d(numbers, gone), episode, step)


def expected(table: Robots, rows: Any, stride: int, *, pad: bool) -> dict[int, list[int]]:
    """The rows from one before to four after each anchor, by anchor."""
    found: dict[int, list[int]] = {}
    for group in table.groups(rows):
        low, high = (0, len(group)) if pad else (1, len(group) - 4)
        for anchor in range(low, high, stride):
            found[group[anchor]] = [group[min(max(anchor + k, 0), len(group) - 1)] for k in range(-1, 5)]
    return found


def check_batch(batch: dict[str, Any], windows: dict[int, list[int]], step: Any, *, pad: bool) -> list[int]:
    """Check all values of a batch; returns the anchors of the windows that are no padding."""
    action, image, raw = (np.asarray(batch[name]) for name in ("action", "image", "raw"))
    anchors = action[:, 0, 0].tolist()
    drawn = np.array([windows[anchor] for anchor in anchors])
    assert np.array_equal(action[..., 0], drawn[:, 1:])
    assert np.array_equal(action[..., 1], step[drawn[:, 1:]])
    assert image.shape[1:] == (2, 8, 8, 3)
    assert (image == (drawn[:, :2] % 251)[:, :, None, None, None]).all()
    assert raw.shape[1:] == (2, 5000)
    assert (raw == (drawn[:, [1, 3]] % 251)[:, :, None]).all()
    assert batch["note"] == [f"row {anchor}" for anchor in anchors]
    if pad:
        repeated = np.diff(drawn, axis=1) == 0
        assert np.array_equal(np.asarray(batch["image_pad"])[:, 0], repeated[:, 0])
        assert np.array_equal(np.asarray(batch["action_pad"])[:, 1:], repeated[:, 1:])
    padding = np.asarray(batch["_pad"]) if "_pad" in batch else np.zeros(len(anchors), bool)
    return [anchor for anchor, padded in zip(anchors, padding.tolist(), strict=True) if not padded]


@given(
    st.sampled_from(["plain", "mixed", "folder"]), shuffles, st.lists(stages, max_size=3), machines,
    st.integers(1, 4), st.booleans(), st.sampled_from([slice(None), slice(10, 200), slice(None, None, 2)]),
)  # fmt: skip
@some
def test_every_window_once_through_ranks_and_resumes(
    form: str, shuffle: Shuffle | None, run: list[Stage], machine: dict[str, Any], stride: int, pad: bool, key: slice
) -> None:
    table = robots(form)
    windows = expected(table, table.rows[key], stride, pad=pad)
    view = table.ds[key].windows(
        stride=stride, within="episode", order_by="step", offsets=OFFSETS, ends="pad" if pad else "drop"
    )
    assert len(view) == len(windows)
    seen: list[int] = []
    read_epoch(
        view, run, machine, lambda batch: seen.extend(check_batch(batch, windows, table.step, pad=pad)), shuffle=shuffle
    )
    assert sorted(seen) == sorted(windows)


@pytest.mark.parametrize("form", ["folder"])
def test_worker_processes_build_the_same_windows(form: str) -> None:
    table = robots(form)
    view = table.ds.windows(within="episode", order_by="step", offsets=OFFSETS, ends="pad")
    windows = expected(table, table.rows, 1, pad=True)
    shuffle = Shuffle(block_bytes=40_000, lanes=4, spread=1)
    found = []
    for workers in (Workers(2, "thread"), Workers(4, "process")):
        with view.numpy(batch_size=16, shuffle=shuffle, num_workers=workers) as loader:
            found.append([check_batch(batch, windows, table.step, pad=True) for batch in loader])
            assert bool(loader.stats().processes) == (workers.type == "process")
    assert found[0] == found[1]


def test_samples_of_a_window_view_are_read_by_index() -> None:
    table = robots("mixed")
    view = table.ds.windows(within="episode", order_by="step", offsets=OFFSETS)
    windows = expected(table, table.rows, 1, pad=False)
    samples = [view[index] for index in range(len(view))]
    assert [int(sample["action"][0, 0]) for sample in samples] == list(windows)
    batch = {name: np.stack([sample[name] for sample in samples]) for name in ("action", "image", "raw")}
    check_batch(batch | {"note": [sample["note"] for sample in samples]}, windows, table.step, pad=False)
    assert [int(sample["action"][0, 0]) for sample in view[5:9]] == list(windows)[5:9]
    assert len(view[[3, 1]].select("action")) == 2
    assert view.schema.names == table.ds.schema.names
    assert view.schema["action"].kind == Tensor("int64", (5, 2))
    with pytest.raises(IndexError):
        view[len(view)]


def test_rows_of_windows_for_the_data_loader_of_torch() -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    table = robots("plain")
    view = table.ds.windows(within="episode", order_by="step", offsets=OFFSETS)
    windows = expected(table, table.rows, 1, pad=False)
    seen: list[int] = []
    for batch in torch_data.DataLoader(view.pytorch(), batch_size=8, shuffle=True):
        seen += check_batch(batch, windows, table.step, pad=False)
    assert sorted(seen) == sorted(windows)


def test_offsets_in_seconds_take_the_nearest_row_within_the_tolerance() -> None:
    table = robots("folder")
    by_time = table.ds.windows(within="episode", order_by="time", offsets_s={"action": [-0.2, 0.0, 0.1]})
    by_row = table.ds.windows(within="episode", order_by="step", offsets={"action": [-2, 0, 1]})
    assert len(by_time) == len(by_row)
    for chosen in (0, 7, len(by_row) - 1):
        assert np.array_equal(by_time[chosen]["action"], by_row[chosen]["action"])
    between = {"action": [-0.13]}
    with pytest.raises(InvalidInputError, match="no window fits"):
        table.ds.windows(within="episode", order_by="time", offsets_s=between)
    assert len(table.ds.windows(within="episode", order_by="time", offsets_s=between, tolerance_s=0.05))


@pytest.mark.parametrize("workers", [0, 2, Workers(4, "process")])
def test_a_window_with_a_bad_image_is_replaced_in_step(workers: int | Workers) -> None:
    made = penstock.create(new_location("folder").uri, {"n": Tensor("int64"), "p": Image("png", (8, 8, 3))})
    images = [np.full((8, 8, 3), k, np.uint8) for k in range(60)]
    made.append([{"n": k, "p": truncated(image) if k == 30 else image} for k, image in enumerate(images)])
    made.commit()
    view = made.windows(offsets={"p": [-1, 0], "n": [0, 3]})
    with view.numpy(batch_size=7, bad_samples=BadSamples(), num_workers=workers) as loader:
        flagged = {}
        for number, batch in enumerate(loader):
            assert (batch["p"][:, :, 0, 0, 0] == np.stack([batch["n"][:, 0] - 1, batch["n"][:, 0]], axis=1)).all()
            flagged.update({7 * number + place: True for place in np.flatnonzero(batch["_pad"]).tolist()})
        assert [bad.row_id for bad in loader.stats().bad_samples] == [30, 31]
    assert sorted(flagged) == [29, 30], "the windows of rows 30 and 31, which need the bad image"
    with view.numpy(batch_size=7, num_workers=workers) as loader, pytest.raises(SampleError):
        list(loader)


def test_windows_share_what_is_read_and_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache of decoded images that holds a small part of the table."""
    store = CountingStore(open_store("memory://"))
    made = penstock.create(
        store,
        {
            "episode": Tensor("int64"),
            "n": Tensor("int64"),
            "image": Column(Image("jpeg:80", (32, 32, 3)), page_bytes=16 << 10),
        },
    )
    noise = np.random.default_rng(0).integers(0, 256, (6000, 32, 32, 3), np.uint8)
    made.append({"episode": np.arange(6000) // 100, "n": np.arange(6000), "image": noise})
    made.commit()
    view = made.windows(within="episode", offsets={"image": [-1, 0], "n": range(16)})
    decoded: list[int] = []

    def counted(encoded: Any, *rest: Any, **options: Any) -> Any:
        decoded.append(len(encoded))
        return decode_images(encoded, *rest, **options)

    monkeypatch.setattr(_decode, "decode_images", counted)
    monkeypatch.setattr(_shared_images, "_CACHE_BYTES", 1 << 20)
    shuffle = Shuffle(block_bytes=256 << 10, lanes=4, spread=4)
    store.reset()
    epochs = 3
    with view.numpy(batch_size=32, shuffle=shuffle, num_workers=1) as loader:
        for _ in range(epochs):
            assert sum(len(batch["n"]) for batch in loader) == len(view)
        read = loader.stats().bytes
    assert sum(decoded) <= 1.5 * 6000 * epochs
    assert read <= 1.3 * made.summary().bytes * (epochs + 1), "the next epoch is prefetched"


def test_bad_calls_are_named() -> None:
    ds = robots("plain").ds
    with pytest.raises(InvalidInputError, match="needs length"):
        ds.windows()
    with pytest.raises(InvalidInputError, match=r"spans 500 rows.*longest group of 'episode' has 2\d"):
        ds.windows(500, within="episode")
    with pytest.raises(NotFoundError, match="nowhere"):
        ds.windows(4, within="nowhere")
    with pytest.raises(NotFoundError, match="offsets for 'nothing'"):
        ds.windows(offsets={"nothing": [0]})
    with pytest.raises(InvalidInputError, match="stride"):
        ds.windows(4, stride=0)
    with pytest.raises(InvalidInputError, match="whole numbers of rows"):
        ds.windows(offsets={"action": [0.5]})  # type: ignore[list-item]
    with pytest.raises(InvalidInputError, match="needs order_by"):
        ds.windows(offsets_s={"action": [0.5]})
    with pytest.raises(InvalidInputError, match="'action'"):
        ds.windows(4, within="action")


def test_windows_of_quarantined_rows_are_left_out() -> None:
    made = penstock.create("memory://", {"n": Tensor("int64"), "tokens": Tensor("int32", (None,))})
    made.append({"n": np.arange(30), "tokens": [np.full(3, n) for n in range(30)]})
    made.commit()
    made.quarantine(row_ids=[int(made.select("_row_id")[10]["_row_id"])], reason="blurred")
    windows = made.windows(offsets={"n": [0, 2]})
    assert [int(sample["n"][0]) for sample in windows] == [n for n in range(28) if n not in (8, 10)]
    packed = np.concatenate([batch["tokens"].reshape(-1) for batch in made.pack("tokens", 29).numpy(batch_size=1)])
    assert packed.tolist() == np.repeat([n for n in range(30) if n != 10], 3).tolist()
