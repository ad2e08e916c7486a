"""Decode the messages of robot logs (ROS 1, ROS 2, protobuf, JSON) into dictionaries of typed values.

ROS messages are decoded from their definitions here: other packages generate Python code on disk (ROS 1), or decode
arrays element by element, lose their types, and trust any length that a message declares (ROS 2).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInputError
from penstock.ingest.sources._mcap_log import Channel

Decoder: TypeAlias = Callable[[bytes], dict[str, Any]]
"""Returns numpy scalars and arrays, strings, bytes, dictionaries and lists of those; for JSON, the types of `json`."""


class BadMessageError(Exception):
    """A message or a topic cannot be decoded."""


def decoder_of(channel: Channel) -> Decoder:
    """The decoder of a channel; raises `BadMessageError` if its encoding is not supported."""
    make = _DECODERS.get((channel.encoding, channel.schema_encoding)) or _DECODERS.get((channel.encoding, None))
    if make is None:
        known = ", ".join(sorted({encoding for encoding, _ in _DECODERS}))
        described = f" described by {channel.schema_encoding!r}" if channel.schema_encoding else ""
        raise BadMessageError(f"messages in {channel.encoding!r}{described} cannot be decoded; supported are {known}")
    decode = _guarded(make, f"its schema {channel.schema_name!r} cannot be parsed")(channel)
    return _guarded(decode, f"a message cannot be decoded as {channel.encoding} {channel.schema_name}".rstrip())


def _guarded(function: Callable[[Any], Any], failure: str) -> Callable[[Any], Any]:
    """Translate any error of a decoder: damaged or hostile bytes can raise anything."""

    def guarded(given: Any) -> Any:
        try:
            return function(given)
        except (MemoryError, InvalidInputError):
            raise
        except Exception as error:
            raise BadMessageError(f"{failure}: {str(error) or type(error).__name__}") from error

    return guarded


def _json(_: Channel) -> Decoder:
    def decode(data: bytes) -> dict[str, Any]:
        value = json.loads(data)
        return value if isinstance(value, dict) else {"data": value}

    return decode


_SCALARS = {
    **{name: np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    "float32": np.dtype("float32"),
    "float64": np.dtype("float64"),
    "bool": np.dtype("bool"),
    "byte": np.dtype("uint8"),
    "char": np.dtype("uint8"),
}
_TIMES = {
    "builtin_interfaces/Time": ("int32", "uint32", "datetime64[ns]"),
    "builtin_interfaces/Duration": ("int32", "uint32", "timedelta64[ns]"),
    "time": ("uint32", "uint32", "datetime64[ns]"),
    "duration": ("int32", "int32", "timedelta64[ns]"),
}
_FIELD = re.compile(r"(?P<type>[\w/]+)(?:<=\d+)?(?P<array>\[(?:<=)?\d*\])?\s+(?P<name>\w+)\s*(?P<rest>.*)")
_DEFINITION_SEPARATOR = re.compile(r"^={3,}\s*$", re.MULTILINE)
_UNBOUNDED = -1


class _Field(NamedTuple):
    name: str
    type: str
    length: int | None
    """The length of an array, or _UNBOUNDED; None for a single value."""


_Definitions: TypeAlias = Mapping[str, tuple[_Field, ...]]


def _parse_definitions(name: str, text: str) -> dict[str, tuple[_Field, ...]]:
    """The type of a message and its nested types, by short name (`std_msgs/Header`)."""
    found = {}
    for section in _DEFINITION_SEPARATOR.split(text):
        lines = [line.partition("#")[0].strip() for line in section.splitlines()]
        lines = [line for line in lines if line]
        if lines and lines[0].startswith("MSG:"):
            name = lines.pop(0)[4:].strip()
        package = name.partition("/")[0]
        found[_short(name)] = tuple(field for line in lines if (field := _parse_field(line, package)) is not None)
    return found


def _parse_field(line: str, package: str) -> _Field | None:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise ValueError(f"the line {line!r} is not a field definition")
    if match["rest"].startswith("="):  # a constant
        return None
    type, array = match["type"], match["array"]
    if type == "Header":
        type = "std_msgs/Header"
    elif "/" in type:
        type = _short(type)
    elif type not in (*_SCALARS, *_TIMES, "string"):
        type = f"{package}/{type}"
    length = (array or "").strip("[]")
    return _Field(match["name"], type, None if array is None else int(length) if length.isdigit() else _UNBOUNDED)


def _short(name: str) -> str:
    return f"{name.partition('/')[0]}/{name.rpartition('/')[2]}"


class _Cursor:
    """Reads values from a message in order; raises `ValueError` at its end."""

    def __init__(self, data: bytes, *, at: int, aligned: bool, big: bool, terminator_bytes: int) -> None:
        self._data, self._at, self._start = data, at, at
        self._aligned, self._big, self._terminator_bytes = aligned, big, terminator_bytes
        self._structs_left = len(data) + 1024
        """Bounds nested arrays of empty types, which take no bytes."""

    def array(self, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        if count == 0:
            return np.zeros(0, dtype)
        size = dtype.itemsize
        if self._aligned:
            self._at += -(self._at - self._start) % size
        end = self._at + count * size
        if end > len(self._data):
            raise ValueError("it is truncated")
        stored = np.dtype(np.uint8) if dtype.kind == "b" else dtype.newbyteorder(">" if self._big else "<")
        found = np.frombuffer(self._data, stored, count, self._at)
        self._at = end
        return found if dtype == np.uint8 else found.astype(dtype)

    def scalar(self, type: str) -> Any:
        return self.array(_SCALARS[type], 1)[0]

    def text(self) -> str:
        length = int(self.scalar("uint32"))
        raw = self.array(_SCALARS["uint8"], length).tobytes()
        return (raw[: -self._terminator_bytes] if self._terminator_bytes else raw).decode()

    def count_struct(self) -> None:
        self._structs_left -= 1
        if self._structs_left < 0:
            raise ValueError("it declares more nested values than its bytes can hold")


def _ros(*, ros2: bool) -> Callable[[Channel], Decoder]:
    def make(channel: Channel) -> Decoder:
        definitions = _parse_definitions(channel.schema_name, channel.schema.decode())
        return lambda data: _read_struct(_open_cursor(data, ros2), _short(channel.schema_name), definitions, ros2)

    return make


def _open_cursor(data: bytes, ros2: bool) -> _Cursor:
    if not ros2:
        return _Cursor(data, at=0, aligned=False, big=False, terminator_bytes=0)
    if len(data) < 4 or data[1] > 1:
        raise ValueError("it does not start with a plain CDR header")
    return _Cursor(data, at=4, aligned=True, big=data[1] == 0, terminator_bytes=1)


def _read_struct(data: _Cursor, type: str, definitions: _Definitions, ros2: bool) -> dict[str, Any]:
    data.count_struct()
    if type not in definitions:
        raise ValueError(f"the type {type} is not defined")
    fields = definitions[type]
    if not fields and ros2:
        data.scalar("uint8")  # ROS 2 adds a dummy member to an empty type
    return {field.name: _read_field(data, field, definitions, ros2) for field in fields}


def _read_field(data: _Cursor, field: _Field, definitions: _Definitions, ros2: bool) -> Any:
    type, count = field.type, field.length
    if count == _UNBOUNDED:
        count = int(data.scalar("uint32"))
    if type in _SCALARS:
        return data.scalar(type) if count is None else data.array(_SCALARS[type], count)
    if type == "string":
        return data.text() if count is None else [data.text() for _ in range(count)]
    if type in _TIMES:
        seconds, nanoseconds, dtype = _TIMES[type]
        length = 1 if count is None else count
        times = [int(data.scalar(seconds)) * 10**9 + int(data.scalar(nanoseconds)) for _ in range(length)]
        return np.array(times[0] if count is None else times, dtype)[()]
    if count is None:
        return _read_struct(data, type, definitions, ros2)
    return [_read_struct(data, type, definitions, ros2) for _ in range(count)]


_PROTOBUF_DTYPES = {
    1: "int32",
    2: "int64",
    3: "uint32",
    4: "uint64",
    5: "float64",
    6: "float32",
    7: "bool",
    8: "int32",
}
"""Protobuf `CppType` to numpy dtype."""
_PROTOBUF_TIMES = {"google.protobuf.Timestamp": "datetime64[ns]", "google.protobuf.Duration": "timedelta64[ns]"}
_PROTOBUF_MESSAGE = 10


def _protobuf(channel: Channel) -> Decoder:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
    except ImportError as error:
        raise InvalidInputError(
            f'topic {channel.topic} holds protobuf messages, which need a package: pip install "penstock[mcap]"'
        ) from error
    described = descriptor_pb2.FileDescriptorSet.FromString(channel.schema).file
    pending = {file.name: file for file in described}
    pool = descriptor_pool.DescriptorPool()

    def add(name: str) -> None:
        file = pending.pop(name, None)
        if file is not None:
            for needed in file.dependency:
                add(needed)
            pool.Add(file)

    for file in described:
        add(file.name)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(channel.schema_name))
    return lambda data: _protobuf_fields(kind.FromString(data))


def _protobuf_fields(message: Any) -> dict[str, Any]:
    return {field.name: _protobuf_field(message, field) for field in message.DESCRIPTOR.fields}


def _protobuf_field(message: Any, field: Any) -> Any:
    repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    if field.cpp_type == _PROTOBUF_MESSAGE:
        if repeated and field.message_type.GetOptions().map_entry:
            return {str(key): _protobuf_value(value) for key, value in getattr(message, field.name).items()}
        if repeated:
            return [_protobuf_value(value) for value in getattr(message, field.name)]
        return _protobuf_value(getattr(message, field.name)) if message.HasField(field.name) else None
    value = getattr(message, field.name)
    if field.cpp_type not in _PROTOBUF_DTYPES:  # strings and bytes
        return list(value) if repeated else value
    return np.array(list(value) if repeated else value, _PROTOBUF_DTYPES[field.cpp_type])[()]


def _protobuf_value(value: Any) -> Any:
    if not hasattr(value, "DESCRIPTOR"):  # a map value
        return value
    dtype = _PROTOBUF_TIMES.get(value.DESCRIPTOR.full_name)
    if dtype is None:
        return _protobuf_fields(value)
    return np.array(value.seconds * 10**9 + value.nanos, dtype)[()]


_DECODERS: dict[tuple[str, str | None], Callable[[Channel], Decoder]] = {
    ("cdr", "ros2msg"): _ros(ros2=True),
    ("json", None): _json,
    ("protobuf", "protobuf"): _protobuf,
    ("ros1", "ros1msg"): _ros(ros2=False),
}
