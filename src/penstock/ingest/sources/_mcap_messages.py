"""Decode the messages of robot logs (ROS 1, ROS 2, protobuf, JSON) into dictionaries of typed values.

ROS messages are read from their definitions here: the packages for it write Python code to disk and import it (ROS 1),
or read arrays number by number, forget their types, and follow any length that a message claims (ROS 2).
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
"""Values are numpy numbers and arrays, strings, bytes, dictionaries, and lists of those; of JSON as Python reads it."""


class BadMessage(Exception):
    """A message, or a topic, that cannot be read; says why."""


def decoder_of(channel: Channel) -> Decoder:
    """What decodes the messages of a channel."""
    make = _MAKERS.get((channel.encoding, channel.schema_encoding)) or _MAKERS.get((channel.encoding, None))
    if make is None:
        known = ", ".join(sorted({encoding for encoding, _ in _MAKERS}))
        described = f" described by {channel.schema_encoding!r}" if channel.schema_encoding else ""
        raise BadMessage(f"messages in {channel.encoding!r}{described} cannot be decoded; {known} can")
    decode = _guarded(make, f"its definition {channel.schema_name!r} cannot be understood")(channel)
    return _guarded(decode, f"a message cannot be decoded as {channel.encoding} {channel.schema_name}".rstrip())


def _guarded(function: Callable[[Any], Any], failure: str) -> Callable[[Any], Any]:
    """The gate for whatever broken or hostile bytes make a decoder raise."""

    def guarded(given: Any) -> Any:
        try:
            return function(given)
        except (MemoryError, InvalidInputError):
            raise
        except Exception as error:
            raise BadMessage(f"{failure}: {str(error) or type(error).__name__}") from error

    return guarded


def _json(_: Channel) -> Decoder:
    def decode(data: bytes) -> dict[str, Any]:
        value = json.loads(data)
        return value if isinstance(value, dict) else {"data": value}

    return decode


_NUMBERS = {
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
_BETWEEN = re.compile(r"^={3,}\s*$", re.MULTILINE)
_UNBOUNDED = -1


class _Field(NamedTuple):
    name: str
    type: str
    length: int | None
    """None for one value; that of an array, or _UNBOUNDED."""


_Definitions: TypeAlias = Mapping[str, tuple[_Field, ...]]


def _parse_definitions(name: str, text: str) -> dict[str, tuple[_Field, ...]]:
    """The type of a message and those that it is made of, by their short names (`std_msgs/Header`)."""
    found = {}
    for section in _BETWEEN.split(text):
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
        raise ValueError(f"the line {line!r} is not a field")
    if match["rest"].startswith("="):  # a constant
        return None
    type, array = match["type"], match["array"]
    if type == "Header":
        type = "std_msgs/Header"
    elif "/" in type:
        type = _short(type)
    elif type not in (*_NUMBERS, *_TIMES, "string"):
        type = f"{package}/{type}"
    length = (array or "").strip("[]")
    return _Field(match["name"], type, None if array is None else int(length) if length.isdigit() else _UNBOUNDED)


def _short(name: str) -> str:
    return f"{name.partition('/')[0]}/{name.rpartition('/')[2]}"


class _Bytes:
    """Takes values from a message one after the other, and never more than it has."""

    def __init__(self, data: bytes, *, at: int, aligned: bool, big: bool, text_ends: int) -> None:
        self._data, self._at, self._start = data, at, at
        self._aligned, self._big, self._text_ends = aligned, big, text_ends
        self._parts_left = len(data) + 1024
        """Guards against definitions in which arrays of nothing hold arrays of nothing."""

    def numbers(self, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        if count == 0:
            return np.zeros(0, dtype)
        size = dtype.itemsize
        if self._aligned:
            self._at += -(self._at - self._start) % size
        end = self._at + count * size
        if end > len(self._data):
            raise ValueError("it is cut off")
        stored = np.dtype(np.uint8) if dtype.kind == "b" else dtype.newbyteorder(">" if self._big else "<")
        found = np.frombuffer(self._data, stored, count, self._at)
        self._at = end
        return found if dtype == np.uint8 else found.astype(dtype)

    def number(self, type: str) -> Any:
        return self.numbers(_NUMBERS[type], 1)[0]

    def text(self) -> str:
        length = int(self.number("uint32"))
        raw = self.numbers(_NUMBERS["uint8"], length).tobytes()
        return (raw[: -self._text_ends] if self._text_ends else raw).decode()

    def part(self) -> None:
        self._parts_left -= 1
        if self._parts_left < 0:
            raise ValueError("it claims more parts than its bytes can hold")


def _ros(*, two: bool) -> Callable[[Channel], Decoder]:
    def make(channel: Channel) -> Decoder:
        definitions = _parse_definitions(channel.schema_name, channel.schema.decode())
        return lambda data: _read_parts(_start(data, two), _short(channel.schema_name), definitions, two)

    return make


def _start(data: bytes, two: bool) -> _Bytes:
    if not two:
        return _Bytes(data, at=0, aligned=False, big=False, text_ends=0)
    if len(data) < 4 or data[1] > 1:
        raise ValueError("it does not begin as plain CDR does")
    return _Bytes(data, at=4, aligned=True, big=data[1] == 0, text_ends=1)


def _read_parts(data: _Bytes, type: str, definitions: _Definitions, two: bool) -> dict[str, Any]:
    data.part()
    if type not in definitions:
        raise ValueError(f"there is no definition of {type}")
    fields = definitions[type]
    if not fields and two:
        data.number("uint8")  # ROS 2 gives a type without fields one of its own
    return {field.name: _read_field(data, field, definitions, two) for field in fields}


def _read_field(data: _Bytes, field: _Field, definitions: _Definitions, two: bool) -> Any:
    type, count = field.type, field.length
    if count == _UNBOUNDED:
        count = int(data.number("uint32"))
    if type in _NUMBERS:
        return data.number(type) if count is None else data.numbers(_NUMBERS[type], count)
    if type == "string":
        return data.text() if count is None else [data.text() for _ in range(count)]
    if type in _TIMES:
        seconds, nanoseconds, dtype = _TIMES[type]
        number = 1 if count is None else count
        times = [int(data.number(seconds)) * 10**9 + int(data.number(nanoseconds)) for _ in range(number)]
        return np.array(times[0] if count is None else times, dtype)[()]
    if count is None:
        return _read_parts(data, type, definitions, two)
    return [_read_parts(data, type, definitions, two) for _ in range(count)]


_PROTOBUF_NUMBERS = {
    1: "int32",
    2: "int64",
    3: "uint32",
    4: "uint64",
    5: "float64",
    6: "float32",
    7: "bool",
    8: "int32",
}
"""numpy's types of protobuf's `CppType`."""
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
    waiting = {file.name: file for file in described}
    pool = descriptor_pool.DescriptorPool()

    def add(name: str) -> None:
        file = waiting.pop(name, None)
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
    if field.cpp_type not in _PROTOBUF_NUMBERS:  # strings and bytes
        return list(value) if repeated else value
    return np.array(list(value) if repeated else value, _PROTOBUF_NUMBERS[field.cpp_type])[()]


def _protobuf_value(value: Any) -> Any:
    if not hasattr(value, "DESCRIPTOR"):  # a value of a map
        return value
    dtype = _PROTOBUF_TIMES.get(value.DESCRIPTOR.full_name)
    if dtype is None:
        return _protobuf_fields(value)
    return np.array(value.seconds * 10**9 + value.nanos, dtype)[()]


_MAKERS: dict[tuple[str, str | None], Callable[[Channel], Decoder]] = {
    ("cdr", "ros2msg"): _ros(two=True),
    ("json", None): _json,
    ("protobuf", "protobuf"): _protobuf,
    ("ros1", "ros1msg"): _ros(two=False),
}
