"""MDS: rows are what MosaicML's writer was given, and an index or a shard that lies is refused."""

import json
import shutil
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import penstock
from penstock.codecs import decode_image
from penstock.errors import InvalidInputError, SampleError, SourceChanged
from penstock.format.kinds import Image, Json, List, Tensor, Text
from penstock.ingest import Found, Listing, Reading, Reject, Row
from penstock.ingest._bucket import Bucket
from penstock.ingest.sources import _expand, _mds
from penstock.ingest.sources._mds import MDS
from penstock.ingest.sources._mds_encodings import encoding_of
from penstock.storage import Store, open_store
from penstock.testing import SourceTests
from tests.data.mds.make_mds import PICTURE, other, sample

DATA = Path(__file__).parents[1] / "data" / "mds"
ANY_BYTES = ["ndarray", "ndarray:int8", "list[jpeg]", "list[pil]", "jpegarray", "pil", "json", "str", "str_int", "png"]
COMPRESSIONS = ["zstd", "gz", "snappy", "br", "bz2"]


class TestContract(SourceTests):
    source = MDS
    expected = 10

    def make(self, folder: Path) -> None:
        shutil.copytree(DATA / "plain", folder, dirs_exist_ok=True)


class TestContractCompressed(SourceTests):
    source = MDS
    expected = 4

    def make(self, folder: Path) -> None:
        shutil.copytree(DATA / "zstd", folder, dirs_exist_ok=True)


def opened(store: Store) -> tuple[Bucket, Reading]:
    bucket = Bucket(store)
    return bucket, MDS.open(bucket, list(store.list()))


def found_in(store: Store) -> list[Found]:
    bucket, reading = opened(store)
    return list(reading.rows(bucket, reading.files))


def rows_of(store: Store) -> list[dict[str, Any]]:
    found = found_in(store)
    assert all(isinstance(item, Row) for item in found), found
    return [dict(item.values) for item in found if isinstance(item, Row)]


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[name], value, strict=True)
        else:
            assert (bytes(found[name]) if isinstance(found[name], memoryview) else found[name]) == value


def written(values: list[bytes], columns: Mapping[str, tuple[str, int | None]], **changes: Any) -> Store:
    """A dataset of one shard, made by hand."""
    offsets = np.cumsum([4 * (len(values) + 2), *map(len, values)])
    data = struct.pack("<I", len(values)) + offsets.astype("<u4").tobytes() + b"".join(values)
    told = {
        "format": "mds",
        "version": 2,
        "column_names": list(columns),
        "column_encodings": [encoding for encoding, _ in columns.values()],
        "column_sizes": [size for _, size in columns.values()],
        "compression": None,
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}},
        "zip_data": None,
        "samples": len(values),
        "size_limit": 1 << 26,
        **changes,
    }
    store = open_store("memory://")
    store.put("shard.00000.mds", data)
    store.put("index.json", json.dumps({"version": 2, "shards": [told]}).encode())
    return store


def test_the_rows_of_its_own_writer_come_back_from_all_indexes() -> None:
    bucket, reading = opened(open_store(DATA / "plain"))
    assert [file.key for file in reading.files] == [
        "train/shard.00000.mds",
        "train/shard.00001.mds",
        "val/shard.00000.mds",
    ]
    assert reading.columns == {
        "about": Json(),
        "caption": Text(),
        "number": Tensor("int64"),
        "picture": Image("jpeg"),
        "pose": Tensor("float32", (4,)),
        "weight": Tensor("float32"),
    }
    found = list(reading.rows(bucket, reading.files))
    assert found[0].name == "train/shard.00000.mds, sample 0"
    assert len(found) == 10
    for row, item in enumerate(found):
        assert isinstance(item, Row)
        assert_same(item.values, sample(row) | {"picture": PICTURE.read_bytes()})


def test_a_table_has_all_samples(tmp_path: Path) -> None:
    told = penstock.ingest(DATA / "plain", tmp_path / "table")
    assert (told.kind, told.rows, told.rejects) == ("mds", 10, ())
    ds = penstock.load(tmp_path / "table")
    assert ds["number"][:].tolist() == list(range(-2, 8))
    assert list(ds["caption"][:]) == [sample(row)["caption"] for row in range(10)]
    np.testing.assert_array_equal(ds["points"][9], sample(9)["points"])
    np.testing.assert_array_equal(ds["picture"][3], decode_image(PICTURE.read_bytes()))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressed_shards_hold_the_same(compression: str) -> None:
    rows = rows_of(open_store(DATA / compression))
    assert len(rows) == 4
    for row, values in enumerate(rows):
        assert_same(values, sample(row) | {"picture": PICTURE.read_bytes()})


def test_all_other_encodings_of_its_own_writer() -> None:
    bucket, reading = opened(open_store(DATA / "others"))
    assert reading.columns == {
        "big": Tensor("uint64"),
        "digits": Tensor("int64"),
        "drawing": Image("png"),
        "drawings": List(Image("png")),
        "film": List(Image("jpeg")),
        "fraction": Tensor("float64"),
        "frames": List(Image("jpeg")),
        "half": Tensor("float16"),
        "matrix": Tensor("uint16", (2, 3)),
        "money": Text(),
        "raw": Image("png"),
        "tiny": Tensor("uint8"),
    }
    rows = [dict(item.values) for item in reading.rows(bucket, reading.files) if isinstance(item, Row)]
    assert len(rows) == 3
    for row, values in enumerate(rows):
        pictures = [PICTURE.read_bytes()] * (row + 1)
        assert [bytes(frame) for frame in values.pop("frames")] == pictures
        assert [bytes(frame) for frame in values.pop("film")] == pictures
        values["drawings"] = [decode_image(drawing).tolist() for drawing in values["drawings"]]
        values["drawing"], values["raw"] = decode_image(values["drawing"]), decode_image(values["raw"])
        expected = other(row)
        expected["drawings"] = [drawing.tolist() for drawing in expected["drawings"]]
        assert_same(values, expected)


def test_a_merged_index_does_not_double_its_shards() -> None:
    store = open_store("memory://")
    merged: list[dict[str, Any]] = []
    for path in sorted((DATA / "plain").rglob("*.*")):
        key = path.relative_to(DATA / "plain").as_posix()
        store.put(key, path.read_bytes())
        if path.name == "index.json":
            for shard in json.loads(path.read_bytes())["shards"]:
                shard["raw_data"]["basename"] = f"{path.parent.name}/{shard['raw_data']['basename']}"
                merged.insert(0, shard)
    store.put("index.json", json.dumps({"version": 2, "shards": merged}).encode())
    assert [row["number"] for row in rows_of(store)] == [6, 7, *range(2, 6), *range(-2, 2)]


def test_an_unpacked_shard_is_taken_before_a_packed_one() -> None:
    store = open_store("memory://")
    for name in ("index.json", "shard.00000.mds.zstd"):
        store.put(name, (DATA / "zstd" / name).read_bytes())
    packed = store.get("shard.00000.mds.zstd")
    size = json.loads(bytes(store.get("index.json")))["shards"][0]["raw_data"]["bytes"]
    store.put("shard.00000.mds", pa.Codec("zstd").decompress(packed, decompressed_size=size, asbytes=True))
    store.put("shard.00000.mds.zstd", b"never read")
    assert len(rows_of(store)) == 4


scalars = {
    "int": "int64",
    **{
        name: name
        for name in (
            *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
            *(f"float{bits}" for bits in (16, 32, 64)),
        )
    },
}


@given(st.data(), st.sampled_from(sorted(scalars)))
@settings(deadline=None, max_examples=60)
def test_numbers_come_as_they_were(data: st.DataObject, encoding: str) -> None:
    dtype = np.dtype(scalars[encoding])
    value = data.draw(hnp.from_dtype(dtype, allow_nan=False))
    read = encoding_of(encoding)
    assert read.size == dtype.itemsize
    assert read.kind == Tensor(dtype.name)
    assert np.array(read.read(memoryview(value.tobytes())), dtype) == value


@given(st.data(), st.sampled_from(sorted(set(scalars.values()))), st.booleans())
@settings(deadline=None, max_examples=60)
def test_arrays_come_as_they_were_and_no_shorter_ones(data: st.DataObject, dtype: str, told: bool) -> None:
    shapes = hnp.array_shapes(max_dims=4, max_side=4) | st.tuples(st.integers(250, 260), st.just(2))
    array = data.draw(hnp.arrays(dtype, shapes, fill=st.just(1)))
    width = 0 if max(array.shape) < 256 else 1
    number = 8 * array.itemsize + {"u": 0, "i": 1, "f": 2}[array.dtype.kind]
    head = b"" if told else bytes([number])
    head += bytes([array.ndim << 2 | width]) + np.array(array.shape, f"<u{1 << width}").tobytes()
    encoded = head + array.tobytes()
    read = encoding_of(f"ndarray:{dtype}" if told else "ndarray").read
    np.testing.assert_array_equal(read(memoryview(encoded)), array, strict=True)
    with pytest.raises(SampleError):
        read(memoryview(encoded)[: data.draw(st.integers(0, len(encoded) - 1))])


@given(
    st.binary(max_size=64),
    st.sampled_from(["ndarray", "ndarray:int8", "list[jpeg]", "jpegarray", "pil", "json", "str"]),
)
@settings(deadline=None)
def test_any_bytes_are_a_value_or_a_flaw(data: bytes, encoding: str) -> None:
    with suppress(SampleError):
        encoding_of(encoding).read(memoryview(data))


@pytest.mark.parametrize(
    ("encoding", "data", "told"),
    [
        ("str", b"\xff", "not UTF-8"),
        ("json", b"{]", "not JSON"),
        ("json", b"[" * 70 + b"]" * 70, "nested"),
        ("str_int", b"seven", "not a number: 'seven'"),
        ("str_int", b"9" * 5000, "not a number"),
        ("str_float", b"", "not a number"),
        ("str_decimal", b"1,5", "not a decimal"),
        ("jpeg", b"GIF", "expected an image"),
        ("png", b"", "expected an image"),
        ("list[jpeg]", struct.pack("<3I", 0, 1, 5) + b"12345", "expected an image"),
        ("list[png]", struct.pack("<2I", 0, 1 << 30), "list of 1073741824 values"),
        ("jpeg_array", struct.pack("<3I", 2, 1, 9), "should have 10 bytes and have 0"),
        ("pil", struct.pack("<3I", 2, 2, 1) + b"L123", "does not have 3 bytes"),
        ("pil", struct.pack("<3I", 1 << 31, 0, 1) + b"L", "does not have 0 bytes"),
        ("pil", struct.pack("<3I", 1, 1, 4) + b"CMYK1234", "mode 'CMYK'"),
        ("pil", struct.pack("<3I", 1, 1, 1 << 31) + b"L1", "mode 'L1'"),
        ("ndarray", b"\x0a\x05\x01\x01", "known dtype"),
        ("ndarray", b"\x08", "without its shape"),
        ("ndarray:uint8", bytes([4 << 2 | 3]) + b"\xff" * 32, "does not have 0 bytes"),
    ],
)
def test_a_bad_value_costs_its_sample_only(encoding: str, data: bytes, told: str) -> None:
    columns = {"id": ("int", 8), "value": (encoding, None)}
    bad = struct.pack("<Iq", len(data), 1) + data
    found = found_in(written([bad, bad], columns))
    assert [type(item) for item in found] == [Reject, Reject]
    assert found[1].name == "shard.00000.mds, sample 1"
    assert isinstance(found[1], Reject)
    assert found[1].reason.startswith("column 'value': ")
    assert told in found[1].reason


def test_a_sample_whose_sizes_do_not_fit_is_refused_and_the_next_is_read() -> None:
    columns = {"id": ("int", 8), "text": ("str", None)}
    good = struct.pack("<Iq", 1, 5) + b"x"
    bad = [struct.pack("<Iq", 2, 5) + b"x", struct.pack("<Iq", 0, 5) + b"x", b"abc", struct.pack("<I", 0xFFFFFFFF)]
    found = found_in(written([*bad, good], columns))
    assert [type(item) for item in found] == [Reject, Reject, Reject, Reject, Row]
    assert isinstance(found[-1], Row)
    assert found[-1].values == {"id": 5, "text": "x"}


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
@settings(deadline=None, max_examples=150)
def test_a_damaged_shard_gives_rows_or_rejects(at: int, noise: bytes) -> None:
    data = bytearray((DATA / "plain/val/shard.00000.mds").read_bytes())
    at %= len(data)
    data[at : at + len(noise)] = noise
    store = open_store("memory://")
    store.put("index.json", (DATA / "plain/val/index.json").read_bytes())
    store.put("shard.00000.mds", bytes(data))
    found = found_in(store)
    assert found
    assert all(isinstance(item, Row) or item[1] for item in found)


@given(st.integers(0, 4014))
@settings(deadline=None, max_examples=60)
def test_a_shard_that_is_cut_off_gives_its_first_samples(size: int) -> None:
    path = DATA / "plain/train/shard.00001.mds"
    store = open_store("memory://")
    told = json.loads((path.parent / "index.json").read_bytes())
    del told["shards"][0]
    store.put("index.json", json.dumps(told).encode())
    store.put("shard.00001.mds", path.read_bytes()[:size])
    *rows, last = found_in(store)
    assert [row.values["number"] for row in rows if isinstance(row, Row)] == list(range(2, 2 + len(rows)))
    assert isinstance(last, Reject)
    name = "shard.00001.mds"
    assert last.name == (f"{name}, from sample {len(rows)} on" if rows else name)
    assert "cut off" in last.reason or "cannot have" in last.reason


def reindexed(store: Store, **changes: Any) -> Store:
    told = json.loads(bytes(store.get("index.json")))
    told["shards"][0].update(changes)
    store.put("index.json", json.dumps(told).encode())
    return store


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_compressed_shard_that_is_cut_off_or_lies_about_its_size_is_refused(compression: str, tmp_path: Path) -> None:
    name = f"shard.00000.mds.{compression}"
    for cut in (1, 7, 500):
        store = open_store("memory://")
        store.put("index.json", (DATA / compression / "index.json").read_bytes())
        store.put(name, (DATA / compression / name).read_bytes()[:-cut])
        assert isinstance(found_in(store)[-1], Reject)
    store.put(name, (DATA / compression / name).read_bytes())
    found = found_in(reindexed(store, raw_data={"basename": "shard.00000.mds", "bytes": 200}))
    assert [type(item) for item in found] == [Reject]
    assert found[0].name == name


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_expand, "_UNSUSPICIOUS_BYTES", 1 << 20)
    store = written([struct.pack("<I", 4 << 20) + bytes(4 << 20)], {"blob": ("bytes", None)})
    raw = store.get("shard.00000.mds")
    store.delete(["shard.00000.mds"])
    store.put("shard.00000.mds.zstd", pa.Codec("zstd").compress(raw, asbytes=True))
    zip_data = {"basename": "shard.00000.mds.zstd", "bytes": 1}
    [found] = found_in(reindexed(store, compression="zstd:19", zip_data=zip_data))
    assert isinstance(found, Reject)
    assert "decompression bomb" in found.reason
    raw_data = {"basename": "shard.00000.mds", "bytes": 5000}
    [found] = found_in(reindexed(store, raw_data=raw_data))
    assert isinstance(found, Reject)
    assert "cut off" in found.reason


def test_a_table_of_samples_that_lies_is_refused() -> None:
    columns = {"id": ("int", 8)}
    samples = [struct.pack("<q", number) for number in range(3)]
    whole = bytes(written(samples, columns).get("shard.00000.mds"))
    for at, number, told in [
        (0, 4, "says that it has 4 samples"),
        (4, 1, "do not follow each other"),
        (8, 0, "do not follow each other"),
        (12, 1 << 31, "do not follow each other"),
        (16, 1 << 31, "is cut off: a sample should end at byte 2147483648"),
    ]:
        store = written(samples, columns)
        store.put("shard.00000.mds", whole[:at] + struct.pack("<I", number) + whole[at + 4 :])
        last = found_in(store)[-1]
        assert isinstance(last, Reject)
        assert told in last.reason
    assert isinstance(reject := found_in(written(samples, columns, samples=1 << 31))[0], Reject)
    assert "says that it has 3" in reject.reason


def test_more_samples_than_a_shard_can_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mds, "_MAX_SAMPLES", 2)
    [found] = found_in(written([b"\0"] * 3, {"id": ("uint8", 1)}))
    assert isinstance(found, Reject)
    assert "cannot have 3 samples" in found.reason


@pytest.mark.parametrize(
    ("columns", "changes", "told"),
    [
        ({"thing": ("pkl", None)}, {}, "column 'thing' is pickled, and pickles are never loaded"),
        ({"thing": ("complex64", 8)}, {}, "the encoding 'complex64', which is not known"),
        ({"thing": ("str:utf-8", None)}, {}, "which is not known"),
        ({"thing": ("ndarray:object", None)}, {}, "no array's"),
        ({"thing": ("ndarray:int8:-1", None)}, {}, "no array's"),
        ({"thing": ("ndarray:int8:4", 5)}, {}, "has values of 5 bytes; ndarray:int8:4 has 4"),
        ({"thing": ("int", None)}, {}, "has values of None bytes"),
        ({"id": ("int", 8)}, {"format": "json"}, "the format 'json'"),
        ({"id": ("int", 8)}, {"column_sizes": []}, "not the index"),
        ({"id": ("int", 8)}, {"samples": -1}, "not the index"),
        ({"id": ("int", 8)}, {"raw_data": None}, "not the index"),
        (
            {"id": ("int", 8)},
            {"raw_data": {"basename": "../shard.mds", "bytes": 4}},
            "'../shard.mds', which is not there",
        ),
        (
            {"id": ("int", 8)},
            {"compression": "lzma", "zip_data": {"basename": "index.json"}, "raw_data": {"basename": "x", "bytes": 4}},
            "compressed with 'lzma'",
        ),
    ],
)
def test_an_index_that_cannot_be_followed_is_refused(
    columns: dict[str, tuple[str, int | None]], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInputError, match=r"index\.json") as error:
        opened(written([bytes(8)], columns, **changes))
    assert told in str(error.value)


@pytest.mark.parametrize(
    "index", [b"", b"[]", b"{", b"{}", b'{"version": 1, "shards": []}', b"[" * 100_000, b'{"version": 2, "shards": 3}']
)
def test_what_is_no_index_is_refused(index: bytes) -> None:
    store = open_store("memory://")
    store.put("a/index.json", index)
    with pytest.raises(InvalidInputError, match=r"a/index\.json"):
        opened(store)


def test_an_index_without_shards_and_a_place_without_an_index_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory://")
    with pytest.raises(InvalidInputError, match=r"no index\.json"):
        opened(store)
    store.put("index.json", b'{"version": 2, "shards": []}')
    with pytest.raises(InvalidInputError, match="name no shards"):
        opened(store)
    monkeypatch.setattr(_mds, "_MAX_INDEX_BYTES", 5)
    with pytest.raises(InvalidInputError, match="at most 5"):
        opened(store)


def test_shards_with_other_columns_are_two_tables() -> None:
    store = open_store("memory://")
    for key, column in (("a", "x"), ("b", "y")):
        part = written([bytes(8)], {column: ("int", 8)})
        for name in ("index.json", "shard.00000.mds"):
            store.put(f"{key}/{name}", part.get(name))
    with pytest.raises(InvalidInputError, match="has other columns than"):
        opened(store)


def test_names_that_no_column_can_have_are_made_fit() -> None:
    names = ["__key__", "", "key", "a\nb", "pixel-values"]
    [row] = rows_of(written([bytes(5)], dict.fromkeys(names, ("uint8", 1))))
    assert list(row) == ["key", "column", "key_2", "a_b", "pixel-values"]


def test_a_shard_that_changed_since_it_was_listed_raises() -> None:
    for compression in ("zstd", "snappy"):
        store = open_store("memory://")
        name = f"shard.00000.mds.{compression}"
        for key in ("index.json", name):
            store.put(key, (DATA / compression / key).read_bytes())
        bucket, reading = opened(store)
        store.put(name, b"something else")
        with pytest.raises(SourceChanged):
            list(reading.rows(bucket, reading.files))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["index.json", "shard.00000.mds"], True),
        (["a/index.json", "a/shard.00000.mds.zstd"], True),
        (["index.json", "chunk-0-0.bin"], False),
        (["shard.00000.mds"], False),
    ],
)
def test_it_is_recognised_by_names(keys: list[str], expected: bool) -> None:
    store = open_store("memory://")
    for key in keys:
        store.put(key, b"x")
    assert MDS.recognise(Listing(list(store.list()))) is expected
