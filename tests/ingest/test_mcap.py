"""Robot logs as rows: topics, alignment in time, and damaged files."""

import io
import struct
import sys
import tracemalloc
import warnings
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType, Writer
from mcap_protobuf.writer import Writer as ProtobufWriter
from mcap_ros2._dynamic import serialize_dynamic
from PIL import Image as Pillow

from penstock.errors import InvalidInputError, PenstockWarning
from penstock.format import as_column
from penstock.format.kinds import Bytes, Image, Json, Kind, List, Tensor, Text
from penstock.ingest import Reject, Row, SourceItem
from penstock.ingest._reader import SourceReader
from penstock.ingest.sources import _mcap_log
from penstock.ingest.sources._mcap import MCAP, open_mcap
from penstock.ingest.sources._mcap_log import Channel, McapLimits
from penstock.ingest.sources._mcap_messages import decoder_of
from penstock.storage import open_store
from penstock.testing import SourceTests
from tests.ingest.robot_logs import (
    IMAGE,
    JOINT_STATE,
    LAYOUTS,
    MS,
    START_NS,
    header,
    image_json,
    jpeg,
    json_log,
    raw_log,
    ros2_log,
    write_log,
)

SECOND = 1000 * MS
INDEXED = ("zstd and index", "lz4", "plain", "no message index")


class TestMcap(SourceTests):
    source = MCAP
    expected = 12

    def make(self, folder: Path) -> None:
        write_log(folder / "one.mcap", images=5)
        write_log(folder / "two.mcap", seed=1, images=7)


class Ingested:
    """The rows and rejects of logs in memory."""

    def __init__(self, logs: Mapping[str, bytes], **options: Any) -> None:
        store = open_store("memory://")
        for key, data in logs.items():
            store.put(key, data)
        self.reader = SourceReader(store)
        self.scan = open_mcap(self.reader, sorted(store.list(), key=lambda file: file.key), **options)
        found: list[SourceItem] = list(self.scan.rows(self.reader, self.scan.files))
        self.rejects = [item for item in found if isinstance(item, Reject)]
        self.rows = [item.values for item in found if isinstance(item, Row)]
        self.kinds: dict[str, Kind] = {n: as_column(n, c).kind for n, c in self.scan.columns.items()}
        self.nullable = {n for n, c in self.scan.columns.items() if as_column(n, c).nullable}
        for row in self.rows:
            for name, kind in self.kinds.items():
                assert name in self.nullable or row[name] is not None
                kind.to_array([row[name]])

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]


def ingest(data: bytes, **options: Any) -> Ingested:
    return Ingested({"log.mcap": data}, **options)


def ros(type: str, definition: str, *messages: Any, topic: str = "/t") -> Ingested:
    return ingest(ros2_log((number * MS, topic, type, definition, value) for number, value in enumerate(messages)))


def js(*messages: Any, topic: str = "/t", **options: Any) -> Ingested:
    return ingest(json_log(((number * MS, topic, value) for number, value in enumerate(messages)), **options))


def times(least: int = 0) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 5000).map(lambda ms: START_NS + ms * MS), min_size=least, max_size=25)


@settings(max_examples=60, deadline=None)
@given(
    rows=times(least=1),
    fast=times(),
    slow=times(),
    layout=st.sampled_from(sorted(LAYOUTS)),
    chunk_size=st.sampled_from([1, 200, 1 << 20]),
    shuffled=st.booleans(),
    rng=st.randoms(use_true_random=False),
)
def test_row_has_the_last_message_of_each_topic(
    rows: list[int], fast: list[int], slow: list[int], layout: str, chunk_size: int, shuffled: bool, rng: Any
) -> None:
    said = {"/fast": {time: time for time in fast}, "/slow": {time: time for time in slow}}
    messages = [(time, topic, {"at": time}) for topic, values in said.items() for time in sorted(values)]
    messages += [(time, "/camera", {"at": time}) for time in sorted(rows)]
    messages.sort(key=lambda message: message[0])
    if shuffled and layout in INDEXED:  # only an index bounds the times of later chunks
        rng.shuffle(messages)
    ingested = ingest(json_log(messages, chunk_size=chunk_size, **LAYOUTS[layout]), reference="/camera")
    assert not ingested.rejects
    assert [int(time.astype(np.int64)) for time in ingested.column("timestamp")] == sorted(rows)
    assert ingested.column("camera") == sorted(rows)
    for topic, values in said.items():
        for row, time in zip(ingested.rows, sorted(rows), strict=True):
            last = max((before for before in values if before <= time), default=None)
            known = None if last is None or time - last > SECOND else last
            assert row.get(topic.strip("/")) == known


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_do_not_depend_on_the_file_layout(layout: str) -> None:
    messages = [(START_NS + n * MS, "/camera" if n % 5 == 0 else "/joints", _camera_or_joints(n)) for n in range(60)]
    ingested = ingest(json_log(messages, chunk_size=4000, **LAYOUTS[layout]))
    plain = ingest(json_log(messages))
    assert not ingested.rejects
    assert ingested.kinds == plain.kinds
    assert [bytes(data) for data in ingested.column("camera")] == [jpeg(n) for n in range(0, 60, 5)]
    assert [_to_python(angles) for angles in ingested.column("joint_angles")] == [
        None,
        *([n - 1.0, 2] for n in range(5, 60, 5)),
    ]


def _camera_or_joints(number: int) -> Any:
    return image_json(number) if number % 5 == 0 else {"name": ["a", "b"], "position": [number, 2]}


def _to_python(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def test_slightly_out_of_order_messages_are_sorted() -> None:
    order = [0, 300, 100, 200, 700, 500, 600, 1900, 1500]
    ingested = ingest(json_log([(time * MS, "/x", time) for time in order], use_chunking=False))
    assert ingested.column("x") == sorted(order)
    assert not ingested.rejects


def test_far_out_of_order_messages_are_rejected() -> None:
    messages = [(time * MS, "/x", time) for time in [0, 5000, 5001, 5002, 100, 9000]]
    ingested = ingest(json_log(messages, use_chunking=False), limits=McapLimits(window_bytes=600))
    assert ingested.column("x") == [0, 5000, 5001, 5002, 9000]
    assert [reject.name for reject in ingested.rejects] == ["log.mcap, late messages"]
    assert "1 messages" in ingested.rejects[0].reason


def test_value_at_the_time_of_the_row_is_included() -> None:
    ingested = ingest(json_log([(5 * MS, "/camera", 1), (5 * MS, "/joint", 2)]), reference="/camera")
    assert ingested.column("joint") == [2]


def test_stale_values_are_null() -> None:
    log = json_log([(0, "/a", 1), (SECOND, "/b", 1), (SECOND + 1, "/b", 2), (3 * SECOND, "/b", 3)])
    assert ingest(log, reference="/b").column("a") == [1, None, None]
    assert ingest(log, reference="/b", max_age_s=2).column("a") == [1, 1, None]
    assert ingest(log, reference="/b", max_age_s=10).column("a") == [1, 1, 1]


def test_reference_is_the_camera_with_most_messages() -> None:
    messages = [(n * MS, "/fast", n) for n in range(9)]
    messages += [(n * MS, "/few", image_json(n)) for n in range(2)]  # type: ignore[misc]
    messages += [(n * MS, "/many", image_json(n)) for n in range(3)]  # type: ignore[misc]
    assert len(ingest(json_log(messages)).rows) == 3
    assert len(ingest(json_log(messages), reference="/fast").rows) == 9
    assert len(ingest(json_log(messages[:9])).rows) == 9
    with pytest.raises(InvalidInputError, match=r"no topic '/nowhere'; the files have /fast, /few, /many"):
        ingest(json_log(messages), reference="/nowhere")


def test_reference_columns_are_not_nullable_and_others_are() -> None:
    ingested = ingest(json_log([(0, "/camera", image_json(0)), (1, "/speed", 1.5)]))
    assert ingested.nullable == {"speed"}
    assert ingested.column("speed") == [None]
    assert ingested.column("timestamp")[0].dtype == "datetime64[ns]"
    assert ingested.column("episode") == ["log.mcap"]


NAMES = {
    "/camera/rgb/image_raw/compressed": "camera_rgb",
    "/camera/depth/image_rect_raw": "camera_depth",
    "camera/image": "camera",
    "/image_raw/compressed": "image_raw",
    "/robot-1/front camera": "robot_1_front_camera",
    "/_private/data": "private",
    "/": "topic",
    "/timestamp": "timestamp_2",
    "/カメラ": "カメラ",
}


@pytest.mark.parametrize(("topic", "name"), NAMES.items())
def test_columns_are_named_after_topics(topic: str, name: str) -> None:
    ingested = ingest(json_log([(0, topic, image_json(0))]))
    assert list(ingested.kinds) == ["timestamp", "episode", name]


def test_column_names_are_unique_and_distinct_from_masks() -> None:
    topics = ["/camera", "/camera/image", "/camera/mask", "/camera/compressed"]
    ingested = ingest(json_log([(0, topic, image_json(n)) for n, topic in enumerate(topics)]))
    assert sorted(ingested.kinds) == ["camera", "camera_2", "camera_3", "camera_mask_2", "episode", "timestamp"]


def test_encoded_images_are_stored_unchanged() -> None:
    ingested = ingest(json_log([(n * MS, "/camera", image_json(n)) for n in range(3)]))
    assert [bytes(data) for data in ingested.column("camera")] == [jpeg(n) for n in range(3)]
    assert ingested.kinds["camera"] == Image("jpeg")


def test_images_of_several_sizes_are_stored() -> None:
    ingested = ingest(json_log([(n * MS, "/camera", image_json(n, width=64 if n != 20 else 32)) for n in range(40)]))
    assert (len(ingested.rows), ingested.rejects) == (40, [])


def test_gray_images_and_depth_in_png() -> None:
    depth = np.arange(12, dtype=np.uint16).reshape(3, 4) * 1000
    stream = io.BytesIO()
    Pillow.fromarray(depth).save(stream, "PNG")
    data = b64encode(bytes(12) + stream.getvalue()).decode()
    ingested = js({"format": "16UC1; compressedDepth png", "data": data})
    assert ingested.kinds["t"] == Image("png")
    assert np.array_equal(ingested.kinds["t"].to_values(ingested.kinds["t"].to_array(ingested.column("t")))[0], depth)


def pixels(array: Any, encoding: str, *, pad: int = 0, big: bool = False) -> dict[str, Any]:
    rows = np.asarray(array, np.asarray(array).dtype.newbyteorder(">" if big else "<"))
    data = b"".join(row.tobytes() + b"\xaa" * pad for row in rows)
    size = {"height": rows.shape[0], "width": rows.shape[1], "step": len(data) // rows.shape[0]}
    return {"header": header(0), "encoding": encoding, "is_bigendian": int(big), "data": data, **size}


COLORS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
WITH_ALPHA = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
DEPTH = np.arange(8, dtype=np.uint16).reshape(2, 4) * 999
RAW: list[tuple[Any, str, Any]] = [
    (COLORS, "rgb8", COLORS),
    (COLORS, "bgr8", COLORS[..., ::-1]),
    (WITH_ALPHA, "rgba8", WITH_ALPHA),
    (WITH_ALPHA, "bgra8", WITH_ALPHA[..., [2, 1, 0, 3]]),
    (COLORS[..., 0], "mono8", COLORS[..., 0]),
    (DEPTH, "mono16", DEPTH),
    (DEPTH, "16UC1", DEPTH),
    (DEPTH.astype(np.float32), "32FC1", DEPTH.astype(np.float32)),
]


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("pad", [0, 4])
@pytest.mark.parametrize(("array", "encoding", "wanted"), RAW, ids=[encoding for _, encoding, _ in RAW])
def test_raw_images_become_tensors(array: Any, encoding: str, wanted: Any, pad: int, big: bool) -> None:
    ingested = ros("sensor_msgs/msg/Image", IMAGE, pixels(array, encoding, pad=pad, big=big))
    assert ingested.kinds["t"] == Tensor(wanted.dtype.name, wanted.shape)
    assert np.array_equal(ingested.column("t")[0], wanted)


def test_inconsistent_raw_images_are_rejected() -> None:
    good = pixels(COLORS, "rgb8")
    bad = [good | {"height": 1 << 31}, good | {"data": good["data"][:-1]}, good | {"step": 1}, good | {"width": 0}]
    ingested = ros("sensor_msgs/msg/Image", IMAGE, good, *bad)
    assert len(ingested.rows) == 1
    assert len(ingested.rejects) == len(bad)
    assert all("bytes do not hold" in reject.reason for reject in ingested.rejects)


def joints(*names: str, **numbers: Sequence[float]) -> dict[str, Any]:
    empty: dict[str, Any] = {"velocity": [], "effort": []}
    return {"header": header(0), "name": list(names), **empty, **numbers}


def joint_log(*messages: dict[str, Any], topic: str = "/joint_states") -> Ingested:
    return ros("sensor_msgs/msg/JointState", JOINT_STATE, *messages, topic=topic)


def test_joint_state_columns() -> None:
    ingested = joint_log(joints("a", "b", position=[1, 2], effort=[3, 4]), topic="/arm/joint_states")
    assert list(ingested.kinds) == ["timestamp", "episode", "joint_angles", "joint_efforts"]
    assert ingested.kinds["joint_angles"] == Tensor("float64", (2,))
    assert ingested.nullable == set()


def test_joints_are_reordered() -> None:
    ingested = joint_log(joints("a", "b", position=[1, 2]), joints("b", "a", position=[4, 3]))
    assert np.array_equal(ingested.column("joint_angles"), [[1, 2], [3, 4]])


def test_varying_joints_add_a_column_of_names() -> None:
    ingested = joint_log(joints("a", "b", position=[1, 2]), joints("gripper", position=[3]))
    assert ingested.kinds["joint_angles"] == Tensor("float64", (None,))
    assert ingested.kinds["joint_names"] == List(Text())
    assert ingested.column("joint_names") == [["a", "b"], ["gripper"]]


def test_unknown_joints_are_rejected() -> None:
    usual = [joints("a", "b", position=[1, 2]) for _ in range(40)]
    usual[20] = joints("a", "c", position=[1, 2])
    ingested = joint_log(*usual)
    assert len(ingested.rows) == 39
    assert "its joints are a, c, and the columns have a, b" in ingested.rejects[0].reason


def test_several_joint_topics_have_topic_names_in_columns() -> None:
    log = json_log(
        [(n, f"/{side}/joint_states", joints("a", position=[n])) for n, side in enumerate(("left", "right"))]
    )
    assert {"left_joint_angles", "right_joint_angles"} <= set(ingest(log).kinds)


JSON_FIELDS: dict[str, tuple[Any, Kind]] = {
    "number": (1, Tensor("float64")),
    "truth": (True, Tensor("bool")),
    "exact": (1 << 60, Tensor("int64")),
    "declared": (3, Tensor("int64")),
    "declared_list": ([3, 4], Tensor("int64", (2,))),
    "text": ("hello", Text()),
    "list": ([1, 2.5, 3], Tensor("float64", (3,))),
    "matrix": ([[1, 2], [3, 4]], Tensor("float64", (2, 2))),
    "empty": ([], Json()),
    "words": (["a", "b"], List(Text())),
    "things": ([{"a": 1}, {"b": [None]}], Json()),
    "uneven": ([[1], [2, 3]], Json()),
    "huge": (1 << 80, Json()),
    "mixed": ([1, "a"], Json()),
}
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "in": {"properties": {"declared": {"type": "integer"}, "declared_list": {"items": {"type": "integer"}}}}
    },
}


def test_other_messages_have_a_column_per_field() -> None:
    inner = {name: value for name, (value, _) in JSON_FIELDS.items()}
    message = {"header": {"stamp": 1}, "in": inner, "none": None}
    ingested = js(message, topic="/state", schemas={"/state": JSON_SCHEMA})
    assert ingested.kinds == {
        "timestamp": Tensor("datetime64[ns]"),
        "episode": Text(),
        **{f"state_in_{name}": kind for name, (_, kind) in JSON_FIELDS.items()},
    }
    assert {name: _to_python(ingested.rows[0][f"state_in_{name}"]) for name in JSON_FIELDS} == inner


def test_lists_of_varying_length_are_ragged() -> None:
    ingested = js({"a": [1, 2], "b": [], "c": [[1, 2]]}, {"a": [1], "b": [2], "c": []}, {"c": [[1, 2], [3, 4]]})
    assert ingested.kinds["t_a"] == ingested.kinds["t_b"] == Tensor("float64", (None,))
    assert ingested.kinds["t_c"] == Tensor("float64", (None, 2))
    assert [_to_python(value) for value in ingested.column("t_a")] == [[1, 2], [1], None]
    assert [_to_python(value) for value in ingested.column("t_b")] == [[], [2], None]
    assert [_to_python(value) for value in ingested.column("t_c")] == [[[1, 2]], [], [[1, 2], [3, 4]]]


@pytest.mark.parametrize("odd", ["text", {"x": 1}, [1, 2], [1, 2, "3"], [[1], [2, 3]], [], [[1, 2, 3]], 7, 10**400])
def test_mismatched_value_is_rejected_and_null_in_the_row(odd: Any) -> None:
    messages: list[tuple[int, str, Any]] = []
    for number in range(40):
        messages += [(number, "/list", odd if number == 20 else [1, 2, 3]), (number, "/camera", number)]
    ingested = ingest(json_log(messages), reference="/camera")
    assert len(ingested.rows) == 40
    assert [row for row, value in enumerate(ingested.column("list")) if value is None] == [20]
    if not isinstance(odd, dict):
        assert [reject.name for reject in ingested.rejects] == ["log.mcap@20 /list"]


KEYS = ["data", "encoding", "height", "width", "step", "position", "velocity", "name", "format", "header", "", "\n"]
ANYTHING = st.recursive(
    st.sampled_from([None, True, 0, 3, -1, 1 << 60, 10**400, 0.5, float("nan"), "rgb8", "mono8", "/9j/", "AAAA", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=7),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ANYTHING, min_size=1, max_size=20))
def test_any_json_yields_rows_or_rejects(values: list[Any]) -> None:
    messages = [(number, "/camera", number) for number in range(len(values))]
    taken_from: list[tuple[int, str, Any]] = [*messages, *((n, "/odd", value) for n, value in enumerate(values))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PenstockWarning)
        ingested = ingest(json_log(sorted(taken_from, key=lambda message: message[0])), reference="/camera")
    assert len(ingested.rows) == len(values)
    assert all(reject.name.startswith("log.mcap@") for reject in ingested.rejects)


def test_json_nan_becomes_null() -> None:
    ingested = ingest(raw_log([(0, "/x", b'{"a": NaN, "b": [{"c": Infinity}], "d": [1, NaN]}')], "json"))
    assert np.isnan(ingested.column("x_a")[0])
    assert ingested.column("x_b") == [[{"c": None}]]
    assert np.isnan(ingested.column("x_d")[0][1])


def test_messages_with_many_fields_become_one_json_column() -> None:
    message = {f"f{n}": n for n in range(300)}
    ingested = js(message)
    assert ingested.kinds["t"] == Json()
    assert ingested.column("t") == [message]


def test_deeply_nested_json_is_rejected() -> None:
    deep = [(n, "/x", b'{"a": ' + b"[" * depth + b"]" * depth + b"}") for n, depth in enumerate([1, 70, 100_000])]
    ingested = ingest(raw_log(deep, "json"))
    assert len(ingested.rows) == 1
    assert len(ingested.rejects) == 2


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "byte": st.integers(0, 255),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    **{f"int{bits}": st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    "string": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9),
}


@st.composite
def definitions(draw: Any, depth: int = 0) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    """The fields of a message, the definitions of its nested types, and a message."""
    lines, needed, message = ["# a comment", "", "int32 CONSTANT=7"], dict[str, str](), dict[str, Any]()
    for number in range(draw(st.integers(1, 4))):
        name = f"f{number}"
        type = draw(st.sampled_from([*SCALARS, "Time", *(["Inner"] if depth < 2 else [])]))
        if type == "Inner":
            type = f"Inner{depth}{number}"
            inner, more, values = draw(definitions(depth + 1))
            needed |= {f"test_msgs/{type}": "\n".join(inner), **more}
            value = st.just(values)
        elif type == "Time":
            type = "builtin_interfaces/Time"
            value = st.builds(
                lambda s, n: {"sec": s, "nanosec": n}, st.integers(0, (1 << 31) - 1), st.integers(0, 10**9 - 1)
            )
        else:
            value = SCALARS[type]
        length = draw(st.sampled_from([None, "", "3", "<=3"]))
        if length is not None:
            value = st.lists(value, min_size=3 if length == "3" else 0, max_size=3)
        lines.append(f"{type}{'' if length is None else f'[{length}]'}  {name}  # what it is")
        message[name] = draw(value)
        if type == "byte" and length is not None:
            message[name] = bytes(message[name])
    return lines, needed, message


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict) and theirs.keys() == {"sec", "nanosec"}:
        return bool(ours.astype(np.int64) == theirs["sec"] * 10**9 + theirs["nanosec"])
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | bytes):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs) or (ours != ours and theirs != theirs)


@settings(max_examples=150, deadline=None)
@given(definitions())
def test_ros_2_messages_match_the_reference_library(made: Any) -> None:
    lines, needed, message = made
    text = "\n".join([*lines, *(f"{'=' * 80}\nMSG: {name}\n{inner}" for name, inner in needed.items())])
    data = serialize_dynamic("test_msgs/msg/Outer", text)["test_msgs/msg/Outer"](message)
    decode = decoder_of(Channel("/t", "cdr", "test_msgs/msg/Outer", "ros2msg", text.encode()))
    assert same(decode(data), message)


def ros1(definition: str, data: bytes) -> Ingested:
    return ingest(raw_log([(0, "/t", data)], "ros1", {"/t": ("ros1msg", definition.encode())}))


def test_ros_1_messages() -> None:
    definition = "Header header\nfloat32 x\nstring who\nduration[] waits\nuint16[2] pair\nEmpty[] none\n"
    definition += (
        f"{'=' * 80}\nMSG: std_msgs/Header\nuint32 seq\ntime stamp\nstring frame_id\n{'=' * 80}\nMSG: t/Empty\n"
    )
    data = struct.pack("<IIII", 1, 2, 3, 4) + b"base" + struct.pack("<fI", 1.5, 2) + b"me"
    data += struct.pack("<IiiHHI", 1, -1, 5, 7, 8, 2)
    ingested = ros1(definition, data)
    assert ingested.kinds["t_x"] == Tensor("float32")
    assert ingested.kinds["t_pair"] == Tensor("uint16", (2,))
    assert ingested.kinds["t_waits"] == Tensor("timedelta64[ns]", (1,))
    row = ingested.rows[0]
    assert (row["t_x"], row["t_who"], row["t_pair"].tolist(), row["t_none"]) == (1.5, "me", [7, 8], [{}, {}])
    assert row["t_waits"].astype(np.int64).tolist() == [-1_000_000_000 + 5]


BOMBS = {
    "an array of nothing": ("Empty[] a\n===\nMSG: t/Empty\n", struct.pack("<I", 0xFFFFFFFF)),
    "arrays in arrays": (
        "A[9999] a\n===\nMSG: t/A\nB[9999] b\n===\nMSG: t/B\nC[9999] c\n===\nMSG: t/C\n",
        b"",
    ),
    "numbers that are not there": ("float64[] a", struct.pack("<I", 0xFFFFFFFF)),
    "text that is not there": ("string a", struct.pack("<I", 0xFFFFFFFF)),
    "a type that holds itself": ("A a\n===\nMSG: t/A\nA a\n", b""),
    "a type that is not there": ("A a", b""),
    "no fields": ("this is no definition;", b""),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_ros_messages_with_false_lengths_are_rejected(bomb: str) -> None:
    with pytest.raises(InvalidInputError, match=r"no MCAP file in .* has readable messages: /t: "):
        ros1(*BOMBS[bomb])


def protobuf_type(name: str, fields: Sequence[tuple[str, Any]]) -> Any:
    """A message class; fields are (name, protobuf type number or message name)."""
    package, _, short = name.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package=package, syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    message = file.message_type.add(name=short)
    for number, (field, type) in enumerate(fields, 1):
        made = message.field.add(name=field.removesuffix("[]"), number=number, label=3 if field.endswith("[]") else 1)
        made.type = type if isinstance(type, int) else 11
        if isinstance(type, str):
            made.type_name = type
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


TIMESTAMP = ".google.protobuf.Timestamp"


def test_protobuf_messages() -> None:
    camera = protobuf_type(
        "foxglove.CompressedImage", [("timestamp", TIMESTAMP), ("frame_id", 9), ("data", 12), ("format", 9)]
    )
    fields = [("x", 1), ("n[]", 13), ("ok", 8), ("who[]", 9), ("raw", 12), ("at", TIMESTAMP), ("none", TIMESTAMP)]
    state = protobuf_type("robot.State", fields)
    stream = io.BytesIO()
    with ProtobufWriter(stream) as writer:
        for number in range(3):
            said = state(x=number / 2, n=[1, 2], ok=True, who=["a"], raw=b"\0\1")
            said.at.seconds, said.at.nanos = 5, number
            writer.write_message("/state", said, log_time=number * MS)
            writer.write_message("/camera", camera(data=jpeg(number), format="jpeg"), log_time=number * MS)
    ingested = ingest(stream.getvalue())
    assert [bytes(data) for data in ingested.column("camera")] == [jpeg(number) for number in range(3)]
    assert {name: kind for name, kind in ingested.kinds.items() if name.startswith("state")} == {
        "state_x": Tensor("float64"),
        "state_n": Tensor("uint32", (2,)),
        "state_ok": Tensor("bool"),
        "state_who": List(Text()),
        "state_raw": Bytes(),
        "state_at": Tensor("datetime64[ns]"),
    }
    last = ingested.rows[2]
    assert (last["state_x"], last["state_who"], last["state_raw"]) == (1.0, ["a"], b"\0\1")
    assert last["state_at"] == np.datetime64(5_000_000_002, "ns")


def test_protobuf_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(InvalidInputError, match=r'topic /t holds protobuf .*: pip install "penstock\[mcap\]"'):
        ingest(raw_log([(0, "/t", b"")], "protobuf", {"/t": ("protobuf", b"")}))


def test_error_without_the_mcap_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    log = json_log([(0, "/x", 1)])
    monkeypatch.setitem(sys.modules, "mcap.records", None)
    _mcap_log._mcap.cache_clear()
    with pytest.raises(InvalidInputError, match=r'MCAP files need a package: pip install "penstock\[mcap\]"'):
        ingest(log)


def test_unreadable_topics_warn_and_are_skipped() -> None:
    stream = io.BytesIO()
    writer = Writer(stream)
    writer.start()
    for topic, encoding, data in (("/odd", "flatbuffer", b"?"), ("/bad", "json", b"{"), ("/x", "json", b"1")):
        writer.add_message(writer.register_channel(topic, encoding, 0), log_time=0, data=data, publish_time=0)
    writer.finish()  # type: ignore[no-untyped-call]
    with pytest.warns(PenstockWarning, match=r"/bad: a message cannot be decoded as json.*; /odd: messages in 'flatb"):
        ingested = ingest(stream.getvalue())
    assert list(ingested.kinds) == ["timestamp", "episode", "x"]


def test_files_with_different_topics() -> None:
    first = [(n * MS, topic, n) for n in range(3) for topic in ("/camera", "/a")]
    second = [(n * MS, topic, n) for n in range(3) for topic in ("/camera", "/b")]
    third = [(n * MS, "/a", n) for n in range(3)]
    unknown = [(n * MS, topic, n) for n in range(3) for topic in ("/camera", "/late")]
    logs = {"1.mcap": json_log(first), "2.mcap": json_log(second), "3.mcap": json_log(third)}
    logs["4.mcap"] = json_log(unknown, **LAYOUTS["no summary"])
    ingested = Ingested(logs, reference="/camera")
    assert list(ingested.kinds) == ["timestamp", "episode", "a", "camera", "b"]
    assert ingested.column("episode") == ["1.mcap"] * 3 + ["2.mcap"] * 3 + ["4.mcap"] * 3
    assert ingested.column("a") == [0, 1, 2, *[None] * 6]
    assert ingested.column("b") == [*[None] * 3, 0, 1, 2, *[None] * 3]
    assert ingested.rejects == [Reject("3.mcap", "it has no readable messages on the reference topic /camera")]


def test_non_mcap_files_are_rejected() -> None:
    good = json_log([(0, "/x", 1)])
    ingested = Ingested({"a.mcap": b"PK" * 100, "b.mcap": good, "c.mcap": b"\x89MCAP0\r\n", "d.txt": b"hello"})
    assert ingested.column("episode") == ["b.mcap"]
    assert [reject.name for reject in ingested.rejects] == ["a.mcap", "c.mcap, record at byte 8", "c.mcap"]
    with pytest.raises(InvalidInputError, match="no MCAP file"):
        ingest(b"PK" * 100)


def steps(count: int) -> list[tuple[int, str, Any]]:
    return [(number * MS, "/x", {"n": number, "text": f"{number}" * 40}) for number in range(count)]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.parametrize("layout", ["zstd and index", "lz4", "plain", "no index", "no summary"])
def test_damaged_chunk_is_skipped(layout: str) -> None:
    whole = json_log(steps(100), chunk_size=1000, **LAYOUTS[layout])
    at = next(place for place in _chunks(whole) if place > len(whole) // 3) + 80
    ingested = ingest(flipped(whole, at))
    numbers = ingested.column("x_n")
    assert 80 < len(numbers) < 100
    assert numbers == sorted(numbers)
    assert numbers[-1] == 99
    assert len(ingested.rejects) == 1
    assert ingested.rejects[0].name.startswith("log.mcap, ")


def _chunks(data: bytes) -> list[int]:
    places, at = [], 8
    while data[at] != 15:
        if data[at] == 6:
            places.append(at)
        at += 9 + int.from_bytes(data[at + 1 : at + 9], "little")
    return places


def test_false_length_is_skipped_with_an_index() -> None:
    for layout, complete in (("plain", True), ("no summary", False)):
        whole = json_log(steps(100), chunk_size=1000, **LAYOUTS[layout])
        at = _chunks(whole)[5]
        broken = whole[: at + 1] + struct.pack("<Q", 1 << 60) + whole[at + 9 :]
        ingested = ingest(broken)
        assert len(ingested.rejects) == 1
        assert bool(ingested.column("x_n")[-1] == 99) is complete
        assert len(ingested.rows) > 10


@settings(max_examples=40, deadline=None)
@given(st.floats(0.2, 1), st.sampled_from(sorted(LAYOUTS)))
def test_truncated_file_yields_its_messages(part: float, layout: str) -> None:
    whole = json_log(steps(40), chunk_size=500, **LAYOUTS[layout])
    end = whole.rindex(b"\x0f\x04\0\0\0\0\0\0\0")  # the DataEnd record
    ingested = ingest(whole[: int(part * (end - 1))])
    numbers = ingested.column("x_n")
    assert numbers == [*range(len(numbers))]
    assert len(ingested.rejects) == 1
    assert "truncated" in ingested.rejects[0].reason


def chunk(compression: str, packed: bytes, size: int, checksum: int = 0) -> bytes:
    """A file of one message and one handcrafted chunk."""
    body = struct.pack("<QQQII", 0, 0, size, checksum, len(compression)) + compression.encode()
    body += struct.pack("<Q", len(packed)) + packed
    end = json_log([(0, "/x", 1)], use_chunking=False, **LAYOUTS["no summary"])
    at = end.rindex(b"\x0f\x04\0\0\0\0\0\0\0")
    return end[:at] + struct.pack("<BQ", 6, len(body)) + body + end[at:]


def test_chunk_larger_than_declared_is_rejected() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    tracemalloc.start()
    ingested = ingest(chunk("zstd", bomb, 1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(ingested.rows) == 1
    assert "does not decompress to the 1000 bytes that it declares" in ingested.rejects[0].reason
    assert peak < 32 << 20
    [reject] = ingest(chunk("zstd", bomb, 64 << 40)).rejects
    assert "the limit is" in reject.reason
    [reject] = ingest(chunk("brotli", bomb, 1000)).rejects
    assert "compression 'brotli' is unknown" in reject.reason


def test_chunk_checksum_is_verified() -> None:
    records = struct.pack("<BQ", 0x90, 3) + b"abc"
    assert not ingest(chunk("", records, len(records), zlib.crc32(records))).rejects
    [reject] = ingest(chunk("", records, len(records), 1)).rejects
    assert "checksum" in reject.reason


def test_memory_is_independent_of_file_size() -> None:
    megabyte = "x" * (1 << 20)
    options = {"compression": CompressionType.NONE, "chunk_size": 1}
    for layout in ({}, LAYOUTS["no summary"]):
        data = json_log(((n * MS * 200, "/x", megabyte) for n in range(100)), **(layout | options))
        store = open_store("memory://")
        store.put("log.mcap", data)
        reader = SourceReader(store)
        scan = open_mcap(reader, list(store.list()), limits=McapLimits(sample_bytes=8 << 20))
        tracemalloc.start()
        assert sum(isinstance(row, Row) for row in scan.rows(reader, scan.files)) == 100
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 40 << 20


@pytest.mark.parametrize("flip", [lambda data: flipped(data, len(data) - 40), lambda data: data])
def test_damaged_summary_is_ignored(flip: Callable[[bytes], bytes]) -> None:
    whole = json_log(steps(50), chunk_size=1000)
    index = whole.rindex(b"\x08", 0, len(whole) - 100)
    ingested = ingest(flip(flipped(whole, index + 20)))
    assert ingested.column("x_n") == [*range(50)]


def test_damage_in_the_chunk_that_describes_channels(tmp_path: Path) -> None:
    write_log(tmp_path / "log.mcap")
    whole = (tmp_path / "log.mcap").read_bytes()
    first, second, *_ = _chunks(whole)
    ingested = ingest(flipped(whole, first + 200))
    assert [reject.name for reject in ingested.rejects] == [f"log.mcap, chunk at byte {first}"]
    assert 10 < len(ingested.rows) < 20
    assert all(angles.shape == (7,) for angles in ingested.column("joint_angles"))
    good = json_log([(0, topic, [1.0]) for topic in ("/camera/rgb/image_raw", "/joint_states")])
    lost = flipped(whole, first + 200)[: second + 40_000]
    blind = Ingested({"a.mcap": good, "b.mcap": lost})
    names = [reject.name for reject in blind.rejects]
    assert (names[0], names[-1]) == (f"b.mcap, record at byte {first}", "b.mcap")
    assert "b.mcap, channel 1" in names
    assert blind.column("episode") == ["a.mcap"]
