"""What comes out of a loader is what is in the table, for every kind of column."""

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import av
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import torch

import penstock
from penstock import (
    Audio,
    Boxes,
    Bytes,
    Column,
    Dataset,
    DeviceOptions,
    Embedding,
    Image,
    Json,
    Label,
    Link,
    Linked,
    List,
    Mask,
    Points,
    Shuffle,
    Struct,
    Tensor,
    Text,
    Video,
)
from penstock.errors import SampleError
from penstock.storage import open_store
from tests.servers import new_location

ROWS = 37
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
)  # fmt: skip
WAYS = (
    {"shuffle": False},
    {"shuffle": Shuffle(block_bytes=1000, lanes=3)},
    {"shuffle": True, "num_workers": 0, "memory_budget": 1 << 20},
)


def made(schema: dict[str, Any], rows: Sequence[dict[str, Any]], **options: Any) -> Dataset:
    """A table of two fragments, each row with its number."""
    ds = penstock.create("memory://", {"n": Column(Tensor("int64"), page_bytes=64), **schema}, **options)
    numbered = [{"n": number, **row} for number, row in enumerate(rows)]
    ds.append(numbered[: len(rows) // 2])
    ds.append(numbered[len(rows) // 2 :])
    ds.commit()
    return ds


def column(ds: Dataset, name: str, **options: Any) -> dict[int, Any]:
    """A column's values by the number of their row, over all batches, whatever these hold them in."""
    found: dict[int, Any] = {}
    for batch in ds.select(["n", name]).pytorch(**{"batch_size": 8, **options}):
        values = batch[name]
        for number, value in zip(batch["n"].tolist(), values.unbind() if _nested(values) else values, strict=True):
            assert number not in found
            found[number] = value
    assert sorted(found) == list(range(len(ds)))
    return found


def _nested(values: Any) -> bool:
    return isinstance(values, torch.Tensor) and values.is_nested


def encoded(image: npt.NDArray[Any], kind: str = "png") -> bytes:
    from penstock.codecs import ImageCodec

    return ImageCodec.parse(kind).encode(image)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("shape", [(), (3, 2)], ids=str)
def test_tensors_of_every_dtype(shape: tuple[int, ...], way: dict[str, Any]) -> None:
    generator = np.random.default_rng(0)
    values = {}
    for dtype in DTYPES:
        plain = generator.integers(0, 2 if dtype == "bool" else 8, (ROWS, *shape))
        values[dtype] = plain.astype(getattr(ml_dtypes, dtype, None) or dtype)
    values["uint16"] = generator.integers(0, 1 << 16, (ROWS, *shape)).astype(np.uint16)
    values["complex64"] = values["complex64"] * np.complex64(1 + 2j)
    schema = {name: Column(Tensor(name, shape), page_bytes=256) for name in DTYPES}
    ds = made(schema, [{name: values[name][row] for name in DTYPES} for row in range(ROWS)])
    seen = []
    for batch in ds.pytorch(batch_size=10, **way):
        assert set(batch) == {"n", *DTYPES}
        seen += batch["n"].tolist()
        for name in DTYPES:
            assert batch[name].dtype == getattr(torch, name)
            expected = values[name][batch["n"].numpy()]
            found = batch[name].to(torch.complex128 if "complex" in name else torch.float64).numpy()
            assert np.array_equal(found, expected.astype(found.dtype))
    assert sorted(seen) == list(range(ROWS))


def test_datetimes_become_int64() -> None:
    when = np.arange(ROWS).astype("datetime64[ms]")
    ds = made({"t": "datetime64[ms]"}, [{"t": moment} for moment in when])
    assert {number: int(value) for number, value in column(ds, "t").items()} == dict(enumerate(range(ROWS)))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_nulls_come_with_a_mask(codec: str, way: dict[str, Any]) -> None:
    schema = {
        "v": Column(Tensor("float32", (2,)), nullable=True, codec=codec, page_bytes=64),
        "l": Column(Label(("a", "b")), nullable=True, codec=codec),
        "full": Column(Tensor("int16"), nullable=True, codec=codec),
    }
    rows = [{"v": None if k % 3 == 0 else [k, -k], "l": None if k % 4 == 0 else "b", "full": k} for k in range(ROWS)]
    for batch in made(schema, rows).pytorch(batch_size=10, **way):
        n = batch["n"]
        assert torch.equal(batch["v_mask"], n % 3 != 0)
        assert torch.equal(batch["v"][batch["v_mask"]], torch.stack([n, -n], 1)[n % 3 != 0].float())
        assert not batch["v"][~batch["v_mask"]].any()
        assert torch.equal(batch["l_mask"], n % 4 != 0)
        assert torch.equal(batch["l"], (n % 4 != 0).long())
        assert batch["full_mask"].all()
        assert torch.equal(batch["full"], n.short())


def test_an_added_column_is_backfilled() -> None:
    ds = made({"x": int}, [{"x": k} for k in range(ROWS)])
    ds.add_column("y", Tensor("int64", (2,)), fill=[4, 5])
    ds.add_column("z", Column(Text(), nullable=True))
    ds.append({"n": [ROWS], "x": [ROWS], "y": [[6, 7]], "z": ["new"]})
    ds.commit()
    for batch in ds.pytorch(batch_size=10):
        for n, y, z in zip(batch["n"].tolist(), batch["y"].tolist(), batch["z"], strict=True):
            assert (y, z) == (([6, 7], "new") if n == ROWS else ([4, 5], None))


def ragged_rows() -> list[dict[str, Any]]:
    def row(k: int) -> dict[str, Any]:
        missing = k % 5 == 0
        return {
            "tokens": None if missing else np.arange(k % 4, dtype=np.int32) + k,
            "boxes": np.full((k % 3, 4), k, np.float32),
            "maps": None if missing else np.full((1 + k % 2, 2 + k % 3, 2), k, np.uint8),
            "waves": np.full(k % 3, k + 1j, np.complex64),
            "points": np.full((2, 3), k, np.float64),
        }

    return [row(k) for k in range(ROWS)]


RAGGED = {
    "tokens": Column(Tensor("int32", (None,)), nullable=True, page_bytes=64),
    "boxes": Boxes(),
    "maps": Column(Tensor("uint8", (None, None, 2)), nullable=True),
    "waves": Tensor("complex64", (None,)),
    "points": Points("float64"),
}


@pytest.fixture(scope="module")
def ragged() -> tuple[Dataset, list[dict[str, Any]]]:
    rows = ragged_rows()
    return made(RAGGED, rows), rows


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("name", ["tokens", "boxes", "waves", "points"])
def test_ragged_columns_are_nested(
    ragged: tuple[Dataset, list[dict[str, Any]]], name: str, batch_size: int, way: dict[str, Any]
) -> None:
    ds, rows = ragged
    assert {batch[name].layout for batch in ds.select([name]).pytorch(batch_size=batch_size)} == {torch.jagged}
    for number, value in column(ds, name, batch_size=batch_size, **way).items():
        expected = rows[number][name]
        if expected is None:
            assert value.numel() == 0
        else:
            assert value.numpy().dtype == expected.dtype
            assert np.array_equal(value.numpy(), expected)


def test_a_nested_batch_supports_torch_operations(ragged: tuple[Dataset, list[dict[str, Any]]]) -> None:
    ds, rows = ragged
    [batch] = ds[[1, 2, 3]].select(["boxes"]).pytorch(batch_size=3)
    padded = (batch["boxes"] * 2).to_padded_tensor(-1.0)
    assert padded.shape == (3, 2, 4)
    assert padded[1].tolist() == (rows[2]["boxes"] * 2).tolist()
    assert (padded[2] == -1).all()


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("name", RAGGED)
def test_ragged_columns_are_padded(ragged: tuple[Dataset, list[dict[str, Any]]], name: str, batch_size: int) -> None:
    ds, rows = ragged
    for batch in ds.select(["n", name]).pytorch(batch_size=batch_size, collate_fn="pad"):
        padded, shapes = batch[name], batch[f"{name}_shape"]
        assert padded.ndim == 1 + shapes.shape[1]
        for number, value, shape in zip(batch["n"].tolist(), padded, shapes.tolist(), strict=True):
            expected = rows[number][name]
            if expected is None:
                assert not any(shape)
                assert not value.any()
                continue
            assert tuple(shape) == expected.shape
            inside = value[tuple(slice(length) for length in shape)]
            assert inside.numpy().dtype == expected.dtype
            assert np.array_equal(inside.numpy(), expected)
            assert value.count_nonzero() == np.count_nonzero(expected)


@pytest.mark.parametrize(("name", "choice"), [*((name, "list") for name in RAGGED), ("maps", "nested")])
def test_ragged_columns_are_lists(ragged: tuple[Dataset, list[dict[str, Any]]], name: str, choice: str) -> None:
    ds, rows = ragged
    for number, value in column(ds, name, collate_fn=choice).items():
        expected = rows[number][name]
        assert (value is None) == (expected is None)
        assert value is None or np.array_equal(value.numpy(), expected)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_text_json_bytes_and_nested_kinds_are_lists_of_plain_values(way: dict[str, Any]) -> None:
    schema = {
        "t": Column(Text(), nullable=True, page_bytes=64),
        "j": Json(),
        "b": Column(Bytes(), nullable=True, codec="zstd"),
        "words": List(Text()),
        "pair": Column(Struct({"x": Tensor("float32"), "path": List(Tensor("int32", (2,)))}), nullable=True),
        "e": Embedding(4),
    }
    rows: list[dict[str, Any]] = [
        {
            "t": None if k % 4 == 0 else f"row {k} · 行",
            "j": {"k": k, "deep": [None, {"é": 0.5}]},
            "b": None if k % 5 == 0 else bytes([k]) * k,
            "words": [f"w{w}" for w in range(k % 3)],
            "pair": None if k % 6 == 0 else {"x": k / 2, "path": [[k, step] for step in range(k % 3)]},
            "e": [k, 0, 0, 1],
        }
        for k in range(ROWS)
    ]
    ds = made(schema, rows)
    for name in ("t", "j", "b", "words"):
        assert column(ds, name, **way) == {number: row[name] for number, row in enumerate(rows)}
    for number, value in column(ds, "pair", **way).items():
        expected = rows[number]["pair"]
        assert (value is None) == (expected is None)
        if value is not None:
            assert value["x"] == expected["x"]
            assert [np.asarray(step).tolist() for step in value["path"]] == expected["path"]
    assert column(ds, "e", **way)[5].tolist() == [5, 0, 0, 1]


def make_images(shape: tuple[int, ...]) -> list[npt.NDArray[np.uint8]]:
    generator = np.random.default_rng(1)
    return [generator.integers(0, 256, shape).astype(np.uint8) for _ in range(ROWS)]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("shape", [(6, 5, 3), (6, 5, 4), (6, 5)], ids=str)
def test_images_of_one_shape_are_one_tensor(shape: tuple[int, ...], way: dict[str, Any]) -> None:
    images = make_images(shape)
    schema = {"p": Image("png", shape), "q": Column(Image("png", shape), nullable=True)}
    rows = [{"p": image, "q": None if k % 3 == 0 else image} for k, image in enumerate(images)]
    ds = made(schema, rows)
    for batch in ds.pytorch(batch_size=10, **way):
        expected = torch.from_numpy(np.stack([images[k] for k in batch["n"].tolist()]))
        assert torch.equal(batch["p"], expected)
        there = batch["n"] % 3 != 0
        assert torch.equal(batch["q_mask"], there)
        assert torch.equal(batch["q"][there], expected[there])
        assert not batch["q"][~there].any()


def test_images_of_many_shapes_are_lists_or_padded_or_resized() -> None:
    images = [np.full((4 + k % 3, 6 - k % 2, 3), 5 * k, np.uint8) for k in range(ROWS)]
    ds = made({"p": Column(Image("png"), nullable=True)}, [{"p": None if k == 9 else p} for k, p in enumerate(images)])
    for number, value in column(ds, "p").items():
        assert (value is None) == (number == 9)
        assert value is None or np.array_equal(value.numpy(), images[number])
    for batch in ds[:9].pytorch(batch_size=9, collate_fn="pad"):
        assert batch["p"].shape == (9, 6, 6, 3)
        for image, padded, shape in zip(images, batch["p"], batch["p_shape"].tolist(), strict=False):
            assert tuple(shape) == image.shape
            assert np.array_equal(padded[: shape[0], : shape[1]].numpy(), image)
            assert padded.sum() == image.astype(np.int64).sum()
    for batch in ds.pytorch(batch_size=10, image_size=(3, 7)):
        assert batch["p"].shape[1:] == (3, 7, 3)
        for number, scaled, there in zip(batch["n"].tolist(), batch["p"], batch["p_mask"].tolist(), strict=True):
            assert there == (number != 9)
            assert (scaled == (5 * number if there else 0)).all()


@pytest.mark.parametrize("shape", [(8, 8, 3), (8, 8)], ids=str)
def test_images_of_one_shape_are_resized_too(shape: tuple[int, ...]) -> None:
    images = [np.full(shape, 3 * k, np.uint8) for k in range(ROWS)]
    ds = made(
        {"p": Image("png", shape), "m": Mask("png", (8, 8))},
        [{"p": p, "m": images[1].reshape(8, -1)[:, :8]} for p in images],
    )
    for batch in ds.pytorch(batch_size=10, image_size=(4, 2)):
        assert batch["p"].shape[1:] == (4, 2, *shape[2:])
        assert torch.equal(batch["p"].reshape(len(batch["n"]), -1)[:, 0].long(), 3 * batch["n"])
        assert batch["m"].shape[1:] == (8, 8), "masks have classes and not colours: they are not scaled"
    assert ds.pytorch(image_size=(4, 2))[5]["p"].shape == (4, 2, *shape[2:])


def test_jpegs_are_decoded_as_the_table_decodes_them() -> None:
    smooth = [np.add.outer(np.arange(16), np.arange(24))[..., None].repeat(3, 2).astype(np.uint8) + k for k in range(9)]
    ds = made({"p": Image("jpeg:95", (16, 24, 3)), "q": Image("jpeg")}, [{"p": p, "q": p} for p in smooth])
    for batch in ds.pytorch(batch_size=4, shuffle=True):
        for index, number in enumerate(batch["n"].tolist()):
            assert np.array_equal(batch["p"][index].numpy(), ds[number]["p"])
            assert np.array_equal(batch["q"][index].numpy(), ds[number]["q"])


def test_a_jpeg_of_the_columns_shape_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Straight to its place, with nothing looked at or tried before; by batches and by rows."""
    images = [np.full((16, 24, 3), 9 * k, np.uint8) for k in range(9)]
    ds = made({"p": Image("jpeg:95", (16, 24, 3))}, [{"p": p} for p in images])

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a image was looked at by itself")

    monkeypatch.setattr("penstock.codecs._image._decode_into", refused)
    assert sorted(number for batch in ds.pytorch(batch_size=4) for number in batch["n"].tolist()) == list(range(9))
    assert [int(row["n"]) for row in ds.pytorch().__getitems__([3, 1])] == [3, 1]


def test_masks_are_decoded_exactly() -> None:
    masks = [np.full((3, 4), 300 * k if k % 2 else k, np.uint16 if k % 2 else np.uint8) for k in range(ROWS)]
    for shape in (None, (3, 4)):
        ds = made({"m": Column(Mask("png", shape), nullable=True)}, [{"m": mask} for mask in masks])
        for number, value in column(ds, "m").items():
            assert np.array_equal(value.numpy(), masks[number])


def wave(k: int) -> npt.NDArray[np.float32]:
    return np.repeat((np.arange(50 + k) % 7 - 3) / 8, 2).reshape(-1, 2).astype(np.float32)


@cache
def sound(k: int) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, wave(k), 8000, format="WAV", subtype="FLOAT")
    return stream.getvalue()


@cache
def film(k: int) -> bytes:
    stream = io.BytesIO()
    with av.open(stream, "w", format="avi") as container:
        video = container.add_stream("rawvideo", rate=10)
        assert isinstance(video, av.VideoStream)
        video.height = video.width = 16
        video.pix_fmt = "bgr24"
        for frame in range(1 + k % 3):
            image = np.full((16, 16, 3), 10 * k + frame, np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(image, format="bgr24")))
        container.mux(video.encode(None))
    return stream.getvalue()


@pytest.fixture(scope="module")
def media() -> Dataset:
    rows = [{"a": None if k == 4 else sound(k), "v": film(k), "p": np.full((2, 2, 3), k, np.uint8)} for k in range(9)]
    return made({"a": Column(Audio("wav"), nullable=True), "v": Video(), "p": Image()}, rows)


def test_audio_and_video_are_decoded(media: Dataset) -> None:
    for number, value in column(media, "a", batch_size=4).items():
        assert (value is None) == (number == 4)
        assert value is None or np.array_equal(value.numpy(), wave(number))
    for number, value in column(media, "v", batch_size=4).items():
        assert value.shape == (1 + number % 3, 16, 16, 3)
        assert (value[-1] == 10 * number + number % 3).all()
    [batch] = media[:4].select(["a", "v"]).pytorch(batch_size=4, collate_fn="pad")
    assert batch["a"].shape == (4, 53, 2)
    assert batch["v_shape"].tolist() == [[1, 16, 16, 3], [2, 16, 16, 3], [3, 16, 16, 3], [1, 16, 16, 3]]


def test_media_stay_encoded_with_decode_false(media: Dataset) -> None:
    choices: list[Any] = [False, {"a": False, "v": False}]
    for choice in choices:
        [batch] = media.pytorch(batch_size=9, decode=choice)
        assert batch["a"] == [None if k == 4 else sound(k) for k in range(9)]
        assert batch["v"] == [film(k) for k in range(9)]
    assert isinstance(batch["p"][0], torch.Tensor)
    [raw] = media.pytorch(batch_size=9, decode=False)
    assert all(value.startswith(b"\x89PNG") for value in raw["p"])


def test_custom_decoders(media: Dataset) -> None:
    decoders: dict[str, Any] = {
        "a": len,
        "v": lambda data: torch.tensor([len(data)]),
        "p": lambda data: np.frombuffer(data[:4], "u1"),
    }
    for batch in media.pytorch(batch_size=4, decode=decoders, shuffle=True):
        for index, number in enumerate(batch["n"].tolist()):
            assert batch["a"][index] == (None if number == 4 else len(sound(number)))
            assert batch["v"][index].tolist() == [len(film(number))]
            assert bytes(batch["p"][index].numpy()) == b"\x89PNG"
    assert media.pytorch(decode=decoders)[2]["a"] == len(sound(2))


def test_a_decoder_that_fails_names_column_and_row(media: Dataset) -> None:
    def picky(data: bytes) -> int:
        if data == film(5):
            raise KeyError("five")
        return len(data)

    loader = media.pytorch(batch_size=2, decode={"v": picky}, num_workers=2)
    batches = iter(loader)
    assert [next(batches)["n"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(SampleError, match=r"column 'v': 'five'") as caught:
        next(batches)
    assert caught.value.__notes__ == ["in row 5 of the table (row id 5)"]
    assert isinstance(caught.value.__cause__, KeyError)


def test_blobs_are_followed() -> None:
    large = [bytes([k]) * (17 << 20) if k == 2 else bytes([k]) for k in range(5)]
    ds = made({"b": Bytes(), "v": Video()}, [{"b": value, "v": value} for value in large])
    assert [item.key for item in ds._reader.store.list("blobs/")] != []
    for options in ({}, {"shuffle": True}):
        assert column(ds, "b", batch_size=2, **options) == dict(enumerate(large))
        assert column(ds, "v", batch_size=2, decode=False, **options) == dict(enumerate(large))
    assert ds.pytorch(decode={"v": len})[2]["v"] == 17 << 20


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_links_are_followed(kind: str) -> None:
    place = new_location(kind)
    source = place.open()
    images = [np.full((3, 3, 3), 9 * k, np.uint8) for k in range(6)]
    masks = [np.full((3, 3), 500 * k, np.uint16) for k in range(6)]
    for k in range(6):
        source.put(f"image-{k}", encoded(images[k]))
        source.put(f"mask-{k}", encoded(masks[k]))
        source.put(f"text-{k}", f"text {k}".encode())
    container = place.uri if kind == "folder" else "s3://bucket"
    schema = {
        "p": Column(Linked(Image("png", (3, 3, 3))), nullable=True),
        "m": Linked(Mask("png", (3, 3))),
        "t": Linked(Text()),
    }
    rows = [
        {
            "p": None if k == 3 else Link(f"{place.uri}/image-{k}"),
            "m": Link(f"{place.uri}/mask-{k}"),
            "t": Link(f"{place.uri}/text-{k}", offset=5),
        }
        for k in range(6)
    ]
    ds = made(schema, rows, links={container: place.options})
    for batch in ds.pytorch(batch_size=4, shuffle=True):
        for index, number in enumerate(batch["n"].tolist()):
            assert batch["p_mask"][index] == (number != 3)
            assert number == 3 or np.array_equal(batch["p"][index].numpy(), images[number])
            assert np.array_equal(batch["m"][index].numpy(), masks[number])
            assert batch["t"][index] == str(number)
    assert ds.pytorch(decode={"p": len})[1]["p"] == len(encoded(images[1]))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "key",
    [
        slice(5, 30),
        slice(None, None, 4),
        slice(None, None, -1),
        [30, 2, 2, 17, 2],
        [1, 1, 3],
        [2, 2, 2, 5],
        slice(9, 9),
    ],
    ids=str,
)
def test_slices_selections_and_lists_of_rows(
    ragged: tuple[Dataset, list[dict[str, Any]]], key: Any, shuffle: bool
) -> None:
    ds, rows = ragged
    expected = list(range(ROWS))[key] if isinstance(key, slice) else key
    view = ds[key].select(["boxes", "_row_id", "n"])
    batches = list(
        view.pytorch(batch_size=4, shuffle=Shuffle(block_bytes=100) if shuffle else False, collate_fn="list")
    )
    assert sum(len(batch["n"]) for batch in batches) == len(expected)
    found = [n for batch in batches for n in batch["n"].tolist()]
    assert (sorted(found) if shuffle else found) == (sorted(expected) if shuffle else expected)
    for batch in batches:
        assert list(batch) == ["boxes", "_row_id", "n"] or set(batch) == {"boxes", "_row_id", "n"}
        assert torch.equal(batch["_row_id"], batch["n"])
        for n, boxes in zip(batch["n"].tolist(), batch["boxes"], strict=True):
            assert np.array_equal(boxes.numpy(), rows[n]["boxes"])


def test_row_ids_are_those_of_the_table() -> None:
    ds = made({"x": Tensor("float32", (8,))}, [{"x": [k] * 8} for k in range(ROWS)])
    ds.delete(positions=[0, 5, 20, 36])
    ds.append({"n": [50, 51], "x": [[50] * 8, [51] * 8]})
    ds.commit()
    expected = {row["n"]: row["_row_id"] for row in ds.select(["n", "_row_id"])}
    for shuffle in (True, False):
        for batch in ds.select(["n", "_row_id"]).pytorch(batch_size=9, shuffle=shuffle):
            assert [expected[n] for n in batch["n"].tolist()] == batch["_row_id"].tolist()
        ids = [
            i
            for batch in ds.select(["_row_id"]).pytorch(batch_size=9, shuffle=shuffle)
            for i in batch["_row_id"].tolist()
        ]
        assert sorted(ids) == sorted(expected.values())
    [batch] = ds[[34, 3]].pytorch(batch_size=9)
    assert batch["n"].tolist() == [51, 4]


def test_uncommitted_changes_are_streamed() -> None:
    ds = made({"x": int}, [{"x": k} for k in range(5)])
    ds.append({"n": [5], "x": [5]})
    ds.update(positions=[0], data={"x": 100})
    [batch] = ds.pytorch(batch_size=10)
    assert batch["x"].tolist() == [100, 1, 2, 3, 4, 5]


def test_batches_that_are_held_stay_unchanged() -> None:
    ds = made({"x": Tensor("int64", (512,))}, [{"x": [k] * 512} for k in range(400)])
    with ds.pytorch(batch_size=32, shuffle=True, num_workers=2) as loader:
        kept = [batch for _ in range(3) for batch in loader]
        held = [(batch["n"].clone(), batch["x"].clone()) for batch in kept]
        for batch in loader:
            batch["x"].zero_()
        for batch, (n, x) in zip(kept, held, strict=True):
            assert torch.equal(batch["x"], n[:, None].expand(-1, 512))
            assert torch.equal(batch["x"], x)


@pytest.mark.parametrize("workers", [0, 2, penstock.Workers(1, "process")], ids=["here", "threads", "processes"])
def test_a_saved_batch_or_sample_takes_its_own_size(tmp_path: Path, workers: Any) -> None:
    ds = penstock.create("memory://", {"x": Tensor("float32", (128,)), "n": Tensor("int64")})
    ds.append({"x": np.zeros((4096, 128), np.float32), "n": np.arange(4096)})
    ds.commit()
    with ds.pytorch(batch_size=32, shuffle=True, num_workers=workers) as loader:
        for name, saved, size in (
            ("batch", next(iter(loader)), 32 * (128 * 4 + 8)),
            ("sample", ds.pytorch().__getitems__(list(range(4096)))[7], 128 * 4 + 8),
        ):
            torch.save(saved, tmp_path / name)
            assert (tmp_path / name).stat().st_size < size + 4096


def test_an_empty_table_has_no_batches() -> None:
    ds = penstock.create(open_store("memory://"), {"x": int})
    for loader in (ds.pytorch(batch_size=4), ds.pytorch(shuffle=True), ds.pytorch(distributed=(1, 3))):
        assert (len(loader), list(loader), list(loader)) == (0, [], [])
    assert len(ds.pytorch()) == 0


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_batch_can_be_modified_in_place_while_another_awaits_its_gradient(device: str | None) -> None:
    ds = made({"x": Tensor("float32", (4,))}, [{"x": np.full(4, row, np.float32)} for row in range(ROWS)])
    options: dict[str, Any] = {} if device is None else {"device": DeviceOptions(device=device, memory=1 << 20)}
    with ds.pytorch(batch_size=4, **options) as loader:
        batches = list(loader)
    weight = torch.ones(4, requires_grad=True)
    loss = (batches[0]["x"] * weight).sum()
    batches[1]["x"].zero_()
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [0 + 1 + 2 + 3] * 4
    assert batches[2]["x"][:, 0].tolist() == [8, 9, 10, 11]
