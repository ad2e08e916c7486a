"""WebDataset: rows match the tar files, and damaged or hostile members are rejected by name."""

import gzip
import io
import pickle
import tarfile
import wave
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.codecs import ImageCodec
from penstock.errors import InvalidInputError, SourceChangedError
from penstock.format import as_column
from penstock.format.kinds import Audio, Bytes, Image, Json, Kind, Label, Link, Linked, Text, Video
from penstock.ingest import Reject, Row, SourceItem, SourceListing, SourceScan
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import RejectedFileError
from penstock.ingest.sources import _limits, _webdataset
from penstock.ingest.sources._webdataset import WEBDATASET
from penstock.storage import Store, open_store
from penstock.testing import CountingStore, SourceTests

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
Members = Sequence[tuple[str, bytes]]


def packed(members: Members, format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def raw_header(name: str, size: int, type: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, type
    return info.tobuf(tarfile.GNU_FORMAT)


def store_of(files: Mapping[str, bytes]) -> Store:
    store = open_store("memory://")
    for key, data in files.items():
        store.put(key, data)
    return store


def open_scan(store: Store, *, link: bool = False) -> tuple[SourceReader, SourceScan]:
    reader = SourceReader(store, link=link)
    return reader, WEBDATASET.open(reader, list(store.list()))


def found_in(store: Store, *, link: bool = False) -> list[SourceItem]:
    reader, scan = open_scan(store, link=link)
    return list(scan.rows(reader, scan.files))


def rows_of(files: Mapping[str, bytes]) -> list[Mapping[str, Any]]:
    found = found_in(store_of(files))
    assert all(isinstance(item, Row) for item in found), found
    return [item.values for item in found if isinstance(item, Row)]


def one_reject(members: Members) -> str:
    """The reject of the sample `bad`, between two valid samples that must be read."""
    good = [("first.jpg", image()), ("first.cls", b"1")], [("last.jpg", image()), ("last.cls", b"2")]
    found = found_in(store_of({"a.tar": packed([*good[0], *members, *good[1]])}))
    assert [type(item) for item in found] == [Row, Reject, Row]
    assert found[1].name == "a.tar/bad"
    reason = found[1]
    assert isinstance(reason, Reject)
    return reason.reason


def kinds(scan: SourceScan) -> dict[str, Kind]:
    return {name: as_column(name, column).kind for name, column in scan.columns.items()}


def image(codec: str = "jpeg", value: int = 7) -> bytes:
    return ImageCodec(codec).encode(np.full((6, 8, 3), value, np.uint8))


def sound() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(64))
    return out.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


class TestContract(SourceTests):
    source = WEBDATASET
    expected = 30

    def make(self, folder: Path) -> None:
        for shard in range(2):
            numbers = range(shard * 15, shard * 15 + 15)
            members = [
                (f"{number:03}.{ending}", data)
                for number in numbers
                for ending, data in (("jpg", image(value=number)), ("cls", b"%d" % number), ("json", b"[1]"))
            ]
            (folder / f"train-{shard}.tar").write_bytes(packed(members))


FILM = b"\0\0\0\x18ftypisom" + bytes(32)


def test_shards_of_the_reference_writer(tmp_path: Path) -> None:
    pixels = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
    vectors = [np.arange(4, dtype=np.float32) + number for number in range(7)]
    with webdataset.ShardWriter(str(tmp_path / "train-%03d.tar"), maxcount=3, verbose=0) as out:
        for number in range(7):
            about = {"number": number, "tags": ["x"]}
            out.write(
                {
                    "__key__": f"part/{number:04}",
                    "png": pixels + number,
                    "cls": number - 1,
                    "txt": "größe",
                    "json": about,
                    "pose.npy": vectors[number],
                }
            )
    reader, scan = open_scan(open_store(tmp_path))
    assert [file.key for file in scan.files] == ["train-000.tar", "train-001.tar", "train-002.tar"]
    assert kinds(scan) == {"key": Text(), "image": Image("png"), "label": Label(), "txt": Text(), "json": Json()}
    rows = [item for item in scan.rows(reader, scan.files) if isinstance(item, Row)]
    assert [row.name for row in rows[:4]] == [f"train-00{i // 3}.tar/part/{i:04}" for i in range(4)]
    for number, row in enumerate(rows):
        values = dict(row.values)
        np.testing.assert_array_equal(values.pop("pose_npy"), vectors[number])
        np.testing.assert_array_equal(ImageCodec("png").decode(values.pop("image")), pixels + number)
        assert values == {
            "key": f"part/{number:04}",
            "label": number - 1,
            "txt": "größe",
            "json": {"number": number, "tags": ["x"]},
        }
    assert len(rows) == 7


@pytest.mark.parametrize("link", [True, False])
def test_ingest_with_copies_or_links(link: bool, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    TestContract().make(source)
    (source / "broken.tar").write_bytes((source / "train-0.tar").read_bytes()[:5000])
    result = penstock.ingest(source, tmp_path / "table", link=link)
    assert (result.kind, result.rows) == ("webdataset", 31)
    assert {reject.name for reject in result.rejects} == {"broken.tar/001", "broken.tar, after 1 samples"}
    ds = penstock.load(tmp_path / "table", links=link)
    assert ds["label"][:].tolist() == [0, *range(30)]
    assert list(ds["key"][1:4]) == ["000", "001", "002"]
    assert [int(pixels[0, 0, 0]) for pixels in ds["image"][1:]] == list(range(30))
    assert penstock.ingest(source, tmp_path / "table", link=link).rows == 0


names = st.text(st.characters(exclude_characters="./", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=120)
samples = st.dictionaries(
    st.tuples(st.sampled_from(["", "a/", "b.v1/", "long" * 30 + "/"]), names.filter(lambda n: not n.startswith("_"))),
    st.dictionaries(st.sampled_from(["bin", "txt", "left.bin"]), st.text(max_size=700), min_size=1),
    min_size=1,
    max_size=6,
)


@given(samples, st.sampled_from(["gnu", "pax"]), st.sampled_from(["a.tar", "a.tar.gz", "a.tgz"]), st.booleans())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_shard_roundtrip(content: dict[tuple[str, str], dict[str, str]], format: str, key: str, link: bool) -> None:
    members = [
        (f"{folder}{stem}.{ending}", text.encode())
        for (folder, stem), endings in content.items()
        for ending, text in endings.items()
    ]
    data = packed(members, FORMATS[format])
    link = link and key == "a.tar" and all(data for _, data in members)
    found = found_in(store_of({key: gzip.compress(data) if key != "a.tar" else data}), link=link)
    columns = {"bin": "bin", "txt": "txt", "left.bin": "left_bin"}
    assert len(found) == len(content)
    for item, ((folder, stem), endings) in zip(found, content.items(), strict=True):
        assert isinstance(item, Row)
        values = {name: value for name, value in item.values.items() if value is not None}
        for name, value in values.items():
            if isinstance(value, Link):
                values[name] = data[value.offset : value.offset + (value.length or 0)]
        expected: dict[str, Any] = {columns[ending]: text.encode() for ending, text in endings.items()}
        if "txt" in endings:
            expected["txt"] = endings["txt"]
        assert values == {"key": folder + stem, **expected}


@pytest.mark.parametrize("format", FORMATS)
def test_links_point_at_member_bytes_and_only_copied_values_are_read(format: str) -> None:
    big = [bytes([number]) * (3 << 20) for number in range(6)]
    members = [
        member
        for number, data in enumerate(big)
        for member in ((f"{number}.mp4", FILM + data), (f"{number}.json", b'{"n": %d}' % number))
    ]
    data = packed(members, FORMATS[format])
    reader, scan = open_scan(store_of({"films/a.tar": data}), link=True)
    assert kinds(scan) == {"key": Text(), "mp4": Linked(Video("mp4")), "json": Json()}
    reader.byte_counter.bytes = 0
    for number, item in enumerate(scan.rows(reader, scan.files)):
        assert isinstance(item, Row)
        link = item.values["mp4"]
        assert link.uri == reader.uri("films/a.tar")
        assert link.etag == scan.files[0].etag
        assert data[link.offset : link.offset + link.length] == FILM + big[number]
        assert item.values["json"] == {"n": number}
    assert number == 5
    assert reader.byte_counter.bytes < 8 * (16 << 10)


def test_small_members_are_linked_with_few_requests() -> None:
    data = packed([(f"{number:03}.jpg", image(value=number)) for number in range(200)])
    store = CountingStore(store_of({"a.tar": data}))
    reader, scan = open_scan(store, link=True)
    store.reset()
    assert len(list(scan.rows(reader, scan.files))) == 200
    assert len(store.requests) <= 3


def test_columns_are_the_extensions_of_the_first_samples() -> None:
    members = [
        ("0.jpg", image()),
        ("0.seg.png", image("png")),
        ("0.wav", sound()),
        ("1.JPG", image()),
        ("1.wav", sound()),
        ("1.mp4", FILM),
        ("1.depth map", b"\0"),
        ("1.key", b"mine"),
        ("1.flow.x", b"f"),
        ("1.flow_x", b"g"),
    ]
    _, scan = open_scan(store_of({"a.tar": packed(members), "b.tar": packed([("9.xyz", b"")])}))
    columns = {name: as_column(name, column) for name, column in scan.columns.items()}
    assert {name: column.kind for name, column in columns.items()} == {
        "key": Text(),
        "image": Image("jpeg"),
        "seg_png": Image("png"),
        "wav": Audio("wav"),
        "mp4": Video("mp4"),
        "depth map": Bytes(),
        "key_2": Bytes(),
        "flow_x": Bytes(),
        "flow_x_2": Bytes(),
    }
    assert {name for name, column in columns.items() if not column.nullable} == {"key", "image", "wav"}


def test_two_image_formats_are_two_columns() -> None:
    rows = rows_of({"a.tar": packed([("0.jpg", image()), ("1.png", image("png"))])})
    assert [{name for name, value in row.items() if value is not None} for row in rows] == [
        {"key", "jpg"},
        {"key", "png"},
    ]
    assert rows[0]["png"] is None


def test_extensions_of_later_samples_are_in_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_webdataset, "_SAMPLED_SAMPLES", 1)
    rows = rows_of({"a.tar": packed([("0.txt", b"a"), ("1.txt", b"b"), ("1.new", b"c")])})
    assert rows == [{"key": "0", "txt": "a"}, {"key": "1", "txt": "b", "new": b"c"}]


def test_only_adjacent_members_are_a_sample_and_other_types_are_skipped() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in ("./d/0.txt", "README", "d/.hidden.txt", "__notes.v1__", "d/0.cls", "d/1.txt", "d/0.txt"):
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"5"))
            for type in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
                info = tarfile.TarInfo("d/0.png")
                info.type, info.linkname = type, "/etc/passwd"
                archive.addfile(info)
    assert rows_of({"a.tar": out.getvalue()}) == [
        {"key": "d/0", "txt": "5", "label": 5},
        {"key": "d/1", "txt": "5", "label": None},
        {"key": "d/0", "txt": "5", "label": None},
    ]


def test_scan_can_be_pickled_and_reads_files_in_any_order() -> None:
    reader, scan = open_scan(store_of({f"{n}.tar": packed([(f"{n}.txt", b"%d" % n)]) for n in range(3)}))
    reader, copy = pickle.loads(pickle.dumps((reader, scan)))
    found = list(copy.rows(reader, [scan.files[2], scan.files[0]]))
    assert [item.values["key"] for item in found] == ["2", "0"]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("bad.jpg", b"no image", "expected an image"),
        ("bad.jpg", b"", "expected an image"),
        ("bad.jpg", image()[:20], "header"),
        ("bad.cls", b"cat", "not a class index: b'cat'"),
        ("bad.cls", b"1" * 100, "not a class index"),
        ("bad.cls", b"+-1", "not a class index"),
        ("bad.cls", "١".encode(), "not a class index"),
        ("bad.txt", b"\xff", "not UTF-8 text"),
        ("bad.json", b"{", "not JSON"),
        ("bad.json", b"[NaN]", "NaN is not a JSON number"),
        ("bad.json", b"[" * 65 + b"]" * 65, "nested deeper than 64 levels"),
        ("bad.json", b'{"a":' * 100_000, "nested deeper than 64 levels"),
        ("bad.wav", b"RIFF----AVI " + bytes(40), "expected wav, found avi"),
        ("bad.flac", b"zero", "expected flac, found something else"),
        ("bad.mp4", b"\0" * 99, "expected mp4"),
        ("bad.npy", b"no", "not a .npy file"),
        ("bad.npy", npy(np.array([{}, print], object), allow_pickle=True), "never loaded"),
        ("bad.npy", npy(np.array(["text", "more"])), "strings per row"),
        ("bad.npy", npy(np.zeros(3, "i4,f4")), "structured array"),
        ("bad.npy", npy(np.zeros(8))[:-1], "declares 64 bytes of values, and 63 follow"),
        ("bad.npy", npy(np.zeros(8)).replace(b"(8,)", b"(-8,)"), "which is not valid"),
        ("bad.npy", npy(np.zeros(8)).replace(b"(8,), ", b"(9**9,)"), "its header cannot be parsed"),
        ("../bad.jpg", image(), "points outside the archive"),
        ("/bad.jpg", image(), "points outside the archive"),
        ("a/../bad.jpg", image(), "points outside the archive"),
    ],
)
def test_bad_member_rejects_only_its_sample(name: str, data: bytes, reason: str) -> None:
    good = [("0.jpg", image())]
    found = found_in(store_of({"a.tar": packed([*good, (name, data), ("z.jpg", image())])}))
    assert [type(item) for item in found] == [Row, Reject, Row]
    reject = found[1]
    assert isinstance(reject, Reject)
    assert reject.name == f"a.tar/{name.rpartition('.')[0]}"
    assert reject.reason.startswith(f".{name.rpartition('.')[2]}: ")
    assert reason in reject.reason


def test_one_bad_member_rejects_the_sample() -> None:
    assert "not UTF-8" in one_reject([("bad.jpg", image()), ("bad.txt", b"\xff"), ("bad.cls", b"1")])
    assert "two members" in one_reject([("bad.jpg", image()), ("bad.JPG", image())])


def test_json_nesting_limit() -> None:
    deep = b'[{"a":' * 32 + b"1" + b"}]" * 32
    assert rows_of({"a.tar": packed([("0.json", deep), ("1.json", b"[" + b"[]," * 99 + b"1]")])})[1]["json"][-1] == 1


def test_npy_member_roundtrip() -> None:
    arrays = [
        np.arange(6, dtype=">f8").reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(3.5),
        np.zeros((0, 4), np.uint8),
        np.array([True, False]),
    ]
    rows = rows_of({"a.tar": packed([(f"{n}.npy", npy(array)) for n, array in enumerate(arrays)])})
    for row, array in zip(rows, arrays, strict=True):
        np.testing.assert_array_equal(row["npy"], array, strict=False)
        assert row["npy"].shape == array.shape
        assert row["npy"].dtype.isnative


@cache
def whole_shard() -> tuple[bytes, list[SourceItem]]:
    members = [(f"{n}.{ending}", data) for n in range(3) for ending, data in (("jpg", image()), ("txt", b"x" * 600))]
    data = packed(members, tarfile.GNU_FORMAT)
    return data, found_in(store_of({"a.tar": data}))


@given(st.integers(0, 17), st.integers(0, 511), st.booleans())
@settings(deadline=None, max_examples=60)
def test_truncated_shard_yields_its_first_samples_and_a_reject(block: int, rest: int, pack: bool) -> None:
    whole, rows = whole_shard()
    cut = whole[: 512 * (18 - block) + rest]
    first = {"first.tar": packed([("0.jpg", image()), ("0.txt", b"")])}
    found = found_in(store_of({**first, "s.tar": cut} if not pack else {**first, "s.tar.gz": gzip.compress(cut)}))[1:]
    good = [item for item in found if isinstance(item, Row)]
    assert [item.values for item in good] == [item.values for item in rows[: len(good)] if isinstance(item, Row)]
    rejects = [item for item in found if isinstance(item, Reject)]
    assert len(good) == (17 - block) // 6  # of 18 blocks, six a sample, which ends with the header of the next
    assert rejects[-1].name == f"s.tar{'.gz' * pack}" + (f", after {len(good)} samples" if good else "")
    assert "truncated" in rejects[-1].reason


def test_truncated_compressed_shard_is_rejected() -> None:
    whole, _ = whole_shard()
    found = found_in(store_of({"a.tar": packed([("0.txt", b"")]), "s.tgz": gzip.compress(whole, mtime=0)[:-30]}))
    assert isinstance(found[-1], Reject)
    assert "cannot be decompressed" in found[-1].reason


def damaged(shard: bytes) -> list[SourceItem]:
    """The items of a shard after a valid one, which decides the columns."""
    return found_in(store_of({"a.tar": packed([("0.txt", b"a")]), "b.tar": shard}))[1:]


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        (raw_header("0.cls", 1 << 40), "is truncated: '0.cls' ends at byte"),
        (raw_header("0.cls", 8**12), "is truncated"),
        (raw_header("1.txt", -1), "negative size"),
        (b"\x7f" * 512, "is not a tar file from byte 1024 on"),
        (raw_header("1.txt", 0, tarfile.GNUTYPE_SPARSE), "sparse"),
        (raw_header("x", 2 << 20, tarfile.XHDTYPE) + bytes(2 << 20), "a header of 2097152 bytes"),
        (raw_header("x", 2 << 20, tarfile.GNUTYPE_LONGNAME) + bytes(2 << 20), "a header of 2097152 bytes"),
        (raw_header("x", 512, tarfile.XHDTYPE) + b"9" * 512, "damaged extended header"),
        (raw_header("x", 512, tarfile.XHDTYPE) + b"00 a=b\n" + b"x" * 505, "damaged extended header"),
        (raw_header("x", 10, tarfile.XHDTYPE) + b"10 size=x\n".ljust(512) + raw_header("1.txt", 0), "invalid size"),
        (
            raw_header("x", 5000, tarfile.GNUTYPE_LONGNAME) + (b"n" * 5000).ljust(5120, b"\0") + raw_header("1", 0),
            "a name of 5000 characters",
        ),
    ],
)
def test_damaged_header_ends_its_shard(middle: bytes, reason: str) -> None:
    first = raw_header("0.txt", 1) + b"x".ljust(512, b"\0")
    found = damaged(first + middle + bytes(1024))
    assert all(isinstance(item, Reject) for item in found)
    assert found[0].name == "b.tar/0"
    assert found[-1].name == "b.tar"
    assert isinstance(found[-1], Reject)
    assert reason in found[-1].reason


def test_pax_sparse_file_rejects_its_sample() -> None:
    record = b"GNU.sparse.major=1\n"
    record = b"%d %b" % (len(record) + 3, record)
    shard = raw_header("x", len(record), tarfile.XHDTYPE) + record.ljust(512, b"\0") + raw_header("0.txt", 0)
    first, second = damaged(shard + raw_header("1.txt", 1) + b"b".ljust(512, b"\0") + bytes(512))
    assert isinstance(first, Reject)
    assert "sparse" in first.reason
    assert second == Row("b.tar/1", {"key": "1", "txt": "b"})


def test_decompression_bomb_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_limits, "HARMLESS_BYTES", 1 << 20)
    monkeypatch.setattr(_limits, "MAX_RATIO", 200)
    zeros = packed([("0.txt", b"a"), ("1.txt", bytes(4 << 20)), ("2.txt", b"b")])
    with pytest.raises(RejectedFileError, match=r"b\.tar\.gz .*looks like a decompression bomb"):
        found_in(store_of({"a.tar": packed([("0.txt", b"a")]), "b.tar.gz": gzip.compress(zeros)}))


def test_oversized_sample_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_webdataset, "MAX_VALUE_BYTES", 1000)
    assert "larger than 1000 bytes" in one_reject([("bad.a", bytes(600)), ("bad.b", bytes(600))])


def test_member_count_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_webdataset, "_MAX_COLUMNS", 4)
    many = [(f"0.{number}", b"") for number in range(5)]
    with pytest.raises(InvalidInputError, match="more than 4 different extensions"):
        open_scan(store_of({"a.tar": packed(many)}))
    found = damaged(packed(many))
    assert isinstance(found[0], Reject)
    assert "more than 4 members" in found[0].reason


def test_empty_member_cannot_be_linked() -> None:
    found = found_in(store_of({"a.tar": packed([("0.jpg", b"")])}), link=True)
    assert isinstance(found[0], Reject)
    assert "nothing to link to" in found[0].reason


@pytest.mark.parametrize("key", ["a.tar.gz", "a.TGZ"])
def test_compressed_shard_cannot_be_linked(key: str) -> None:
    with pytest.raises(InvalidInputError, match="compressed, so its values cannot be linked"):
        open_scan(store_of({key: gzip.compress(packed([("0.jpg", image())]))}), link=True)


@pytest.mark.parametrize(
    ("files", "reason"),
    [({"a.txt": b"x"}, "no .tar"), ({"a.tar": b""}, "no sample"), ({"a.tar": b"no tar file"}, "no sample")],
)
def test_source_without_samples_raises(files: dict[str, bytes], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        open_scan(store_of(files))


def test_first_shard_with_samples_decides_the_columns() -> None:
    _, scan = open_scan(store_of({"a.tar": b"broken", "b.tar": bytes(1024), "c.tar": packed([("0.txt", b"")])}))
    assert set(scan.columns) == {"key", "txt"}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(["x/a.tar", "b.json"], True), (["a.TAR.GZ"], True), (["a.tgz"], True), (["a.gz"], False)],
)
def test_recognised_by_file_names(keys: list[str], expected: bool) -> None:
    store = store_of(dict.fromkeys(keys, b"x"))
    assert WEBDATASET.recognise(SourceListing(list(store.list()))) is expected


@pytest.mark.parametrize("link", [True, False])
def test_shard_changed_since_listing_raises(link: bool) -> None:
    store = store_of({"a.tar": packed([("0.jpg", image())])})
    reader, scan = open_scan(store, link=link)
    store.put("a.tar", packed([("1.jpg", image())]))
    with pytest.raises(SourceChangedError):
        list(scan.rows(reader, scan.files))


def test_compressed_shard_changed_since_listing_raises() -> None:
    store = store_of({"a.tgz": gzip.compress(packed([("0.jpg", image())]))})
    reader, scan = open_scan(store)
    store.put("a.tgz", b"something else")
    with pytest.raises(SourceChangedError):
        list(scan.rows(reader, scan.files))
