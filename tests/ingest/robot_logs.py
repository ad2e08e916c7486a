"""Robot logs for tests, written by the MCAP libraries."""

import io
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from mcap.writer import CompressionType, IndexType, Writer
from mcap_ros2.writer import Writer as Ros2Writer

HEADER = "builtin_interfaces/Time stamp\nstring frame_id"
BREAK = "\n" + "=" * 80 + "\n"
COMPRESSED_IMAGE = f"std_msgs/Header header\nstring format\nuint8[] data{BREAK}MSG: std_msgs/Header\n{HEADER}"
IMAGE = (
    "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
    f"uint8[] data{BREAK}MSG: std_msgs/Header\n{HEADER}"
)
JOINT_STATE = (
    "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort"
    f"{BREAK}MSG: std_msgs/Header\n{HEADER}"
)
VECTOR3 = "MSG: geometry_msgs/Vector3\nfloat64 x\nfloat64 y\nfloat64 z"
TWIST = f"Vector3 linear\nVector3 angular{BREAK}{VECTOR3}"
START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def jpeg(seed: int, height: int = 48, width: int = 64) -> bytes:
    image = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    return bytes(simplejpeg.encode_jpeg(image))


def header(time_ns: int) -> dict[str, Any]:
    return {"stamp": {"sec": time_ns // 10**9, "nanosec": time_ns % 10**9}, "frame_id": "base"}


def write_log(path: Path, *, seed: int = 0, images: int = 20) -> None:
    """A ROS 2 log with a camera at 30 Hz, joint states at 100 Hz and commands at 20 Hz."""
    rng = np.random.default_rng(seed)
    start = START_NS + seed * 3600 * 10**9
    events: list[tuple[int, str, dict[str, Any]]] = []
    for number in range(images):
        time = start + 10 * MS + number * 33 * MS
        data = jpeg(seed * 1000 + number)
        events.append((time, "camera", {"header": header(time), "format": "jpeg", "data": data}))
    for time in range(start, start + 10 * MS + images * 33 * MS, 10 * MS):
        angles, speeds = rng.normal(size=(2, 7)).tolist()
        state = {"header": header(time), "name": [f"j{n}" for n in range(7)], "position": angles, "velocity": speeds}
        events.append((time, "joints", {**state, "effort": []}))
        if (time - start) % (50 * MS) == 0:
            events.append((time, "command", {"linear": {"x": 1.0, "y": 0.0, "z": 0.0}, "angular": {"z": 0.5}}))
    topics = {"camera": "/camera/rgb/image_raw/compressed", "joints": "/joint_states", "command": "/cmd_vel"}
    with path.open("wb") as stream, Ros2Writer(stream, chunk_size=16 << 10) as writer:
        schemas = {
            "camera": writer.register_msgdef("sensor_msgs/msg/CompressedImage", COMPRESSED_IMAGE),
            "joints": writer.register_msgdef("sensor_msgs/msg/JointState", JOINT_STATE),
            "command": writer.register_msgdef("geometry_msgs/msg/Twist", TWIST),
        }
        for time, topic, message in sorted(events, key=lambda event: event[0]):
            writer.write_message(topics[topic], schemas[topic], message, log_time=time)


def ros2_log(messages: Iterable[tuple[int, str, str, str, Any]]) -> bytes:
    """Messages as (time, topic, type, definition, message)."""
    stream = io.BytesIO()
    with Ros2Writer(stream) as writer:
        schemas: dict[str, Any] = {}
        for time, topic, name, definition, message in messages:
            if name not in schemas:
                schemas[name] = writer.register_msgdef(name, definition)
            writer.write_message(topic, schemas[name], message, log_time=time)
    return stream.getvalue()


def json_log(
    messages: Iterable[tuple[int, str, Any]], schemas: Mapping[str, Any] | None = None, **options: Any
) -> bytes:
    """Messages as (time, topic, value), in the order given; `schemas` by topic, and options of the writer."""
    encoded = ((time, topic, json.dumps(value).encode()) for time, topic, value in messages)
    described = {topic: ("jsonschema", json.dumps(schema).encode()) for topic, schema in (schemas or {}).items()}
    return raw_log(encoded, "json", described, **options)


def raw_log(
    messages: Iterable[tuple[int, str, bytes]],
    encoding: str,
    schemas: Mapping[str, tuple[str, bytes]] | None = None,
    **options: Any,
) -> bytes:
    stream = io.BytesIO()
    writer = Writer(stream, **options)
    writer.start()
    channels: dict[str, int] = {}
    for time, topic, data in messages:
        if topic not in channels:
            schema = (schemas or {}).get(topic)
            number = 0 if schema is None else writer.register_schema(topic.strip("/"), *schema)
            channels[topic] = writer.register_channel(topic, encoding, number)
        writer.add_message(channels[topic], log_time=time, data=data, publish_time=time)
    writer.finish()  # type: ignore[no-untyped-call]
    return stream.getvalue()


def image_json(seed: int, **size: int) -> dict[str, str]:
    """A message of a camera as JSON has it."""
    return {"format": "jpeg", "data": b64encode(jpeg(seed, **size)).decode()}


LAYOUTS: dict[str, dict[str, Any]] = {
    "zstd and index": {},
    "lz4": {"compression": CompressionType.LZ4},
    "plain": {"compression": CompressionType.NONE},
    "no message index": {"index_types": IndexType.CHUNK},
    "no index": {"index_types": IndexType.NONE},
    "no summary": {
        "index_types": IndexType.NONE,
        "repeat_channels": False,
        "repeat_schemas": False,
        "use_statistics": False,
        "use_summary_offsets": False,
    },
    "no chunks": {"use_chunking": False},
    "channels not repeated": {"repeat_channels": False, "repeat_schemas": False},
}
"""Ways to write a file that all readers must read alike."""
