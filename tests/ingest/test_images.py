"""Image folders: classes by folder, metadata tables and COCO files, and damaged or hostile images."""

import csv
import io
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

import penstock
from penstock.codecs import decode_image
from penstock.engine import BadSamples
from penstock.errors import InvalidInputError
from penstock.format import Column, as_column
from penstock.format.kinds import Boxes, Image, Json, Kind, Label, Link, Linked, List, Tensor, Text
from penstock.ingest import IngestOptions, Reject, Row, SourceListing, SourceScan, prepare, run
from penstock.ingest._reader import SourceReader
from penstock.ingest.sources._images import IMAGES
from penstock.storage import MemoryStore, ObjectInfo, Store, open_store
from penstock.testing import CountingStore, SourceTests


def image(seed: int = 0, format: str = "JPEG", size: tuple[int, int] = (24, 16)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    out = io.BytesIO()
    Pillow.fromarray(pixels).save(out, format)
    return out.getvalue()


JPEG = image()
BOXES = [[1.5, 2, 3, 4], [10, 20, 5, 5.25]]


def write(folder: Path, files: Mapping[str, bytes | str]) -> None:
    for key, data in files.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)


def filled(files: Mapping[str, bytes | str]) -> Store:
    store = open_store("memory://")
    for key, data in files.items():
        store.put(key, data.encode() if isinstance(data, str) else data)
    return store


class Looked:
    """The items that the source yields for a store."""

    def __init__(self, store: Store, *, link: bool = False) -> None:
        reader = SourceReader(store, link=link)
        self.scan: SourceScan = IMAGES.open(reader, list(store.list()))
        found = list(self.scan.rows(reader, self.scan.files))
        self.rows = {item.name: item.values for item in found if isinstance(item, Row)}
        self.rejects = [(item.name, item.reason) for item in found if isinstance(item, Reject)]

    def column(self, name: str) -> Column:
        return as_column(name, self.scan.columns[name])

    def kind(self, name: str) -> Kind:
        return self.column(name).kind

    def __getitem__(self, name: str) -> list[Any]:
        return [values[name] for values in self.rows.values()]


def look(files: Mapping[str, bytes | str], *, link: bool = False) -> Looked:
    return Looked(filled(files), link=link)


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for record in records for name in record)))
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def coco(
    images: Mapping[int, str], annotations: Sequence[Mapping[str, Any]], categories: Mapping[int, str] | None = None
) -> str:
    return json.dumps(
        {
            "images": [{"id": id, "file_name": name, "height": 16, "width": 24} for id, name in images.items()],
            "annotations": [{"id": number, **one} for number, one in enumerate(annotations)],
            "categories": [{"id": id, "name": name} for id, name in (categories or {}).items()],
        }
    )


def box(image_id: int, bbox: Any, category_id: int = 1, **more: Any) -> dict[str, Any]:
    return {"image_id": image_id, "bbox": bbox, "category_id": category_id, **more}


class TestFolders(SourceTests):
    source = IMAGES
    expected = 6

    def make(self, folder: Path) -> None:
        write(folder, {f"train/{label}/{n}.jpg": image(n) for label in ("cat", "dog") for n in range(2)})
        write(folder, {"val/cat/1.png": image(7, "PNG"), "val/dog/2.webp": image(8, "WEBP")})


class TestTable(SourceTests):
    source = IMAGES
    expected = 5

    def make(self, folder: Path) -> None:
        write(folder, {f"images/{n}.jpg": image(n) for n in range(5)})
        records = [{"file_name": f"images/{n}.jpg", "caption": f"no, {n}", "score": n / 2} for n in range(5)]
        write(folder, {"metadata.csv": csv_text(records)})


class TestLines(SourceTests):
    source = IMAGES
    expected = 3

    def make(self, folder: Path) -> None:
        write(folder, {f"{n}.jpg": image(n) for n in range(3)})
        records = [json.dumps({"image": f"{n}.jpg", "boxes": BOXES[:n], "more": {"n": n}}) for n in range(3)]
        write(folder, {"captions.jsonl": "\n".join(records)})


class TestCoco(SourceTests):
    source = IMAGES
    expected = 4

    def make(self, folder: Path) -> None:
        write(folder, {f"val2017/{n:012}.jpg": image(n) for n in range(4)})
        images = {n: f"{n:012}.jpg" for n in range(4)}
        write(
            folder,
            {
                "annotations/instances_val2017.json": coco(images, [box(1, BOXES[0]), box(3, BOXES[1])], {1: "cat"}),
                "annotations/captions_val2017.json": coco(images, [{"image_id": 2, "caption": "two"}]),
            },
        )


@given(st.integers(0, 6), st.integers(0, 6))
def test_recognised_if_half_of_the_files_are_images(images: int, others: int) -> None:
    keys = [f"a/{n}.JPG" for n in range(images)] + [f"a/{n}.txt" for n in range(others)]
    files = [ObjectInfo(key, 1, None, 0.0) for key in keys]
    assert IMAGES.recognise(SourceListing(files)) == (images > 0 and images >= others)


def test_a_class_per_folder() -> None:
    found = look({"dog/2.jpg": JPEG, "cat/1.jpeg": JPEG, "README.md": "x"})
    assert found.column("label") == Column(Label(("cat", "dog")))
    assert [bytes(value) for value in found["image"]] == [JPEG, JPEG]
    assert (found["path"], found["label"]) == (["cat/1.jpeg", "dog/2.jpg"], ["cat", "dog"])
    assert set(found.scan.columns) == {"image", "label", "path"}
    assert found.kind("image") == Image("jpeg")
    assert found.rejects == []


def test_several_splits_become_a_column() -> None:
    found = look({"d/train/cat/1.jpg": JPEG, "d/train/dog/1.jpg": JPEG, "d/val/dog/x/cat/1.jpg": JPEG})
    assert found["split"] == ["train", "train", "val"]
    assert found["label"] == ["cat", "dog", "cat"]
    one = look({"train/cat/1.jpg": JPEG, "train/dog/1.jpg": JPEG})
    assert set(one.scan.columns) == {"image", "label", "path"}


def test_class_named_train() -> None:
    found = look({"bus/1.jpg": JPEG, "train/1.jpg": JPEG, "test/1.jpg": JPEG})
    assert found["label"] == ["bus", "test", "train"]
    assert "split" not in found.scan.columns


def test_image_without_class_folder_has_null_label() -> None:
    found = look({"train/cat/1.jpg": JPEG, "train/dog/1.jpg": JPEG, "val/1.jpg": JPEG})
    assert found["label"] == ["cat", "dog", None]
    assert found.column("label").nullable


@pytest.mark.parametrize("keys", [("1.jpg", "2.jpg"), ("images/1.jpg", "images/2.jpg"), ("train/1.jpg", "test/2.jpg")])
def test_no_label_column_without_classes(keys: tuple[str, ...]) -> None:
    assert "label" not in look(dict.fromkeys(keys, JPEG)).scan.columns


def test_codec_is_the_most_common_one() -> None:
    found = look({"1.png": image(1, "PNG"), "2.tiff": image(2, "TIFF"), "3.PNG": image(3, "PNG")})
    assert found.kind("image") == Image("png")
    assert len(found.rows) == 3


NAMES = ["images/a b.jpg", "images/c,d.jpg", "images/é.jpg"]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "whole": st.integers(-(10**17), 10**17),
    "real": st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: not value.is_integer()),
    "truth": st.booleans(),
    "text": st.text(st.characters(categories=("L", "P", "Zs")), min_size=1).filter(lambda text: not text.isdigit()),
}
RECORDS = st.tuples(*[st.fixed_dictionaries({n: st.none() | v for n, v in VALUES.items()}) for _ in NAMES])


@settings(deadline=None)
@given(RECORDS)
def test_all_metadata_formats_give_equal_columns(metadata: tuple[dict[str, Any], ...]) -> None:
    metadata = tuple({**record, "text": f"~{record['text']}"} for record in metadata)
    records = [{"file_name": name, **record} for name, record in zip(NAMES, metadata, strict=True)]
    images: dict[str, bytes | str] = dict.fromkeys(NAMES, JPEG)
    tables = {
        "metadata.csv": csv_text(records),
        "labels.json": json.dumps(records),
        "any.json": json.dumps({"version": 1, "data": records}),
        "captions.jsonl": "".join(f"{json.dumps(record)}\n" for record in records),
    }
    for name, table in tables.items():
        found = look({**images, name: table})
        assert found.rejects == []
        for column in VALUES:
            expected = [record[column] for record in metadata]
            if any(value is not None for value in expected):
                assert found[column] == expected, name
                assert found.column(column).nullable == (None in expected)
            else:
                assert column not in found.scan.columns


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, 3], Tensor("int64")),
        ([1, 2.5, 3], Tensor("float64")),
        ([1 << 70, 1, 2], Json()),
        (["a", "b", "a"], Text()),
        (["a", 1, 2.5], Json()),
        ([{"a": 1}, {"b": [2]}, {}], Json()),
        ([[1, 2], [3, 4], [5, 6]], Tensor("int64", (2,))),
        ([[1, 2], [3.5], []], Tensor("float64", (None,))),
        ([["a"], [], ["b", "c"]], List(Text())),
        ([[[1, 2, 3, 4.5]], [], [[5, 6, 7, 8]]], Boxes(layout="xyxy")),
        ([[[1, 2, 3, 4]], [], [[50, 60, 7, 8]]], Boxes(layout="xywh")),
        ([[[1, 2, 3]], [], []], Json()),
    ],
)
@pytest.mark.parametrize("as_csv", [False, True])
def test_column_kind_fits_all_values(values: list[Any], kind: Kind, as_csv: bool) -> None:
    if as_csv and kind == Json() and not isinstance(values[0], dict | list):
        pytest.skip("in CSV all of these are text")
    cells = [json.dumps(v) if as_csv and isinstance(v, dict | list) else v for v in values]
    records = [{"file": f"{n}.jpg", "x": value} for n, value in enumerate(cells)]
    found = look({"t.csv" if as_csv else "t.json": csv_text(records) if as_csv else json.dumps(records)} | three())
    assert found.column("x") == Column(kind)
    assert found["x"] == values
    assert len(kind.to_array(found["x"])) == 3


def three() -> dict[str, bytes | str]:
    return {f"{n}.jpg": image(n) for n in range(3)}


def test_text_column_named_label_becomes_label() -> None:
    table = "filename;label\n0.jpg;dog\n1.jpg;cat\n2.jpg;dog\n"
    found = look({**three(), "labels.csv": table})
    assert found.kind("label") == Label(("cat", "dog"))
    assert found["label"] == ["dog", "cat", "dog"]


def test_leading_zeros_stay_text() -> None:
    found = look({**three(), "labels.csv": "image,id\n0.jpg,007\n1.jpg,12\n2.jpg,0\n"})
    assert found["id"] == ["007", "12", "0"]


def test_invalid_column_names_are_cleaned() -> None:
    table = ",File_Name,image,_hidden, a b \n0,0.jpg,x,y,z\n1,1.jpg,x,y,z\n2,2.jpg,x,y,z\n"
    found = look({**three(), "labels.csv": "\ufeff" + table})
    assert set(found.scan.columns) == {"image", "path", "given_image", "hidden", "a b"}
    assert (found["hidden"], found["given_image"]) == (["y"] * 3, ["x"] * 3)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("a/t.json", "1.jpg"),
        ("a/t.json", "./b/../1.jpg"),
        ("a/t.json", "a/1.jpg"),
        ("t.json", "a\\1.jpg"),
        ("notes/t.json", "../a/1.jpg"),
        ("notes/t.json", "1.jpg"),
    ],
)
def test_file_names_resolve_relative_to_table_or_root_or_by_base_name(table: str, name: str) -> None:
    found = look({"a/1.jpg": JPEG, table: json.dumps([{"file_name": name, "x": 5}])})
    assert found["x"] == [5]


@pytest.mark.parametrize("name", ["../1.jpg", "/1.jpg", "b/1.jpg", "", ".", "1.jpg\0", 5, None, ["1.jpg"]])
def test_file_names_outside_the_source_are_rejected(name: object) -> None:
    records = [{"file_name": "a/1.jpg"}, {"file_name": name}]
    found = look({"a/1.jpg": JPEG, "t.json": json.dumps(records)})
    assert found.rejects == [("t.json", f"entry 2 names {name!r}, which is not in the source")]
    assert len(found.rows) == 1


def test_ambiguous_base_names_are_not_resolved() -> None:
    images: dict[str, bytes | str] = {"train/1.jpg": JPEG, "val/1.jpg": JPEG}
    table = json.dumps([{"file_name": "1.jpg", "x": 5}])
    assert look({**images, "notes/labels_val.json": table}).rows.keys() == {"val/1.jpg"}
    [(name, reason)] = look({**images, "notes/labels.json": table}).rejects
    assert (name, "names no image of the source" in reason) == ("notes/labels.json", True)


def test_unmatched_images_and_entries_are_rejected() -> None:
    found = look({**three(), "metadata.csv": "file_name,x\n0.jpg,1\n9.jpg,2\n1.jpg\n2.jpg,3\n"})
    assert found.rejects == [
        ("1.jpg", "no entry in metadata.csv"),
        ("metadata.csv", "line 4 has 1 fields, and the header 2"),
        ("metadata.csv", "line 3 names '9.jpg', which is not in the source"),
    ]
    assert found["x"] == [1, 3]


def test_invalid_line_rejects_only_itself() -> None:
    found = look({**three(), "t.jsonl": '{"file": "0.jpg", "x": 1}\n\n{"file"\n[]\n{"file": "2.jpg"}'})
    assert found["x"] == [1, None]
    assert [name for name, _ in found.rejects] == ["1.jpg", "t.jsonl", "t.jsonl"]
    assert found.rejects[1][1].startswith("line 3 is not JSON")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.json", '{"a": ['),
        ("t.json", b'"\xff"'),
        ("t.json", "[" * 200_000),
        ("t.json", "1" * 10_000),
        ("t.csv", 'file_name,x\n"0.jpg,1\n'),
        ("t.csv", b"file_name,x\n0.jpg,\xff\xfe\n"),
    ],
)
def test_unparsable_metadata_file_raises(name: str, data: bytes | str) -> None:
    with pytest.raises(InvalidInputError, match=rf"{name}.* cannot be parsed.*fix it, or move it away"):
        look({**three(), name: data})


def test_unrelated_files_are_ignored() -> None:
    found = look(
        {
            **three(),
            "package.json": '{"name": "x", "version": [1]}',
            "classes.csv": "id,name\n1,cat\n",
            "log.jsonl": '{"at": 5}\nbroken',
            "0.json": "broken: belongs to 0.jpg",
            ".cache.json": "broken",
            "notes.txt": "file_name,x",
        }
    )
    assert set(found.scan.columns) == {"image", "path"}
    assert (len(found.rows), found.rejects) == (3, [])


def test_several_tables_and_splits() -> None:
    found = look(
        {
            "train/1.jpg": JPEG,
            "train/metadata.csv": "file_name,x\n1.jpg,1\n",
            "test/1.jpg": JPEG,
            "test/metadata.csv": "file_name,x,y\n1.jpg,2.5,z\n",
        }
    )
    assert {path: (v["split"], v["x"], v["y"]) for path, v in found.rows.items()} == {
        "test/1.jpg": ("test", 2.5, "z"),
        "train/1.jpg": ("train", 1.0, None),
    }
    assert found.kind("x") == Tensor("float64")


def test_several_records_per_image_become_lists() -> None:
    table = "image,caption,by\n0.jpg,a,me\n1.jpg,b,you\n0.jpg,c,me\n2.jpg,a,me\n0.jpg,a,me\n"
    found = look({**three(), "captions.csv": table})
    assert found["caption"] == [["a", "c", "a"], ["b"], ["a"]]
    assert found["by"] == ["me", "you", "me"]
    assert (found.kind("caption"), found.kind("by")) == (List(Text()), Text())


def test_folders_are_not_classes_next_to_metadata() -> None:
    found = look({"a/1.jpg": JPEG, "b/2.jpg": JPEG, "t.jsonl": '{"file":"a/1.jpg"}\n{"file":"b/2.jpg"}'})
    assert set(found.scan.columns) == {"image", "path"}


def test_coco() -> None:
    images = {7: "a.jpg", 8: "b.jpg", 9: "c.jpg"}
    objects = [box(8, BOXES[0], 3, area=5.5, iscrowd=1), box(7, BOXES[1], 90), box(8, BOXES[1], 90)]
    files = {f"val/{name}": image(id) for id, name in images.items()}
    found = look({**files, "annotations/instances_val.json": coco(images, objects, {3: "cat", 90: "dog"})})
    assert found.rejects == []
    assert found["image_id"] == [7, 8, 9]
    assert [value.tolist() for value in found["boxes"]] == [[BOXES[1]], BOXES, []]
    assert [value.tolist() for value in found["labels"]] == [[1], [0, 1], []]
    assert [value.tolist() for value in found["area"]] == [[5 * 5.25], [5.5, 5 * 5.25], []]
    assert [value.tolist() for value in found["iscrowd"]] == [[False], [True, False], []]
    assert found["categories"] == [["dog"], ["cat", "dog"], []]
    assert found.column("boxes") == Column(Boxes(layout="xywh"))
    assert found.column("labels") == Column(Tensor("int64", (None,)))
    assert "captions" not in found.scan.columns


def test_coco_files_are_merged() -> None:
    train, val = {1: "1.jpg"}, {1: "1.jpg", 2: "2.jpg"}
    found = look(
        {
            "train2017/1.jpg": JPEG,
            "val2017/1.jpg": JPEG,
            "val2017/2.jpg": JPEG,
            "annotations/captions_val2017.json": coco(val, [{"image_id": 2, "caption": c} for c in ("x", "y")]),
            "annotations/instances_train2017.json": coco(train, [box(1, BOXES[0], 1)], {1: "cat"}),
            "annotations/instances_val2017.json": coco(val, [box(1, BOXES[1], 5), box(1, BOXES[0], 5)], {5: "dog"}),
            "annotations/person_keypoints_val2017.json": coco(val, [box(1, BOXES[1], 1, keypoints=[0])], {1: "dog"}),
            "annotations/instances_test2017.json": coco({1: "9.jpg"}, []),
            "extra.csv": "path,weather\nval2017/2.jpg,rain\n",
        }
    )
    assert found["split"] == ["train2017", "val2017", "val2017"]
    assert found["captions"] == [[], [], ["x", "y"]]
    assert [value.tolist() for value in found["boxes"]] == [[BOXES[0]], [BOXES[1], BOXES[0]], []]
    assert found["categories"] == [["cat"], ["dog", "dog"], []]
    assert found["weather"] == [None, None, "rain"]
    [(name, reason)] = found.rejects
    assert (name, "names no image of the source" in reason) == ("annotations/instances_test2017.json", True)


def test_invalid_coco_entries_are_rejected() -> None:
    bad = [box(0, b) for b in ([1, 2, 3], [1, 2, -3, 4], "1234", [1, 2, 3, None], [1, 2, 3, 1e300], [10**400] * 4)]
    bad += [box(0, BOXES[0], 9), {"bbox": BOXES[0], "image_id": [0], "category_id": {}}, box(77, BOXES[0])]
    document = json.loads(coco({0: "0.jpg", 5: "5.jpg"}, [*bad, box(5, BOXES[0]), box(0, BOXES[0])], {1: "cat"}))
    document["images"] += ["x", {"file_name": "1.jpg"}]
    document["annotations"] += [None, "x"]
    found = look({**three(), "t.json": json.dumps(document)})
    assert found.rows.keys() == {"0.jpg"}
    assert found["boxes"][0].tolist() == [BOXES[0]]
    rejected = [reason for name, reason in found.rejects if name == "t.json"]
    assert len(rejected) == len(bad) + 2
    assert {name for name, _ in found.rejects} == {"1.jpg", "2.jpg", "t.json"}


def with_thumbnail(data: bytes) -> bytes:
    """A JPEG with an embedded JPEG thumbnail in its header."""
    inner = b"Exif\0\0" + JPEG
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(inner) + 2) + inner + data[2:]


@settings(deadline=None)
@given(st.data())
def test_truncated_image_is_rejected(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from(["JPEG", "PNG", "WEBP", "thumbnail"]))
    whole = with_thumbnail(image(3)) if format == "thumbnail" else image(3, format)
    cut = data.draw(st.integers(1, len(whole) - 1))
    padding = data.draw(st.sampled_from([0, 1, 700])) if format in ("JPEG", "thumbnail") else 0
    found = look({"ok.jpg": JPEG, "cut.jpg": whole[:cut] + bytes(padding)})
    assert found.rows.keys() == {"ok.jpg"}
    assert [name for name, _ in found.rejects] == ["cut.jpg"]


@pytest.mark.parametrize("more", [b"\0", b"\0" * 5000, b"\n", b"\xff\xda film of a phone " * 3, JPEG[:200]])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_trailing_bytes_are_accepted(format: str, more: bytes) -> None:
    whole = image(3, format) + more
    found = look({"1.jpg": whole})
    assert (bytes(found["image"][0]), found.rejects) == (whole, [])


def test_embedded_thumbnail_does_not_hide_truncation() -> None:
    whole = with_thumbnail(image(3)) + b"\0"
    assert look({"1.jpg": whole}).rejects == []


def bomb(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bomb(60_000), "60000 x 60000 pixels; the limit is"),
        (b"not an image at all", "expected an image"),
        (b"", "expected an image"),
        (b"RIFF\x04\0\0\0WAVE", "found wav"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "cannot read the header of png"),
    ],
)
def test_non_image_or_bomb_is_rejected(data: bytes, reason: str) -> None:
    found = look({"a/1.png": image(1, "PNG"), "a/2.png": data})
    assert found.rows.keys() == {"a/1.png"}
    [(name, why)] = found.rejects
    assert (name, reason in why) == ("a/2.png", True), why


def test_linking_reads_nothing() -> None:
    store = CountingStore(filled({"cat/1.jpg": JPEG, "dog/2.jpg": b"broken"}))
    found = Looked(store, link=True)
    assert store.requests["get"] == store.requests["head"] == 0
    assert found.kind("image") == Linked(Image("jpeg"))
    assert found["label"] == ["cat", "dog"]
    [first, _] = found["image"]
    assert first == Link("memory:/cat/1.jpg", 0, len(JPEG), store.head("cat/1.jpg").etag)


def test_images_without_an_entry_are_not_read() -> None:
    store = CountingStore(filled({**three(), "t.csv": "file\n1.jpg\n"}))
    assert Looked(store).rows.keys() == {"1.jpg"}
    assert store.requests["get"] == 2


def test_image_changed_since_listing_is_rejected() -> None:
    store = filled(three())
    reader = SourceReader(store)
    scan = IMAGES.open(reader, list(store.list()))
    store.put("0.jpg", JPEG)
    store.delete(["1.jpg"])
    found = list(scan.rows(reader, scan.files))
    assert [(type(item), item.name) for item in found] == [(Reject, "0.jpg"), (Reject, "1.jpg"), (Row, "2.jpg")]


class Untouchable(MemoryStore):
    """Fails the test if anything is read."""

    def __init__(self) -> None:
        self.uri = "memory://"

    def get(self, key: str, **_: Any) -> memoryview:
        raise AssertionError(f"{key} is read")


def test_size_limits() -> None:
    reader = SourceReader(Untouchable())
    image, table = ObjectInfo("1.jpg", 1 << 40, None, 0.0), ObjectInfo("t.json", (2 << 30) + 1, None, 0.0)
    scan = IMAGES.open(reader, [image])
    [rejected] = scan.rows(reader, [image])
    assert rejected == Reject("1.jpg", "has 1099511627776 bytes; the limit is 1073741824")
    with pytest.raises(InvalidInputError, match=r"t\.json has 2147483649 bytes.* 2147483648; split it"):
        IMAGES.open(reader, [image, table])
    with pytest.raises(InvalidInputError, match="has 1001 CSV and JSON files"):
        IMAGES.open(reader, [image, *(ObjectInfo(f"t{n}.json", 5, None, 0.0) for n in range(1001))])


def test_open_without_images_raises() -> None:
    with pytest.raises(InvalidInputError, match=r"there are no images in memory://: no file ends in \.jpg"):
        look({"a.txt": "x"})


def taken_in(store: Store, **options: Any) -> penstock.Dataset:
    ds = penstock.create("memory://")
    prepared = prepare(ds._session, store, {"images": IMAGES}, None, IngestOptions(**options))
    run(ds._session, prepared, bad_samples=BadSamples(action="skip", limit=100), message="", num_workers=2)
    return ds


def test_ingest_of_classes() -> None:
    ds = taken_in(filled({"dog/2.jpg": image(2), "cat/1.jpg": image(1), "cat/3.jpg": image(3)[:-9]}))
    assert list(ds["path"][:]) == ["cat/1.jpg", "dog/2.jpg"]
    assert list(ds["label"][:]) == [0, 1]
    assert np.array_equal(ds["image"][1], decode_image(image(2)))


def test_ingest_of_coco_objects(tmp_path: Path) -> None:
    TestCoco().make(tmp_path)
    ds = taken_in(open_store(str(tmp_path)))
    assert [row["boxes"].tolist() for row in ds] == [[], [BOXES[0]], [], [BOXES[1]]]
    assert [row["labels"].tolist() for row in ds] == [[], [0], [], [0]]
    assert [row["captions"] for row in ds] == [[], [], ["two"], []]
