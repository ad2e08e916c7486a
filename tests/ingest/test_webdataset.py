"""WebDataset: rows are what the tar files hold, and what is broken or hostile is refused by name."""

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
from penstock.errors import InvalidInputError, SourceChanged
from penstock.format import as_column
from penstock.format.kinds import Audio, Bytes, Image, Json, Kind, Label, Link, Linked, Text, Video
from penstock.ingest import Found, Listing, Reading, Reject, Row
from penstock.ingest._bucket import Bucket
from penstock.ingest.sources import _expand, _webdataset
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


def opened(store: Store, *, link: bool = False) -> tuple[Bucket, Reading]:
    bucket = Bucket(store, link=link)
    return bucket, WEBDATASET.open(bucket, list(store.list()))


def found_in(store: Store, *, link: bool = False) -> list[Found]:
    bucket, reading = opened(store, link=link)
    return list(reading.rows(bucket, reading.files))


def rows_of(files: Mapping[str, bytes]) -> list[Mapping[str, Any]]:
    found = found_in(store_of(files))
    assert all(isinstance(item, Row) for item in found), found
    return [item.values for item in found if isinstance(item, Row)]


def one_reject(members: Members) -> str:
    """What is said about the sample `bad`, between two good ones that must come through."""
    good = [("first.jpg", picture()), ("first.cls", b"1")], [("last.jpg", picture()), ("last.cls", b"2")]
    found = found_in(store_of({"a.tar": packed([*good[0], *members, *good[1]])}))
    assert [type(item) for item in found] == [Row, Reject, Row]
    assert found[1].name == "a.tar/bad"
    reason = found[1]
    assert isinstance(reason, Reject)
    return reason.reason


def kinds(reading: Reading) -> dict[str, Kind]:
    return {name: as_column(name, column).kind for name, column in reading.columns.items()}


def picture(codec: str = "jpeg", value: int = 7) -> bytes:
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
                for ending, data in (("jpg", picture(value=number)), ("cls", b"%d" % number), ("json", b"[1]"))
            ]
            (folder / f"train-{shard}.tar").write_bytes(packed(members))


FILM = b"\0\0\0\x18ftypisom" + bytes(32)


def test_shards_of_its_own_writer(tmp_path: Path) -> None:
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
    bucket, reading = opened(open_store(tmp_path))
    assert [file.key for file in reading.files] == ["train-000.tar", "train-001.tar", "train-002.tar"]
    assert kinds(reading) == {"key": Text(), "image": Image("png"), "label": Label(), "txt": Text(), "json": Json()}
    rows = [item for item in reading.rows(bucket, reading.files) if isinstance(item, Row)]
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
def test_a_table_has_the_samples_copied_or_linked(link: bool, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    TestContract().make(source)
    (source / "broken.tar").write_bytes((source / "train-0.tar").read_bytes()[:5000])
    told = penstock.ingest(source, tmp_path / "table", link=link)
    assert (told.kind, told.rows) == ("webdataset", 31)
    assert {reject.name for reject in told.rejects} == {"broken.tar/001", "broken.tar, after 1 samples"}
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
def test_rows_are_what_was_packed(
    content: dict[tuple[str, str], dict[str, str]], format: str, key: str, link: bool
) -> None:
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
def test_links_point_at_the_bytes_and_only_what_is_copied_is_read(format: str) -> None:
    big = [bytes([number]) * (3 << 20) for number in range(6)]
    members = [
        member
        for number, data in enumerate(big)
        for member in ((f"{number}.mp4", FILM + data), (f"{number}.json", b'{"n": %d}' % number))
    ]
    data = packed(members, FORMATS[format])
    bucket, reading = opened(store_of({"films/a.tar": data}), link=True)
    assert kinds(reading) == {"key": Text(), "mp4": Linked(Video("mp4")), "json": Json()}
    bucket.meter.bytes = 0
    for number, item in enumerate(reading.rows(bucket, reading.files)):
        assert isinstance(item, Row)
        link = item.values["mp4"]
        assert link.uri == bucket.uri("films/a.tar")
        assert link.etag == reading.files[0].etag
        assert data[link.offset : link.offset + link.length] == FILM + big[number]
        assert item.values["json"] == {"n": number}
    assert number == 5
    assert bucket.meter.bytes < 8 * (16 << 10)


def test_small_members_are_linked_without_a_request_for_each() -> None:
    data = packed([(f"{number:03}.jpg", picture(value=number)) for number in range(200)])
    store = CountingStore(store_of({"a.tar": data}))
    bucket, reading = opened(store, link=True)
    store.reset()
    assert len(list(reading.rows(bucket, reading.files))) == 200
    assert len(store.requests) <= 3


def test_columns_are_the_endings_of_the_first_samples() -> None:
    members = [
        ("0.jpg", picture()),
        ("0.seg.png", picture("png")),
        ("0.wav", sound()),
        ("1.JPG", picture()),
        ("1.wav", sound()),
        ("1.mp4", FILM),
        ("1.depth map", b"\0"),
        ("1.key", b"mine"),
        ("1.flow.x", b"f"),
        ("1.flow_x", b"g"),
    ]
    _, reading = opened(store_of({"a.tar": packed(members), "b.tar": packed([("9.xyz", b"")])}))
    columns = {name: as_column(name, column) for name, column in reading.columns.items()}
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


def test_images_of_two_formats_are_two_columns() -> None:
    rows = rows_of({"a.tar": packed([("0.jpg", picture()), ("1.png", picture("png"))])})
    assert [{name for name, value in row.items() if value is not None} for row in rows] == [
        {"key", "jpg"},
        {"key", "png"},
    ]
    assert rows[0]["png"] is None


def test_what_only_later_samples_have_is_in_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_webdataset, "_SURVEYED_SAMPLES", 1)
    rows = rows_of({"a.tar": packed([("0.txt", b"a"), ("1.txt", b"b"), ("1.new", b"c")])})
    assert rows == [{"key": "0", "txt": "a"}, {"key": "1", "txt": "b", "new": b"c"}]


def test_only_neighbours_are_a_sample_and_the_rest_of_a_tar_is_passed_over() -> None:
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


def test_a_reading_goes_through_pickle_and_takes_files_in_any_order() -> None:
    bucket, reading = opened(store_of({f"{n}.tar": packed([(f"{n}.txt", b"%d" % n)]) for n in range(3)}))
    bucket, copy = pickle.loads(pickle.dumps((bucket, reading)))
    found = list(copy.rows(bucket, [reading.files[2], reading.files[0]]))
    assert [item.values["key"] for item in found] == ["2", "0"]


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("bad.jpg", b"no picture", "expected an image"),
        ("bad.jpg", b"", "expected an image"),
        ("bad.jpg", picture()[:20], "header"),
        ("bad.cls", b"cat", "not the number of a class: b'cat'"),
        ("bad.cls", b"1" * 100, "not the number"),
        ("bad.cls", b"+-1", "not the number"),
        ("bad.cls", "١".encode(), "not the number"),
        ("bad.txt", b"\xff", "not UTF-8 text"),
        ("bad.json", b"{", "not JSON"),
        ("bad.json", b"[NaN]", "NaN is no number in JSON"),
        ("bad.json", b"[" * 65 + b"]" * 65, "nested more than 64 deep"),
        ("bad.json", b'{"a":' * 100_000, "nested more than 64 deep"),
        ("bad.wav", b"RIFF----AVI " + bytes(40), "expected wav, found avi"),
        ("bad.flac", b"zero", "expected flac, found something else"),
        ("bad.mp4", b"\0" * 99, "expected mp4"),
        ("bad.npy", b"no", "not a .npy file"),
        ("bad.npy", npy(np.array([{}, print], object), allow_pickle=True), "never loaded"),
        ("bad.npy", npy(np.array(["text", "more"])), "strings a row"),
        ("bad.npy", npy(np.zeros(3, "i4,f4")), "structured array"),
        ("bad.npy", npy(np.zeros(8))[:-1], "should have 64 bytes and have 63"),
        ("bad.npy", npy(np.zeros(8)).replace(b"(8,)", b"(-8,)"), "its header cannot be understood"),
        ("bad.npy", npy(np.zeros(8)).replace(b"(8,), ", b"(9**9,)"), "its header cannot be understood"),
        ("../bad.jpg", picture(), "leads out of the archive"),
        ("/bad.jpg", picture(), "leads out of the archive"),
        ("a/../bad.jpg", picture(), "leads out of the archive"),
    ],
)
def test_a_bad_member_costs_its_sample_only(name: str, data: bytes, told: str) -> None:
    good = [("0.jpg", picture())]
    found = found_in(store_of({"a.tar": packed([*good, (name, data), ("z.jpg", picture())])}))
    assert [type(item) for item in found] == [Row, Reject, Row]
    reject = found[1]
    assert isinstance(reject, Reject)
    assert reject.name == f"a.tar/{name.rpartition('.')[0]}"
    assert reject.reason.startswith(f".{name.rpartition('.')[2]}: ")
    assert told in reject.reason


def test_one_member_of_many_spoils_its_sample() -> None:
    assert "not UTF-8" in one_reject([("bad.jpg", picture()), ("bad.txt", b"\xff"), ("bad.cls", b"1")])
    assert "two members" in one_reject([("bad.jpg", picture()), ("bad.JPG", picture())])


def test_json_may_be_nested_but_not_too_deep() -> None:
    deep = b'[{"a":' * 32 + b"1" + b"}]" * 32
    assert rows_of({"a.tar": packed([("0.json", deep), ("1.json", b"[" + b"[]," * 99 + b"1]")])})[1]["json"][-1] == 1


def test_numbers_of_numpy_files_come_as_they_are() -> None:
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
def whole_shard() -> tuple[bytes, list[Found]]:
    members = [(f"{n}.{ending}", data) for n in range(3) for ending, data in (("jpg", picture()), ("txt", b"x" * 600))]
    data = packed(members, tarfile.GNU_FORMAT)
    return data, found_in(store_of({"a.tar": data}))


@given(st.integers(0, 17), st.integers(0, 511), st.booleans())
@settings(deadline=None, max_examples=60)
def test_a_shard_that_is_cut_off_gives_its_first_samples_and_says_so(block: int, rest: int, pack: bool) -> None:
    whole, rows = whole_shard()
    cut = whole[: 512 * (18 - block) + rest]
    first = {"first.tar": packed([("0.jpg", picture()), ("0.txt", b"")])}
    found = found_in(store_of({**first, "s.tar": cut} if not pack else {**first, "s.tar.gz": gzip.compress(cut)}))[1:]
    good = [item for item in found if isinstance(item, Row)]
    assert [item.values for item in good] == [item.values for item in rows[: len(good)] if isinstance(item, Row)]
    rejects = [item for item in found if isinstance(item, Reject)]
    assert len(good) == (17 - block) // 6  # of 18 blocks, six a sample, which ends with the header of the next
    assert rejects[-1].name == f"s.tar{'.gz' * pack}" + (f", after {len(good)} samples" if good else "")
    assert "cut off" in rejects[-1].reason


def test_a_packed_shard_that_is_cut_off_says_so() -> None:
    whole, _ = whole_shard()
    found = found_in(store_of({"a.tar": packed([("0.txt", b"")]), "s.tgz": gzip.compress(whole, mtime=0)[:-30]}))
    assert isinstance(found[-1], Reject)
    assert "cannot be unpacked" in found[-1].reason


def damaged(shard: bytes) -> list[Found]:
    """What comes of a shard after a good one, which settles the columns."""
    return found_in(store_of({"a.tar": packed([("0.txt", b"a")]), "b.tar": shard}))[1:]


@pytest.mark.parametrize(
    ("middle", "told"),
    [
        (raw_header("0.cls", 1 << 40), "is cut off: '0.cls' should end at byte"),
        (raw_header("0.cls", 8**12), "is cut off"),
        (raw_header("1.txt", -1), "negative size"),
        (b"\x7f" * 512, "is no tar file from byte 1024 on"),
        (raw_header("1.txt", 0, tarfile.GNUTYPE_SPARSE), "sparse"),
        (raw_header("x", 2 << 20, tarfile.XHDTYPE) + bytes(2 << 20), "a header of 2097152 bytes"),
        (raw_header("x", 2 << 20, tarfile.GNUTYPE_LONGNAME) + bytes(2 << 20), "a header of 2097152 bytes"),
        (raw_header("x", 512, tarfile.XHDTYPE) + b"9" * 512, "damaged extended header"),
        (raw_header("x", 512, tarfile.XHDTYPE) + b"00 a=b\n" + b"x" * 505, "damaged extended header"),
        (raw_header("x", 10, tarfile.XHDTYPE) + b"10 size=x\n".ljust(512) + raw_header("1.txt", 0), "proper size"),
        (
            raw_header("x", 5000, tarfile.GNUTYPE_LONGNAME) + (b"n" * 5000).ljust(5120, b"\0") + raw_header("1", 0),
            "a name of 5000 characters",
        ),
    ],
)
def test_a_broken_header_ends_its_shard(middle: bytes, told: str) -> None:
    first = raw_header("0.txt", 1) + b"x".ljust(512, b"\0")
    found = damaged(first + middle + bytes(1024))
    assert all(isinstance(item, Reject) for item in found)
    assert found[0].name == "b.tar/0"
    assert found[-1].name == "b.tar"
    assert isinstance(found[-1], Reject)
    assert told in found[-1].reason


def test_a_sparse_file_of_pax_costs_its_sample() -> None:
    record = b"GNU.sparse.major=1\n"
    record = b"%d %b" % (len(record) + 3, record)
    shard = raw_header("x", len(record), tarfile.XHDTYPE) + record.ljust(512, b"\0") + raw_header("0.txt", 0)
    first, second = damaged(shard + raw_header("1.txt", 1) + b"b".ljust(512, b"\0") + bytes(512))
    assert isinstance(first, Reject)
    assert "sparse" in first.reason
    assert second == Row("b.tar/1", {"key": "1", "txt": "b"})


def test_a_bomb_is_not_unpacked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_expand, "_UNSUSPICIOUS_BYTES", 1 << 20)
    zeros = packed([("0.txt", b"a"), ("1.txt", bytes(4 << 20)), ("2.txt", b"b")])
    found = found_in(store_of({"a.tar": packed([("0.txt", b"a")]), "b.tar.gz": gzip.compress(zeros)}))
    assert [item.name for item in found] == ["a.tar/0", "b.tar.gz/0", "b.tar.gz/1", "b.tar.gz, after 1 samples"]
    assert isinstance(found[-1], Reject)
    assert "decompression bomb" in found[-1].reason


def test_a_sample_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_webdataset, "MAX_VALUE_BYTES", 1000)
    assert "larger than 1000 bytes" in one_reject([("bad.a", bytes(600)), ("bad.b", bytes(600))])


def test_a_sample_of_too_many_members_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_webdataset, "_MAX_COLUMNS", 4)
    many = [(f"0.{number}", b"") for number in range(5)]
    with pytest.raises(InvalidInputError, match="more than 4 different endings"):
        opened(store_of({"a.tar": packed(many)}))
    found = damaged(packed(many))
    assert isinstance(found[0], Reject)
    assert "more than 4 members" in found[0].reason


def test_an_empty_member_cannot_be_linked() -> None:
    found = found_in(store_of({"a.tar": packed([("0.jpg", b"")])}), link=True)
    assert isinstance(found[0], Reject)
    assert "nothing to link to" in found[0].reason


@pytest.mark.parametrize("key", ["a.tar.gz", "a.TGZ"])
def test_nothing_in_a_packed_shard_can_be_linked(key: str) -> None:
    with pytest.raises(InvalidInputError, match="compressed, so nothing in it can be linked"):
        opened(store_of({key: gzip.compress(packed([("0.jpg", picture())]))}), link=True)


@pytest.mark.parametrize(
    ("files", "told"),
    [({"a.txt": b"x"}, "no .tar"), ({"a.tar": b""}, "no sample"), ({"a.tar": b"no tar file"}, "no sample")],
)
def test_a_place_without_samples_is_refused(files: dict[str, bytes], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        opened(store_of(files))


def test_the_first_shard_with_samples_settles_the_columns() -> None:
    _, reading = opened(store_of({"a.tar": b"broken", "b.tar": bytes(1024), "c.tar": packed([("0.txt", b"")])}))
    assert set(reading.columns) == {"key", "txt"}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(["x/a.tar", "b.json"], True), (["a.TAR.GZ"], True), (["a.tgz"], True), (["a.gz"], False)],
)
def test_it_is_recognised_by_names(keys: list[str], expected: bool) -> None:
    store = store_of(dict.fromkeys(keys, b"x"))
    assert WEBDATASET.recognise(Listing(list(store.list()))) is expected


@pytest.mark.parametrize("link", [True, False])
def test_a_shard_that_changed_since_it_was_listed_raises(link: bool) -> None:
    store = store_of({"a.tar": packed([("0.jpg", picture())])})
    bucket, reading = opened(store, link=link)
    store.put("a.tar", packed([("1.jpg", picture())]))
    with pytest.raises(SourceChanged):
        list(reading.rows(bucket, reading.files))


def test_a_packed_shard_that_changed_raises_through_the_unpacking() -> None:
    store = store_of({"a.tgz": gzip.compress(packed([("0.jpg", picture())]))})
    bucket, reading = opened(store)
    store.put("a.tgz", b"something else")
    with pytest.raises(SourceChanged):
        list(reading.rows(bucket, reading.files))
