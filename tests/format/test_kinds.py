"""Every kind round trips its values, and rejects values that do not fit with their index."""

import pickle
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import PIL.Image
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock import (
    Audio,
    Boxes,
    Bytes,
    Embedding,
    Image,
    Json,
    Label,
    Link,
    Linked,
    List,
    Mask,
    Points,
    Struct,
    Tensor,
    Text,
    Video,
)
from penstock.errors import InvalidInputError, SampleError, UnsupportedFormatError
from penstock.format.kinds import KINDS, BadValueError, Kind, LinkTarget, kind_from_json, kind_to_json

PLAIN = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
TIMES = [f"{word}64[{unit}]" for word in ("datetime", "timedelta") for unit in ("s", "ms", "us", "ns")]
steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
DTYPES = [*PLAIN, "bool", "complex64", "complex128", *SMALL, *TIMES]


def arrays(dtype: str, shape: tuple[int, ...]) -> st.SearchStrategy[npt.NDArray[Any]]:
    """Any bit pattern of the dtype, including every NaN."""
    logical = Tensor(dtype).element.logical
    if dtype == "bool":
        return hnp.arrays(np.bool_, shape)
    bits = hnp.arrays(np.uint8, (*shape, logical.itemsize))
    return bits.map(lambda raw: np.ascontiguousarray(raw).view(logical).reshape(shape))


@st.composite
def tensors(draw: st.DrawFn) -> tuple[Tensor, list[Any]]:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.none() | st.integers(0, 3), max_size=3)))

    def row() -> Any:
        lengths = tuple(draw(st.integers(0, 3)) if length is None else length for length in shape)
        return draw(st.none() | arrays(dtype, lengths))

    return Tensor(dtype, shape), [row() for _ in range(draw(st.integers(0, 5)))]


def rows(kind: Kind, array: pa.Array) -> list[Any]:
    """Decoded values, with None for nulls."""
    values = kind.to_values(array)
    assert len(values) == len(array)
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def same(a: Any, b: Any) -> bool:
    """Equal in type, shape and every bit; lists and dictionaries recursively."""
    if isinstance(a, np.ndarray | np.generic) or isinstance(b, np.ndarray | np.generic):
        a, b = np.asarray(a), np.asarray(b)
        return bool(a.dtype == b.dtype) and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


def through_ipc(array: pa.Array) -> pa.Array:
    batch = pa.RecordBatch.from_arrays([array], ["x"])
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema).column(0)


def check_round_trip(kind: Kind, given: list[Any], expected: list[Any], start: int, count: int) -> None:
    array = kind.to_array(given)
    assert array.type == kind.arrow_type
    array.validate(full=True)
    assert kind.invalid_reason(array) is None
    assert same(rows(kind, array), expected)
    part = array.slice(start, count)
    assert same(rows(kind, part), expected[start : start + count])
    assert same(rows(kind, through_ipc(part)), expected[start : start + count])


@steady
@given(tensors(), st.integers(0, 5), st.integers(0, 5))
def test_tensors_of_every_dtype_and_shape_round_trip_bit_for_bit(
    drawn: tuple[Tensor, list[Any]], start: int, count: int
) -> None:
    kind, values = drawn
    check_round_trip(kind, values, values, start, count)


@steady
@given(st.data(), st.sampled_from(DTYPES), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_an_array_of_rows_round_trips(data: st.DataObject, dtype: str, shape: list[int]) -> None:
    whole = data.draw(arrays(dtype, tuple(shape)))
    kind = Tensor(dtype, tuple(shape[1:]))
    back = kind.to_values(kind.to_array(whole))
    assert isinstance(back, np.ndarray)
    assert same(back, whole)


@steady
@given(st.data(), st.sampled_from(DTYPES))
def test_strided_arrays_round_trip(data: st.DataObject, dtype: str) -> None:
    whole = data.draw(arrays(dtype, (4, 6)))
    whole.flags.writeable = False
    for strided in (whole[::-1], whole[::2, ::3], whole.T, whole.swapaxes(0, 1)[1:], np.asfortranarray(whole)):
        kind = Tensor(dtype, strided.shape[1:])
        assert same(kind.to_values(kind.to_array(strided)), np.ascontiguousarray(strided))
        ragged = Tensor(dtype, (None,))
        assert same(ragged.to_values(ragged.to_array(list(strided))), [np.ascontiguousarray(row) for row in strided])


@pytest.mark.parametrize("dtype", [name for name in (*PLAIN, "complex64", "complex128", *TIMES) if name[-1] != "8"])
def test_big_endian_arrays_are_converted(dtype: str) -> None:
    values = np.arange(6).astype(np.dtype(dtype).newbyteorder(">")).reshape(3, 2)
    kind = Tensor(dtype, (2,))
    assert same(kind.to_values(kind.to_array(values)), values.astype(np.dtype(dtype)))


word = st.text(max_size=5)
json_values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | word,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(word, inner | st.none(), max_size=3),
    max_leaves=5,
)


@st.composite
def any_kind(draw: st.DrawFn, depth: int = 2) -> tuple[Kind, st.SearchStrategy[Any]]:
    """A kind, and a strategy for its decoded values."""
    choices = ["tensor", "ragged", "text", "bytes", "json", "label"] + ["list", "struct"] * (depth > 0) * 2
    chosen = draw(st.sampled_from(choices))
    dtype = draw(st.sampled_from(DTYPES))
    if chosen == "tensor":
        shape = tuple(draw(st.lists(st.integers(0, 2), max_size=2)))
        return Tensor(dtype, shape), arrays(dtype, shape)
    if chosen == "ragged":
        return Tensor(dtype, (None, 2)), st.integers(0, 2).flatmap(lambda n: arrays(dtype, (n, 2)))
    if chosen == "list":
        kind, values = draw(any_kind(depth - 1))
        return List(kind), st.lists(st.none() | values, max_size=3)
    if chosen == "struct":
        fields = draw(st.dictionaries(st.sampled_from("abc"), any_kind(depth - 1), min_size=1, max_size=3))
        kind = Struct({name: inner for name, (inner, _) in fields.items()})
        return kind, st.fixed_dictionaries({name: st.none() | values for name, (_, values) in fields.items()})
    return {
        "text": (Text(), word),
        "bytes": (Bytes(), st.binary(max_size=5)),
        "json": (Json(), json_values),
        "label": (Label(("a", "b", "c")), st.integers(0, 2).map(np.int64)),
    }[chosen]


@steady
@given(st.data(), any_kind(), st.integers(0, 4), st.integers(0, 4))
def test_nested_kinds_round_trip(
    data: st.DataObject, drawn: tuple[Kind, st.SearchStrategy[Any]], start: int, count: int
) -> None:
    kind, strategy = drawn
    values = data.draw(st.lists(st.none() | strategy, max_size=4))
    check_round_trip(kind, values, values, start, count)


@steady
@given(any_kind())
def test_a_kind_round_trips_through_json(drawn: tuple[Kind, Any]) -> None:
    kind = drawn[0]
    assert kind_from_json(kind_to_json(kind)) == kind
    assert str(kind_from_json(kind_to_json(kind))) == str(kind)


OTHERS: list[Kind] = [
    Embedding(7),
    Embedding(7, "bfloat16"),
    Boxes(),
    Boxes("int32", layout="cxcywh"),
    Points(),
    Points("float64", (None, 2)),
    Label(),
    Label(("katze", "Hund 🐕")),
    Image(),
    Image("jpeg:80", (4, 4, 3)),
    Mask(),
    Audio(),
    Audio("wav"),
    Video("mp4"),
    Linked(Image("jpeg")),
    Linked(Text()),
]


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_every_other_kind_round_trips_through_json_and_pickle(kind: Kind) -> None:
    assert kind_from_json(kind_to_json(kind)) == kind
    assert pickle.loads(pickle.dumps(kind)) == kind
    assert KINDS[kind.name] is type(kind)


def test_unknown_parameters_of_a_kind_are_ignored() -> None:
    assert kind_from_json({**kind_to_json(Boxes()), "later": 1}) == Boxes()
    assert kind_from_json({**kind_to_json(Image()), "later": 1}) == Image()


def test_an_unknown_kind_is_rejected() -> None:
    with pytest.raises(UnsupportedFormatError, match=r"hologram.*upgrade"):
        kind_from_json({"kind": "hologram"})


REJECTED: dict[str, tuple[Kind, Any, int, str]] = {
    "int too large": (Tensor("int8"), [0, 1, 128], 2, "does not fit int8: found 128"),
    "int too small": (Tensor("uint16"), [0, -1], 1, "does not fit uint16: found -1"),
    "int too large in an array": (Tensor("uint8"), np.array([1, 2, 300, 4]), 2, "does not fit uint8: found 300"),
    "int too large for numpy": (Tensor("int64"), [1, 2**70], 1, "integers this large"),
    "int too large in a tensor": (Tensor("int8", (2,)), [[1, 2], [3, 400]], 1, "does not fit int8"),
    "int too large in a ragged tensor": (Tensor("int8", (None,)), [[1], [3, 400]], 1, "does not fit int8"),
    "float into int": (Tensor("int64"), [1, 2, 2.0], 2, "float64 values cannot be stored as int64"),
    "float too large": (Tensor("float32"), [0.0, 1e39], 1, r"does not fit float32: found 1e\+39"),
    "int too large for a float": (Tensor("float16"), [1, 70000], 1, "does not fit float16: found 70000"),
    "float too large for float8": (Tensor("float8_e4m3fn"), [1.0, 1e6], 1, "does not fit float8_e4m3fn"),
    "infinity in a dtype without one": (Tensor("float8_e4m3fn"), [1.0, float("inf")], 1, "found inf"),
    "complex into float": (Tensor("float64"), [1.0, 1j], 1, "complex128 values cannot be stored"),
    "int into bool": (Tensor("bool"), [True, 1], 1, "int64 values cannot be stored as bool"),
    "text into int": (Tensor("int64"), [1, "2"], 1, "strings cannot be stored as int64"),
    "object into int": (Tensor("int64"), [1, object()], 1, "type object cannot be stored"),
    "int into datetime": (Tensor("datetime64[s]"), [5], 0, "int64 values cannot be stored"),
    "datetime into timedelta": (Tensor("timedelta64[s]"), [datetime(2020, 1, 1)], 0, "type datetime cannot be"),
    "timedelta into datetime": (Tensor("datetime64[s]"), [timedelta(1)], 0, "type timedelta cannot be"),
    "time too precise": (Tensor("datetime64[s]"), np.array([0, 1500], "M8[ms]"), 1, "without loss"),
    "datetime too precise": (
        Tensor("datetime64[s]"),
        [datetime(2020, 1, 1, microsecond=5)],
        0,
        "without loss",
    ),
    "time out of range": (Tensor("datetime64[ns]"), np.array(["2020", "9999"], "M8[s]"), 1, "without loss"),
    "wrong shape": (Tensor("int64", (2,)), [[1, 2], [3]], 1, r"expected int64 of shape \(2,\), got shape \(1,\)"),
    "wrong shape of the array": (Tensor("int64", (2,)), np.zeros((3, 4), np.int64), 0, r"got shape \(4,\)"),
    "too few axes": (Tensor("int64", (2,)), [5], 0, r"got shape \(\)"),
    "a tensor for a scalar": (Tensor("int64"), [5, [6]], 1, "expected a int64 scalar"),
    "lists of unequal length": (Tensor("int64", (None, None)), [[[1], [2]], [[1], [2, 3]]], 1, "unequal length"),
    "wrong fixed axis": (Boxes(), [[[1, 2, 3, 4]], [[1, 2, 3]]], 1, r"got shape \(1, 3\)"),
    "None inside a tensor": (Tensor("int64", (None,)), [[1], [1, None]], 1, "NoneType, int cannot be stored"),
    "a partly masked row": (
        Tensor("int64", (2,)),
        np.ma.masked_array([[1, 2], [3, 4]], [[False, False], [False, True]]),
        1,
        "masked",
    ),
    "unknown class": (Label(("a", "b")), [0, 1, 2], 2, "class 2 is not one of the 2 classes"),
    "negative class": (Label(("a", "b")), np.array([0, -1]), 1, "class -1"),
    "unknown class name": (Label(("a", "b")), ["a", "c"], 1, "'c' is not one of the 2 class names"),
    "float class": (Label(), [0, 1.5], 1, "float64 values"),
    "int for text": (Text(), ["a", 5], 1, "expected a string, got int"),
    "bytes for text": (Text(), [b"a"], 0, "expected a string, got bytes"),
    "lone surrogate": (Text(), ["ok", None, "\ud800"], 2, "not valid Unicode"),
    "text for bytes": (Bytes(), [b"a", "b"], 1, "expected bytes, got str"),
    "nan in json": (Json(), [{}, {"a": float("nan")}], 1, "cannot be written as JSON"),
    "infinity in json": (Json(), [[float("inf")]], 0, "cannot be written as JSON"),
    "object in json": (Json(), [{}, {"a": {1, 2}}], 1, "set is not JSON serializable"),
    "integer keys in json": (Json(), [{}, [{"1": 2, 1: 3}]], 1, "the key 1 is not a string"),
    "surrogate in json": (Json(), ["\udcff"], 0, "cannot be written as JSON"),
    "text for a list": (List(Text()), [["a"], "abc"], 1, "expected a list, got str"),
    "int for a list": (List(Text()), [5], 0, "expected a list, got int"),
    "wrong item": (List(Tensor("int8")), [[1, 2], [], [3, 400]], 2, "in the list: a value does not fit int8"),
    "list for a struct": (Struct({"a": Text()}), [{"a": "x"}, ["x"]], 1, "expected a dictionary, got list"),
    "unknown field": (Struct({"a": Text()}), [{"a": "x"}, {"b": "x"}], 1, r"unknown field 'b'; the struct has \['a'\]"),
    "wrong field": (Struct({"a": Text()}), [{"a": "x"}, {"a": 1}], 1, "field 'a': expected a string"),
    "no image": (Image(), [b"GIF?"], 0, "not of an image format"),
    "image of floats": (Image(), [np.zeros((2, 2, 3))], 0, "float64"),
    "image of another shape": (Image(shape=(2, 2, 3)), [np.zeros((2, 3, 3), np.uint8)], 0, r"\(2, 2, 3\), got"),
    "text for an image": (Image(), ["cat.png"], 0, "got str"),
    "another audio format": (Audio("wav"), [b"fLaC" + bytes(40)], 0, "expected wav bytes, these are flac"),
    "text for video": (Video(), ["a.mp4"], 0, "expected encoded video as bytes, got str"),
    "no link": (Linked(Bytes()), ["s3://b/k"], 0, "expected a penstock.Link, got str"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_values_that_do_not_fit_are_rejected_by_index(case: str) -> None:
    kind, values, index, reason = REJECTED[case]
    with pytest.raises(BadValueError, match=reason) as caught:
        kind.to_array(values)
    assert caught.value.index == index
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.index, str(again)) == (index, str(caught.value))


class ForeignTensor:
    """The array interface that torch, jax and others share."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> "ForeignTensor":
        return ForeignTensor(self._values[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self._values.astype(dtype or self._values.dtype)


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("int64", [np.int8(1), np.uint64(2), True, np.array(3)], [1, 2, 1, 3]),
        ("float32", [1, np.float64(2.5), np.float16(3), ml_dtypes.bfloat16(4)], [1, 2.5, 3, 4]),
        ("float32", np.array([1, 2], ml_dtypes.float8_e5m2), [1, 2]),
        ("bfloat16", np.array([1.5, 2.5], np.float32), [1.5, 2.5]),
        ("complex64", [1, 2.5, 3j], [1, 2.5, 3j]),
        ("float32", [float("inf"), float("-inf")], [np.inf, -np.inf]),
        ("int64", ForeignTensor([1, 2, 3]), [1, 2, 3]),
        ("int64", [ForeignTensor(1), ForeignTensor(2)], [1, 2]),
        ("int64", range(3), [0, 1, 2]),
    ],
)
def test_conversions_that_lose_only_precision_are_accepted(dtype: str, values: Any, expected: list[Any]) -> None:
    kind = Tensor(dtype)
    assert same(kind.to_values(kind.to_array(values)), np.array(expected).astype(kind.element.logical))


@pytest.mark.parametrize(
    "value",
    [
        datetime(2020, 5, 17, 10),
        datetime(2020, 5, 17, 10, tzinfo=UTC),
        datetime(2020, 5, 17, 12, tzinfo=timezone(timedelta(hours=2))),
        np.datetime64("2020-05-17T10", "h"),
    ],
)
def test_python_datetimes_are_stored_in_utc(value: Any) -> None:
    kind = Tensor("datetime64[ms]")
    assert same(kind.to_values(kind.to_array([value])), np.array(["2020-05-17T10"], "M8[ms]"))


def test_python_dates_and_timedeltas_are_accepted() -> None:
    days = Tensor("datetime64[s]", (None,))
    assert same(days.to_values(days.to_array([[date(2020, 1, 2)]])), [np.array(["2020-01-02"], "M8[s]")])
    lengths = Tensor("timedelta64[us]")
    assert same(lengths.to_values(lengths.to_array([timedelta(microseconds=7)])), np.array([7], "m8[us]"))


def test_masked_rows_are_null() -> None:
    kind = Tensor("int64", (2,))
    array = kind.to_array(np.ma.masked_array([[1, 2], [3, 4]], [[False, False], [True, True]]))
    assert array.is_valid().to_pylist() == [True, False]
    assert Label().to_array(np.ma.masked_array([1, 2], [True, False])).to_pylist() == [None, 2]


def test_an_empty_list_fits_any_ragged_shape() -> None:
    kind = Boxes()
    back = kind.to_values(kind.to_array([[], np.zeros((0, 4), np.float32)]))
    assert [row.shape for row in back] == [(0, 4), (0, 4)]


def test_null_arrays_decode_to_none() -> None:
    """The array of a column that was added without values."""
    for kind in (
        Boxes(),
        Tensor("complex64", (None, 2)),
        Struct({"a": Boxes(), "b": Tensor("bool", (2,))}),
        List(Boxes()),
    ):
        assert rows(kind, pa.nulls(3, kind.arrow_type)) == [None, None, None]


@pytest.mark.parametrize("values", [["a", "b"], np.array(["a", "b"]), [np.str_("a"), np.int8(1)]])
def test_labels_are_given_by_name_or_index(values: Any) -> None:
    kind = Label(("a", "b"))
    assert kind.to_values(kind.to_array(values)).tolist() == [0, 1]  # type: ignore[union-attr]


def test_images_round_trip_losslessly() -> None:
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    kind = Image("png", (4, 4, 3))
    encoded = kind.to_array([image, PIL.Image.fromarray(image), None])
    assert same(kind.to_values(encoded), np.stack([image, image, np.zeros_like(image)]))
    assert kind.to_array([bytes(encoded[0].as_py())])[0] == encoded[0]


@pytest.mark.parametrize("shape", [None, (2, 2)])
def test_a_mask_preserves_16_bits(shape: tuple[int, ...] | None) -> None:
    mask = np.array([[0, 255], [256, 65535]], np.uint16)
    kind = Mask(shape=shape)
    assert same(kind.to_values(kind.to_array([mask]))[0], mask)


def test_an_image_of_another_shape_raises_sample_error() -> None:
    encoded = Image().to_array([np.zeros((2, 3, 3), np.uint8)])
    with pytest.raises(SampleError, match=r"shape \(2, 3, 3\), the buffer is uint8 of shape \(2, 2, 3\)"):
        Image(shape=(2, 2, 3)).to_values(encoded)


def test_link_targets_round_trip() -> None:
    targets = [LinkTarget("c", "a/b", 1, 2, "etag", 2**32 - 1), None, LinkTarget("c", "d", 0, 0, None, None)]
    kind = Linked(Bytes())
    assert kind.to_values(kind.to_array(targets)) == targets


INVALID: dict[str, tuple[Kind, Any, str]] = {
    "ragged with a null": (Tensor("int32", (None,)), [[1, None]], "null"),
    "tensor with a null": (Tensor("int32", (2,)), [[1, None]], "null"),
    "bool that is 2": (Tensor("bool"), [2], "1 and 0"),
    "bools that are 2": (Tensor("bool", (None,)), [[1, 2]], "1 and 0"),
    "half a complex element": (Tensor("complex64", (None,)), [[1.0]], "two stored values"),
    "shape and data mismatch": (Tensor("int8", (None, 2)), [{"data": [1, 2, 3], "shape": [2, 2]}], "shape"),
    "another fixed axis": (Tensor("int8", (None, 2)), [{"data": [1, 2, 3], "shape": [1, 3]}], "shape"),
    "negative shape": (Tensor("int8", (None, None)), [{"data": [1], "shape": [-1, -1]}], "shape"),
    "no shape": (Tensor("int8", (None, None)), [{"data": [1], "shape": None}], "shape"),
    "unknown class": (Label(("a",)), [1], "classes"),
    "invalid json": (Json(), ["{"], "JSON"),
    "no image": (Image(), [b"x"], "image format"),
    "invalid json in a list": (List(Json()), [["1", "{"]], "JSON"),
    "unknown class in a struct": (Struct({"a": Text(), "b": Label(("a",))}), [{"a": "x", "b": 1}], "classes"),
    "stored links": (Linked(Bytes()), [{"path": "x"}], "Link"),
}


@pytest.mark.parametrize("case", INVALID)
def test_foreign_arrays_are_validated(case: str) -> None:
    kind, values, reason = INVALID[case]
    storage = kind.arrow_type
    if isinstance(storage, pa.BaseExtensionType):
        array = pa.ExtensionArray.from_storage(storage, pa.array([None, *values], storage.storage_type))
    else:
        array = pa.array([None, *values], storage)
    assert reason in (kind.invalid_reason(array) or "")
    assert kind.invalid_reason(array.slice(0, 1)) is None


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Tensor("quaternion"), "not an element type"),
        (lambda: Tensor("float32", (-1,)), "negative"),
        (lambda: Boxes(layout="zyx"), "xyxy"),
        (lambda: Label(("a", "a")), "unique"),
        (lambda: Label("cat"), "list of strings"),  # type: ignore[arg-type]
        (lambda: Label((1, 2)), "list of strings"),  # type: ignore[arg-type]
        (lambda: Struct({}), "needs fields"),
        (lambda: Struct([("a", Text()), ("a", Text())]), "differ"),
        (lambda: Struct({"a": Linked(Bytes())}), "whole column"),
        (lambda: List(Linked(Bytes())), "whole column"),
        (lambda: Linked(Tensor("int8")), "bytes or text"),
        (lambda: Mask("jpeg"), "lossless"),
        (lambda: Image("mp3"), "mp3"),
        (lambda: Link("a", offset=-1), "not be negative"),
        (lambda: Link("a", length=-1), "not be negative"),
        (lambda: Link("a", crc32c=2**32), "32 bits"),
    ],
)
def test_invalid_kinds_and_links_are_rejected(make: Any, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        make()
