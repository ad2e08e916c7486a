"""MDS: roundtrip with the writer of MosaicML, and invalid indexes and shards."""

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
from penstock.errors import InvalidInputError, SampleError, SourceChangedError
from penstock.format.kinds import Image, Json, List, Tensor, Text
from penstock.ingest import Reject, Row, SourceItem, SourceListing, SourceScan
from penstock.ingest._reader import SourceReader
from penstock.ingest.sources import _limits, _mds
from penstock.ingest.sources._mds import MDS
from penstock.ingest.sources._mds_encodings import encoding_of
from penstock.storage import Store, open_store
from penstock.testing import SourceTests
from tests.data.mds.make_mds import IMAGE, other, sample

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


def open_scan(store: Store) -> tuple[SourceReader, SourceScan]:
    reader = SourceReader(store)
    return reader, MDS.open(reader, list(store.list()))


def found_in(store: Store) -> list[SourceItem]:
    reader, scan = open_scan(store)
    return list(scan.rows(reader, scan.files))


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
    """A handcrafted dataset of one shard."""
    offsets = np.cumsum([4 * (len(values) + 2), *map(len, values)])
    data = struct.pack("<I", len(values)) + offsets.astype("<u4").tobytes() + b"".join(values)
    entry = {
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
    store.put("index.json", json.dumps({"version": 2, "shards": [entry]}).encode())
    return store


def test_roundtrip_with_the_reference_writer_and_nested_indexes() -> None:
    reader, scan = open_scan(open_store(DATA / "plain"))
    assert [file.key for file in scan.files] == [
        "train/shard.00000.mds",
        "train/shard.00001.mds",
        "val/shard.00000.mds",
    ]
    assert scan.columns == {
        "about": Json(),
        "caption": Text(),
        "number": Tensor("int64"),
        "picture": Image("jpeg"),
        "pose": Tensor("float32", (4,)),
        "weight": Tensor("float32"),
    }
    found = list(scan.rows(reader, scan.files))
    assert found[0].name == "train/shard.00000.mds, sample 0"
    assert len(found) == 10
    for row, item in enumerate(found):
        assert isinstance(item, Row)
        assert_same(item.values, sample(row) | {"picture": IMAGE.read_bytes()})


def test_ingest_of_all_samples(tmp_path: Path) -> None:
    result = penstock.ingest(DATA / "plain", tmp_path / "table")
    assert (result.kind, result.rows, result.rejects) == ("mds", 10, ())
    ds = penstock.load(tmp_path / "table")
    assert ds["number"][:].tolist() == list(range(-2, 8))
    assert list(ds["caption"][:]) == [sample(row)["caption"] for row in range(10)]
    np.testing.assert_array_equal(ds["points"][9], sample(9)["points"])
    np.testing.assert_array_equal(ds["picture"][3], decode_image(IMAGE.read_bytes()))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressed_shards_give_equal_rows(compression: str) -> None:
    rows = rows_of(open_store(DATA / compression))
    assert len(rows) == 4
    for row, values in enumerate(rows):
        assert_same(values, sample(row) | {"picture": IMAGE.read_bytes()})


def test_other_encodings_of_the_reference_writer() -> None:
    reader, scan = open_scan(open_store(DATA / "others"))
    assert scan.columns == {
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
    rows = [dict(item.values) for item in scan.rows(reader, scan.files) if isinstance(item, Row)]
    assert len(rows) == 3
    for row, values in enumerate(rows):
        images = [IMAGE.read_bytes()] * (row + 1)
        assert [bytes(frame) for frame in values.pop("frames")] == images
        assert [bytes(frame) for frame in values.pop("film")] == images
        values["drawings"] = [decode_image(drawing).tolist() for drawing in values["drawings"]]
        values["drawing"], values["raw"] = decode_image(values["drawing"]), decode_image(values["raw"])
        expected = other(row)
        expected["drawings"] = [drawing.tolist() for drawing in expected["drawings"]]
        assert_same(values, expected)


def test_merged_index_does_not_duplicate_shards() -> None:
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


def test_uncompressed_shard_is_preferred() -> None:
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
def test_scalar_roundtrip(data: st.DataObject, encoding: str) -> None:
    dtype = np.dtype(scalars[encoding])
    value = data.draw(hnp.from_dtype(dtype, allow_nan=False))
    read = encoding_of(encoding)
    assert read.size == dtype.itemsize
    assert read.kind == Tensor(dtype.name)
    assert np.array(read.read(memoryview(value.tobytes())), dtype) == value


@given(st.data(), st.sampled_from(sorted(set(scalars.values()))), st.booleans())
@settings(deadline=None, max_examples=60)
def test_array_roundtrip_and_truncation(data: st.DataObject, dtype: str, declared: bool) -> None:
    shapes = hnp.array_shapes(max_dims=4, max_side=4) | st.tuples(st.integers(250, 260), st.just(2))
    array = data.draw(hnp.arrays(dtype, shapes, fill=st.just(1)))
    width = 0 if max(array.shape) < 256 else 1
    number = 8 * array.itemsize + {"u": 0, "i": 1, "f": 2}[array.dtype.kind]
    head = b"" if declared else bytes([number])
    head += bytes([array.ndim << 2 | width]) + np.array(array.shape, f"<u{1 << width}").tobytes()
    encoded = head + array.tobytes()
    read = encoding_of(f"ndarray:{dtype}" if declared else "ndarray").read
    np.testing.assert_array_equal(read(memoryview(encoded)), array, strict=True)
    with pytest.raises(SampleError):
        read(memoryview(encoded)[: data.draw(st.integers(0, len(encoded) - 1))])


@given(
    st.binary(max_size=64),
    st.sampled_from(["ndarray", "ndarray:int8", "list[jpeg]", "jpegarray", "pil", "json", "str"]),
)
@settings(deadline=None)
def test_any_bytes_decode_or_raise_sample_error(data: bytes, encoding: str) -> None:
    with suppress(SampleError):
        encoding_of(encoding).read(memoryview(data))


@pytest.mark.parametrize(
    ("encoding", "data", "reason"),
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
        ("jpeg_array", struct.pack("<3I", 2, 1, 9), "need 10 bytes and have 0"),
        ("pil", struct.pack("<3I", 2, 2, 1) + b"L123", "does not have 3 bytes"),
        ("pil", struct.pack("<3I", 1 << 31, 0, 1) + b"L", "does not have 0 bytes"),
        ("pil", struct.pack("<3I", 1, 1, 4) + b"CMYK1234", "mode 'CMYK'"),
        ("pil", struct.pack("<3I", 1, 1, 1 << 31) + b"L1", "mode 'L1'"),
        ("ndarray", b"\x0a\x05\x01\x01", "known dtype"),
        ("ndarray", b"\x08", "without its shape"),
        ("ndarray:uint8", bytes([4 << 2 | 3]) + b"\xff" * 32, "does not have 0 bytes"),
    ],
)
def test_bad_value_rejects_only_its_sample(encoding: str, data: bytes, reason: str) -> None:
    columns = {"id": ("int", 8), "value": (encoding, None)}
    bad = struct.pack("<Iq", len(data), 1) + data
    found = found_in(written([bad, bad], columns))
    assert [type(item) for item in found] == [Reject, Reject]
    assert found[1].name == "shard.00000.mds, sample 1"
    assert isinstance(found[1], Reject)
    assert found[1].reason.startswith("column 'value': ")
    assert reason in found[1].reason


def test_sample_with_wrong_sizes_rejects_only_itself() -> None:
    columns = {"id": ("int", 8), "text": ("str", None)}
    good = struct.pack("<Iq", 1, 5) + b"x"
    bad = [struct.pack("<Iq", 2, 5) + b"x", struct.pack("<Iq", 0, 5) + b"x", b"abc", struct.pack("<I", 0xFFFFFFFF)]
    found = found_in(written([*bad, good], columns))
    assert [type(item) for item in found] == [Reject, Reject, Reject, Reject, Row]
    assert isinstance(found[-1], Row)
    assert found[-1].values == {"id": 5, "text": "x"}


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
@settings(deadline=None, max_examples=150)
def test_damaged_shard_yields_rows_or_rejects(at: int, noise: bytes) -> None:
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
def test_truncated_shard_yields_its_first_samples(size: int) -> None:
    path = DATA / "plain/train/shard.00001.mds"
    store = open_store("memory://")
    index = json.loads((path.parent / "index.json").read_bytes())
    del index["shards"][0]
    store.put("index.json", json.dumps(index).encode())
    store.put("shard.00001.mds", path.read_bytes()[:size])
    *rows, last = found_in(store)
    assert [row.values["number"] for row in rows if isinstance(row, Row)] == list(range(2, 2 + len(rows)))
    assert isinstance(last, Reject)
    name = "shard.00001.mds"
    assert last.name == (f"{name}, from sample {len(rows)} on" if rows else name)
    assert "truncated" in last.reason or "cannot have" in last.reason


def reindexed(store: Store, **changes: Any) -> Store:
    index = json.loads(bytes(store.get("index.json")))
    index["shards"][0].update(changes)
    store.put("index.json", json.dumps(index).encode())
    return store


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressed_shard_of_wrong_size_is_rejected(compression: str, tmp_path: Path) -> None:
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


def test_decompression_bomb_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_limits, "HARMLESS_BYTES", 1 << 20)
    monkeypatch.setattr(_limits, "MAX_RATIO", 200)
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
    assert "truncated" in found.reason


def test_invalid_sample_offsets_are_rejected() -> None:
    columns = {"id": ("int", 8)}
    samples = [struct.pack("<q", number) for number in range(3)]
    whole = bytes(written(samples, columns).get("shard.00000.mds"))
    for at, number, reason in [
        (0, 4, "declares 4 samples"),
        (4, 1, "do not increase"),
        (8, 0, "do not increase"),
        (12, 1 << 31, "do not increase"),
        (16, 1 << 31, "is truncated: a sample ends at byte 2147483648"),
    ]:
        store = written(samples, columns)
        store.put("shard.00000.mds", whole[:at] + struct.pack("<I", number) + whole[at + 4 :])
        last = found_in(store)[-1]
        assert isinstance(last, Reject)
        assert reason in last.reason
    assert isinstance(reject := found_in(written(samples, columns, samples=1 << 31))[0], Reject)
    assert "declares 3 samples" in reject.reason


def test_sample_count_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mds, "_MAX_SAMPLES", 2)
    [found] = found_in(written([b"\0"] * 3, {"id": ("uint8", 1)}))
    assert isinstance(found, Reject)
    assert "cannot have 3 samples" in found.reason


@pytest.mark.parametrize(
    ("columns", "changes", "reason"),
    [
        ({"thing": ("pkl", None)}, {}, "column 'thing' is pickled, and pickles are never loaded"),
        ({"thing": ("complex64", 8)}, {}, "the encoding 'complex64', which is unknown"),
        ({"thing": ("str:utf-8", None)}, {}, "which is unknown"),
        ({"thing": ("ndarray:object", None)}, {}, "not a valid array encoding"),
        ({"thing": ("ndarray:int8:-1", None)}, {}, "not a valid array encoding"),
        ({"thing": ("ndarray:int8:4", 5)}, {}, "has values of 5 bytes; ndarray:int8:4 has 4"),
        ({"thing": ("int", None)}, {}, "has values of None bytes"),
        ({"id": ("int", 8)}, {"format": "json"}, "the format 'json'"),
        ({"id": ("int", 8)}, {"column_sizes": []}, "not the index"),
        ({"id": ("int", 8)}, {"samples": -1}, "not the index"),
        ({"id": ("int", 8)}, {"raw_data": None}, "not the index"),
        (
            {"id": ("int", 8)},
            {"raw_data": {"basename": "../shard.mds", "bytes": 4}},
            "'../shard.mds', which is missing",
        ),
        (
            {"id": ("int", 8)},
            {"compression": "lzma", "zip_data": {"basename": "index.json"}, "raw_data": {"basename": "x", "bytes": 4}},
            "compressed with 'lzma'",
        ),
    ],
)
def test_unsupported_index_raises(
    columns: dict[str, tuple[str, int | None]], changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=r"index\.json") as error:
        open_scan(written([bytes(8)], columns, **changes))
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "index", [b"", b"[]", b"{", b"{}", b'{"version": 1, "shards": []}', b"[" * 100_000, b'{"version": 2, "shards": 3}']
)
def test_invalid_index_raises(index: bytes) -> None:
    store = open_store("memory://")
    store.put("a/index.json", index)
    with pytest.raises(InvalidInputError, match=r"a/index\.json"):
        open_scan(store)


def test_empty_or_missing_index_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory://")
    with pytest.raises(InvalidInputError, match=r"no index\.json"):
        open_scan(store)
    store.put("index.json", b'{"version": 2, "shards": []}')
    with pytest.raises(InvalidInputError, match="name no shards"):
        open_scan(store)
    monkeypatch.setattr(_mds, "_MAX_INDEX_BYTES", 5)
    with pytest.raises(InvalidInputError, match="the limit for an index is 5"):
        open_scan(store)


def test_shards_with_different_columns_raise() -> None:
    store = open_store("memory://")
    for key, column in (("a", "x"), ("b", "y")):
        part = written([bytes(8)], {column: ("int", 8)})
        for name in ("index.json", "shard.00000.mds"):
            store.put(f"{key}/{name}", part.get(name))
    with pytest.raises(InvalidInputError, match="has different columns than"):
        open_scan(store)


def test_invalid_column_names_are_cleaned() -> None:
    names = ["__key__", "", "key", "a\nb", "pixel-values"]
    [row] = rows_of(written([bytes(5)], dict.fromkeys(names, ("uint8", 1))))
    assert list(row) == ["key", "column", "key_2", "a_b", "pixel-values"]


def test_shard_changed_since_listing_raises() -> None:
    for compression in ("zstd", "snappy"):
        store = open_store("memory://")
        name = f"shard.00000.mds.{compression}"
        for key in ("index.json", name):
            store.put(key, (DATA / compression / key).read_bytes())
        reader, scan = open_scan(store)
        store.put(name, b"something else")
        with pytest.raises(SourceChangedError):
            list(scan.rows(reader, scan.files))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["index.json", "shard.00000.mds"], True),
        (["a/index.json", "a/shard.00000.mds.zstd"], True),
        (["index.json", "chunk-0-0.bin"], False),
        (["shard.00000.mds"], False),
    ],
)
def test_recognised_by_file_names(keys: list[str], expected: bool) -> None:
    store = open_store("memory://")
    for key in keys:
        store.put(key, b"x")
    assert MDS.recognise(SourceListing(list(store.list()))) is expected
