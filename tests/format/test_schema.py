"""Schemas: column declarations, inference from data, and their JSON form."""

import json
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import (
    Audio,
    Boxes,
    Bytes,
    Column,
    Field,
    Image,
    Json,
    Label,
    Link,
    Linked,
    List,
    Struct,
    Tensor,
    Text,
    Video,
)
from penstock.cli import main
from penstock.errors import InvalidInputError, NotFoundError
from penstock.format import Schema, as_column, infer_schema, make_field, make_schema
from tests.format.test_kinds import ForeignTensor, any_kind

steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def fields(draw: st.DrawFn) -> Field:
    kind, _ = draw(any_kind())
    page_bytes = draw(st.integers(1, 1 << 20))
    column = Column(
        kind,
        nullable=draw(st.booleans()),
        codec=draw(st.sampled_from([None, "none", "lz4", "zstd", "zstd:7"])),
        page_bytes=page_bytes,
        file_bytes=draw(st.integers(page_bytes, 1 << 30)),
    )
    return make_field(draw(st.sampled_from(["a", "ä b", "x.y/z", "数"])), column, fill=draw(st.none() | st.binary()))


@steady
@given(fields())
def test_a_field_round_trips_through_json(field: Field) -> None:
    text = json.dumps(field.to_json())
    assert Field.from_json(json.loads(text)) == field
    assert Field.from_json({**json.loads(text), "later": [1]}) == field


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (int, Tensor("int64")),
        (float, Tensor("float64")),
        (bool, Tensor("bool")),
        (complex, Tensor("complex128")),
        (str, Text()),
        (bytes, Bytes()),
        (dict, Json()),
        ("float32", Tensor("float32")),
        ("bfloat16", Tensor("bfloat16")),
        ("datetime64[ms]", Tensor("datetime64[ms]")),
        ("text", Text()),
        (np.uint8, Tensor("uint8")),
        (np.dtype("float16"), Tensor("float16")),
        (np.dtype(">i4"), Tensor("int32")),
        (Image(), Image()),
        (pa.int8(), Tensor("int8")),
        (pa.bool_(), Tensor("bool")),
        (pa.large_string(), Text()),
        (pa.string_view(), Text()),
        (pa.binary_view(), Bytes()),
        (pa.binary(16), Bytes()),
        (pa.timestamp("ms", "UTC"), Tensor("datetime64[ms]")),
        (pa.duration("ns"), Tensor("timedelta64[ns]")),
        (pa.date32(), Tensor("datetime64[s]")),
        (pa.dictionary(pa.int8(), pa.string()), Text()),
        (pa.list_(pa.float32()), Tensor("float32", (None,))),
        (pa.list_(pa.float32(), 3), Tensor("float32", (3,))),
        (pa.list_(pa.list_(pa.float32(), 3), 2), Tensor("float32", (2, 3))),
        (pa.list_(pa.list_(pa.int8())), List(Tensor("int8", (None,)))),
        (pa.list_(pa.string(), 2), List(Text())),
        (pa.struct({"a": pa.int8(), "b": pa.string()}), Struct({"a": Tensor("int8"), "b": Text()})),
        (pa.fixed_shape_tensor(pa.float16(), (2, 3)), Tensor("float16", (2, 3))),
        (pa.fixed_shape_tensor(pa.int8(), (2, 3), permutation=[1, 0]), Tensor("int8", (3, 2))),
    ],
    ids=str,
)
def test_column_declarations(given: Any, kind: penstock.format.kinds.Kind) -> None:
    schema = make_schema({"x": given})
    assert schema["x"].kind == kind
    assert not schema["x"].nullable


@pytest.mark.parametrize(
    "given",
    [
        list,
        "quaternion",
        None,
        5,
        np.longdouble,
        pa.decimal128(5),
        pa.time32("s"),
        pa.map_(pa.string(), pa.int8()),
        pa.null(),
    ],
    ids=str,
)
def test_invalid_declarations_are_rejected_by_name(given: Any) -> None:
    with pytest.raises(InvalidInputError, match="column 'x': "):
        make_schema({"x": given})


def test_an_arrow_schema_determines_nullability() -> None:
    schema = make_schema(pa.schema([pa.field("a", pa.int8()), pa.field("b", pa.string(), nullable=False)]))
    assert [(field.name, field.nullable) for field in schema] == [("a", True), ("b", False)]


@pytest.mark.parametrize("name", ["", "_row_id", "_", "a\nb", "x" * 256, "\x00", 5, None])
def test_invalid_names_are_rejected(name: Any) -> None:
    with pytest.raises(InvalidInputError, match="name"):
        make_schema({name: int})


def test_duplicate_names_are_rejected() -> None:
    one, other = make_field("a", int), make_field("a", str)
    with pytest.raises(InvalidInputError, match="duplicate column name 'a'"):
        Schema((one, other))


def test_the_name_of_a_validity_mask_is_reserved() -> None:
    with pytest.raises(InvalidInputError, match="'x_mask'"):
        make_schema({"x": Column(Tensor("int64"), nullable=True), "x_mask": str})
    assert make_schema({"x": int, "x_mask": str}).names == ["x", "x_mask"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"page_bytes": 0}, "page"),
        ({"page_bytes": 100, "file_bytes": 99}, "page_bytes"),
        ({"file_bytes": (1 << 30) + 1}, "1 GiB"),
        ({"codec": "rar"}, "rar"),
        ({"codec": "jpeg"}, "jpeg"),
    ],
)
def test_invalid_storage_options_are_rejected(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        Column(Tensor("int8"), **options)


def test_the_codec_of_an_image_column_is_the_image_codec() -> None:
    assert Column(Image(), codec="jpeg:70") == Column(Image("jpeg:70"), codec="none")


def test_an_unknown_column_lists_the_existing_ones() -> None:
    with pytest.raises(NotFoundError, match="no column 'c'; the table has a, b"):
        make_schema({"a": int, "b": int})["c"]


png = Image().to_array([np.zeros((2, 2, 3), np.uint8)])[0].as_py()
wav = b"RIFF\x24\0\0\0WAVEfmt " + bytes(20)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], Tensor("int64")),
        ([1, 2**63], Tensor("uint64")),
        ([1, 2.5], Tensor("float64")),
        ([True, False], Tensor("bool")),
        ([1j], Tensor("complex128")),
        ([np.int8(1), np.int16(2)], Tensor("int16")),
        ([np.float32(1)], Tensor("float32")),
        (["a"], Text()),
        ([b"a", bytearray(b"b"), memoryview(b"c")], Bytes()),
        ([png], Image("png", (2, 2, 3), inferred=True)),
        ([[png]], List(Image("png"))),
        ([png, b"x"], Bytes()),
        ([wav], Audio("wav")),
        ([PIL.Image.new("RGB", (3, 2))], Image("png", (2, 3, 3), inferred=True)),
        ([PIL.Image.new("L", (3, 2))], Image("png", (2, 3), inferred=True)),
        ([PIL.Image.new("RGB", (3, 2)), PIL.Image.new("L", (3, 2))], Image()),
        ([{"a": 1}], Json()),
        ([[1, 2], [3]], Tensor("int64", (None,))),
        ([(1.5,)], Tensor("float64", (None,))),
        ([["a"], []], List(Text())),
        ([[{"a": 1}]], List(Json())),
        ([np.zeros((2, 3)), np.zeros((4, 3))], Tensor("float64", (None, 3))),
        ([np.zeros(2, np.int8), np.zeros(2, np.int16)], Tensor("int16", (2,))),
        ([datetime(2020, 1, 1)], Tensor("datetime64[us]")),
        ([date(2020, 1, 1)], Tensor("datetime64[s]")),
        ([timedelta(1)], Tensor("timedelta64[us]")),
        ([np.datetime64("2020-01-01")], Tensor("datetime64[s]")),
        ([np.timedelta64(5, "ms")], Tensor("timedelta64[ms]")),
        ([ForeignTensor([1, 2]), ForeignTensor([3, 4])], Tensor("int64", (2,))),
        ([Link("s3://b/a.jpg"), Link("s3://b/b.JPEG")], Linked(Image("jpeg"))),
        ([Link("s3://b/a.jpg"), Link("s3://b/b.txt")], Linked(Bytes())),
        ([Path("a.mp4")], Video("mp4")),
        ([Path("a")], Bytes()),
        (np.zeros((3, 4), np.float32), Tensor("float32", (4,))),
        (np.zeros(3, ">f4"), Tensor("float32")),
        (np.array(["a"]), Text()),
        (np.array([b"a"]), Bytes()),
        (np.array(["2020-01-01"], "M8[D]"), Tensor("datetime64[s]")),
        (ForeignTensor(np.zeros((2, 3), np.int8)), Tensor("int8", (3,))),
        (range(3), Tensor("int64")),
        (pa.array([[1.0]], pa.list_(pa.float32())), Tensor("float32", (None,))),
        (pa.array([png]), Image("png", (2, 2, 3), inferred=True)),
        (pa.chunked_array([[b"x"], [b"y"]]), Bytes()),
    ],
    ids=lambda value: str(value) if isinstance(value, penstock.format.kinds.Kind) else type(value).__name__,
)
def test_a_kind_is_inferred_from_values(values: Any, kind: penstock.format.kinds.Kind) -> None:
    field = infer_schema({"x": values})["x"]
    assert (field.kind, field.nullable) == (kind, False)


@pytest.mark.parametrize(
    "values",
    [[1, None], np.array(["a", None], object), pa.array([1, None]), np.ma.masked_array([1, 2], [False, True])],
    ids=["list", "objects", "arrow", "masked"],
)
def test_none_makes_an_inferred_column_nullable(values: Any) -> None:
    assert infer_schema({"x": values})["x"].nullable


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        [[]],
        [1, "a"],
        [{1, 2}],
        [2**64],
        [-1, 2**63],
        [1, np.datetime64("2020", "s")],
        [np.zeros(2), np.zeros((2, 2))],
        np.zeros(2, np.longdouble),
        pa.array([None]),
        pa.array([1], pa.time32("s")),
    ],
    ids=str,
)
def test_inference_fails_if_no_kind_fits(values: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"column 'x': .*(give a schema|cast it first)"):
        infer_schema({"x": values})


def test_str_of_a_schema_has_one_line_per_column() -> None:
    schema = make_schema({"a": Column(Boxes(), nullable=True, codec="lz4"), "b": Label(("x", "y"))})
    assert str(schema) == "a: boxes(float32[?, 4])? [lz4]\nb: label(2 classes)"


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("text", Column(penstock.Text())),
        ("text?", Column(penstock.Text(), nullable=True)),
        ("json:zstd", Column(penstock.Json(), codec="zstd")),
        ("float32", Column(penstock.Tensor("float32"))),
        ("float32[3,4]:zstd:3?", Column(penstock.Tensor("float32", (3, 4)), nullable=True, codec="zstd:3")),
        ("uint8[?, 4]", Column(penstock.Tensor("uint8", (None, 4)))),
        ("uint8[?]?", Column(penstock.Tensor("uint8", (None,)), nullable=True)),
        ("datetime64[us]", Column(penstock.Tensor("datetime64[us]"))),
        ("datetime64[us][3]", Column(penstock.Tensor("datetime64[us]", (3,)))),
        ("image", Column(penstock.Image())),
        ("image:jpeg:90", Column(penstock.Image("jpeg:90"))),
        ("image[8,8,3]:webp", Column(penstock.Image("webp", (8, 8, 3)))),
        ("mask", Column(penstock.Mask())),
        ("audio:flac", Column(penstock.Audio("flac"))),
        ("video?", Column(penstock.Video(), nullable=True)),
        ("label", Column(penstock.Label())),
        ("label=cat,dog?", Column(penstock.Label(("cat", "dog")), nullable=True)),
        ("embedding[512]", Column(penstock.Embedding(512))),
        ("boxes=xywh", Column(penstock.Boxes(layout="xywh"))),
        ("points[2]", Column(penstock.Points(shape=(None, 2)))),
        ("list(text)?", Column(penstock.List(penstock.Text()), nullable=True)),
        ("list(list(int8))", Column(penstock.List(penstock.List(penstock.Tensor("int8"))))),
        ("<f4", Column(penstock.Tensor("float32"))),
        ("image:jpg", Column(penstock.Image("jpeg"))),
        ("linked(image:jpeg)", Column(penstock.Linked(penstock.Image("jpeg")))),
    ],
)
def test_types_are_parsed(text: str, column: Column) -> None:
    assert Column(text) == as_column("c", text) == column


@pytest.mark.parametrize(
    "text",
    ["", "nothing", "text=a", "text[3]", "float32[]", "float32[3,,4]", "float32[-1]", "image:jpeg:900", "image:zstd",
     "label=a,a", "embedding", "embedding[?]", "boxes=abcd", "list(text?)", "linked(float32)", "text:gzip", "Text",
     "mask:jpeg", "float32[3"],
)  # fmt: skip
def test_invalid_types_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"column 'c': "):
        as_column("c", text)


def test_types_are_the_same_text_in_python_and_on_the_command_line(tmp_path: Path) -> None:
    texts = {"x": "float32[14]", "img": "image:jpeg:90?", "kind": "label=a,b", "score": "float64:zstd"}
    options = [word for name, text in texts.items() for word in ("--column", f"{name}:{text}")]
    assert main(["create", str(tmp_path / "a"), *options]) == 0
    penstock.create(tmp_path / "b", texts)
    penstock.create(tmp_path / "c", {name: Column(text) for name, text in texts.items()})
    schemas = {str(penstock.load(tmp_path / name).schema) for name in "abc"}
    assert schemas == {"x: float32[14]\nimg: image(jpeg:90)?\nkind: label(2 classes)\nscore: float64 [zstd]"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: penstock.Label(10), r"names of a label are a list of strings, not 10"),  # type: ignore[arg-type]
        (lambda: penstock.List("text"), r"list or struct holds kinds, such as penstock.Text\(\), not 'text'"),  # type: ignore[arg-type]
        (lambda: penstock.Image(90), r"90 is not a codec"),  # type: ignore[arg-type]
        (lambda: penstock.Tensor("float32", 14), r"shape is a tuple of lengths, not 14"),  # type: ignore[arg-type]
        (lambda: penstock.Image(shape=224), r"shape is a tuple of lengths, not 224"),  # type: ignore[arg-type]
        (lambda: Column(penstock.Image), r"Image is a class; write penstock.Image\(…\)"),
        (lambda: Column(3), r"3 is neither a kind"),
    ],
)
def test_wrong_arguments_of_kinds_are_a_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()
