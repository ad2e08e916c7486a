"""Windows of videos: each has the frames of its rows, from the video in the first row of its group."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import BadSamples, Column, Dataset, Link, Shuffle, Tensor, Video, Workers
from penstock.codecs import _video_frames, decode_video
from penstock.errors import SampleError
from penstock.format.kinds import Linked
from penstock.storage import open_store
from penstock.table import _encode
from penstock.testing import CountingStore
from tests.codecs.test_video import encoded
from tests.engine.reading import few, machines, shuffles
from tests.engine.test_resume import Stage, read_epoch, stages
from tests.servers import new_location

SCHEMA = {
    "episode": Tensor("int64"),
    "step": Tensor("int64"),
    "n": Tensor("int64"),
    "raw": Column(Tensor("uint8", (5000,)), page_bytes=20_000),
    "video": Column(Video(), nullable=True, page_bytes=4096),
}
LENGTHS = (9, 1, 14, 30, 6, 22)
OFFSETS = {"video": [0, -1, 2], "raw": [1], "n": range(3)}
some = settings(few, max_examples=15)


@cache
def video(frames: int, seed: int) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (frames, 16, 16, 3), np.uint8)
    return encoded(noise, ("mp4", "libx264", "yuv420p") if seed % 2 else ("matroska", "ffv1", "bgr0"))


@dataclass(frozen=True)
class Episodes:
    """A table of episodes, and the frame of each of its rows."""

    ds: Dataset
    episode: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    frames: npt.NDArray[np.uint8]

    def check_batch(self, batch: dict[str, Any]) -> list[int]:
        """Check the values of a batch; returns the anchors that are no padding."""
        anchors = np.asarray(batch["n"])[:, 0]
        steps = self.step[anchors][:, None] + [0, -1, 2]
        last = np.array(LENGTHS)[self.episode[anchors]][:, None] - 1
        by_place = {(int(e), int(s)): row for row, (e, s) in enumerate(zip(self.episode, self.step, strict=True))}
        for found, anchor, wanted in zip(batch["video"], anchors, np.clip(steps, 0, last), strict=True):
            rows = [by_place[int(self.episode[anchor]), step] for step in wanted.tolist()]
            assert np.array_equal(np.asarray(found), self.frames[rows])
        assert batch["raw"].shape[1:] == (1, 5000)
        assert np.array_equal(batch["raw"][:, 0, 0], batch["n"][:, 1])
        if "video_pad" in batch:
            assert np.array_equal(np.asarray(batch["video_pad"]), (steps < 0) | (steps > last))
        padding = np.asarray(batch["_pad"]) if "_pad" in batch else np.zeros(len(anchors), bool)
        return [int(anchor) for anchor in anchors[~padding]]


@cache
def episodes(form: str) -> Episodes:
    """Episodes in order, or their rows in any order in several fragments."""
    random = np.random.default_rng(1)
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    step = np.concatenate([np.arange(length) for length in LENGTHS])
    if form == "mixed":
        order = random.permutation(len(episode))
        episode, step = episode[order], step[order]
    videos = [video(length, seed) for seed, length in enumerate(LENGTHS)]
    decoded = [decode_video(data)[0] for data in videos]
    rows = [
        {"episode": e, "step": s, "n": n, "raw": np.full(5000, n, np.uint8), "video": None if s else videos[e]}
        for n, (e, s) in enumerate(zip(episode.tolist(), step.tolist(), strict=True))
    ]
    ds = penstock.create(new_location("folder" if form == "folder" else "memory").uri, SCHEMA)
    for part in (rows[:31], rows[31:]) if form == "mixed" else (rows,):
        ds.append(part)
    ds.commit()
    return Episodes(ds, episode, step, np.stack([decoded[e][s] for e, s in zip(episode, step, strict=True)]))


@given(st.sampled_from(["plain", "mixed", "folder"]), shuffles, st.lists(stages, max_size=2), machines, st.booleans())
@some
def test_every_window_once_with_the_frames_of_its_rows(
    form: str, shuffle: Shuffle | None, run: list[Stage], machine: dict[str, Any], pad: bool
) -> None:
    table = episodes(form)
    view = table.ds.windows(within="episode", order_by="step", offsets=OFFSETS, ends="pad" if pad else "drop")
    expected = [
        row
        for row, (episode, step) in enumerate(zip(table.episode, table.step, strict=True))
        if pad or 1 <= step < LENGTHS[episode] - 2
    ]
    seen: list[int] = []
    read_epoch(view, run, machine, lambda batch: seen.extend(table.check_batch(batch)), shuffle=shuffle)
    assert sorted(seen) == expected


def test_worker_processes_decode_the_same_frames() -> None:
    table = episodes("folder")
    view = table.ds.windows(within="episode", order_by="step", offsets=OFFSETS, ends="pad")
    found = []
    for workers in (Workers(0), Workers(4, "process")):
        with view.numpy(batch_size=16, shuffle=True, num_workers=workers) as loader:
            found.append([table.check_batch(batch) for batch in loader])
            assert bool(loader.stats().processes) == (workers.type == "process")
    assert found[0] == found[1]


def test_samples_by_index_lengths_and_times() -> None:
    table = episodes("plain")
    view = table.ds.windows(4, within="episode", order_by="step")
    assert view.schema["video"].kind == Tensor("uint8", (4, None, None, 3))
    sample = view[7]
    assert np.array_equal(sample["video"], table.frames[sample["n"]])
    by_time = table.ds.windows(within="episode", order_by="step", offsets_s={"video": [-1.0, 0.0], "n": [-1.0, 0.0]})
    sample = by_time[7]
    assert np.array_equal(sample["video"], table.frames[sample["n"]])
    only = table.ds.select("video").windows(2, within="episode", order_by="step")
    assert len(next(iter(only.numpy(batch_size=len(only))))["video"]) == len(only)


def test_videos_that_are_not_decoded_come_whole() -> None:
    table = episodes("plain")
    view = table.ds.windows(within="episode", order_by="step", offsets=OFFSETS)
    for choice, wanted in ((False, lambda data: data), (len, len)):
        for batch in view.numpy(batch_size=20, decode={"video": choice}):
            groups = table.episode[batch["n"][:, 0]].tolist()
            assert batch["video"] == [wanted(video(LENGTHS[group], group)) for group in groups]


def test_a_mixture_of_windows_of_videos() -> None:
    table = episodes("mixed")
    view = table.ds.windows(within="episode", order_by="step", offsets=OFFSETS, ends="pad")
    mixture = penstock.mix({"late": view[40:], "early": view[:40]}, weights={"late": 1, "early": 1}, stop=60)
    seen = [anchor for batch in mixture.numpy(batch_size=7, shuffle=True) for anchor in table.check_batch(batch)]
    assert len(set(seen)) == len(seen) == 60


def test_frames_of_one_size_are_padded_to_a_tensor() -> None:
    table = episodes("plain")
    view = table.ds.windows(within="episode", order_by="step", offsets=OFFSETS)
    batch = next(iter(view.numpy(batch_size=8, collate_fn="pad")))
    assert batch["video"].shape == (8, 3, 16, 16, 3)
    table.check_batch(batch)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[list[str]]:
    """Calls of a function in this thread; loaders of other tests may still end in theirs."""
    calls: list[str] = []
    function, here = getattr(_video_frames, name), get_ident()

    def call(*given: Any) -> Any:
        if get_ident() == here:
            calls.append(name)
        return function(*given)

    with monkeypatch.context() as patch:
        patch.setattr(_video_frames, name, call)
        yield calls


def test_a_window_opens_its_video_once_and_seeks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    view = episodes("plain").ds.windows(within="episode", order_by="step", offsets=OFFSETS)
    with counted(monkeypatch, "open_video_stream") as opened, counted(monkeypatch, "_decode_forward") as sought:
        batches = list(view.numpy(batch_size=8, shuffle=True, num_workers=0))
    assert len(opened) == len(sought) == sum(len(batch["n"]) for batch in batches) == len(view)


def test_only_the_first_row_of_a_group_is_read_for_its_video() -> None:
    """Every row has the same video, in a page of its own."""
    store = CountingStore(open_store("memory://"))
    whole = video(22, 3)
    schema = {"episode": Tensor("int64"), "n": Tensor("int64"), "video": Column(Video(), nullable=True, page_bytes=1)}
    ds = penstock.create(store, schema)
    ds.append([{"episode": k // 22, "n": k, "video": whole} for k in range(66)])
    ds.commit()
    view = ds.windows(within="episode", offsets={"video": [-1, 0], "n": [0]})
    store.reset()
    with view.numpy(batch_size=8, shuffle=True, drop_last=False, num_workers=0) as loader:
        assert sum(len(batch["n"]) for batch in loader) == len(view)
        assert loader.stats().bytes < 2 * 4 * len(whole), "of 66 videos, two epochs at most"


@pytest.mark.parametrize("form", ["blobs", "links"])
def test_videos_in_objects_of_their_own(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of an episode links to its video, or the first row has it."""
    monkeypatch.setattr(_encode, "MAX_INLINE_BYTES", 100)
    kind = Video() if form == "blobs" else Linked(Video())
    schema = {"episode": Tensor("int64"), "video": Column(kind, nullable=True)}
    ds = penstock.create(new_location("folder").uri, schema, links=True)
    lengths = (9, 14)
    for episode, length in enumerate(lengths):
        path = tmp_path / f"{episode}.video"
        path.write_bytes(video(length, episode))
        values: list[Any] = [Link(str(path))] * length
        if form == "blobs":
            values = [path.read_bytes(), *[None] * (length - 1)]
        ds.append([{"episode": episode, "video": value} for value in values])
    ds.commit()
    view = ds.windows(within="episode", offsets={"video": [-1, 0]}, ends="pad")
    wanted = [decode_video(video(length, episode))[0] for episode, length in enumerate(lengths)]
    expected = [frames[[max(0, step - 1), step]] for frames in wanted for step in range(len(frames))]
    batches = list(view.numpy(batch_size=5))
    assert np.array_equal(np.stack([value for batch in batches for value in batch["video"]]), expected)
    assert np.array_equal(view[10]["video"], expected[10])


@pytest.mark.parametrize("workers", [0, 2, Workers(4, "process")])
def test_bad_videos_are_replaced_or_raise(workers: int | Workers) -> None:
    ds = penstock.create(new_location("folder").uri, {**SCHEMA, "raw": Tensor("uint8")})
    videos = [video(10, 0), video(9, 1), None, video(10, 3)[:900], video(10, 4), video(12, 5), video(13, 6)]
    ds.append(
        [
            {"episode": e, "step": s, "n": 10 * e + s, "raw": 0, "video": None if s else videos[e]}
            for e in range(len(videos))
            for s in range(10)
        ]
    )
    ds.commit()
    view = ds.windows(within="episode", order_by="step", offsets={"video": [-1, 0], "n": [0]})
    with view.numpy(batch_size=7, shuffle=True, bad_samples=BadSamples(), num_workers=workers) as loader:
        good = [n for batch in loader for n, bad in zip(batch["n"][:, 0], batch["_pad"], strict=True) if not bad]
        reasons = {bad.row_id: bad.reason for bad in loader.stats().bad_samples}
    assert sorted(good) == [*range(1, 10), *range(41, 50)]
    assert sorted(reasons) == [row for row in (*range(11, 40), *range(51, 70)) if row % 10]
    assert "the group episode = 1 of 10 rows needs a video with one frame for each row in column 'video'" in reasons[11]
    assert "it has 9 frames, and 10 are needed" in reasons[11]
    assert "its first row has no video" in reasons[21]
    assert "cannot decode video, 900 bytes" in reasons[31]
    assert "the group episode = 5 of 10 rows" in reasons[51]
    assert "it has 12 frames, and 10 are needed" in reasons[51]
    assert "it has 13 frames, and 10 are needed" in reasons[61]
    with view.numpy(batch_size=7, num_workers=workers) as loader, pytest.raises(SampleError, match="has 9 frames"):
        list(loader)
    with pytest.raises(SampleError, match=r"episode = 5 of 10 rows.*it has 12 frames, and 10 are needed"):
        view[5 * 9]


@pytest.mark.parametrize("leave_out", ["delete", "filter", "slice"])
def test_a_group_that_lacks_rows_of_its_video_is_bad(leave_out: str) -> None:
    """The frames of its rows are no longer known."""
    ds = penstock.create("memory://", {"episode": Tensor("int64"), "n": Tensor("int64"), "video": SCHEMA["video"]})
    ds.append([{"episode": 0, "n": n, "video": video(10, 1)} for n in range(10)])
    ds.commit()
    if leave_out == "delete":
        ds.delete(np.arange(10) == 4)
        ds.commit()
    rows = {"delete": ds, "filter": ds.where("n <> 4"), "slice": ds[1:]}[leave_out]
    view = rows.windows(within="episode", offsets={"video": [0], "n": [0]})
    with pytest.raises(SampleError, match=r"episode = 0 of 9 rows.*it has 10 frames, and 9 are needed"):
        next(iter(view.numpy(batch_size=2)))


def test_without_groups_the_video_has_a_frame_for_each_row_of_the_view() -> None:
    ds = penstock.create("memory://", {"n": Tensor("int64"), "video": SCHEMA["video"]})
    ds.append([{"n": n, "video": video(10, 1)} for n in range(9)])
    ds.commit()
    with pytest.raises(SampleError, match=r"the view of 9 rows needs a video with one frame for each row.*10 frames"):
        ds.windows(2)[0]
