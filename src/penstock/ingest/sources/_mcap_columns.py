"""What the messages of a topic become in a table: pictures, pixels, joints, or one column for each of their fields."""

import json
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.codecs import IMAGE_CODECS, image_size, sniff
from penstock.errors import SampleError
from penstock.format.kinds import Bytes, Image, Json, Kind, List, Tensor, Text
from penstock.ingest.sources._mcap_log import Channel
from penstock.ingest.sources._mcap_messages import BadMessage

Path: TypeAlias = tuple[str, ...]
"""Where a value lies in a message; () is the message as a whole."""
Values: TypeAlias = dict[Path, Any]

_MAX_DEPTH = 8
_MAX_FIELDS = 256
_MAX_NESTING = 64
_EXACT = 1 << 53
_DEPTH_HEADER_BYTES = 12
_ENCODINGS: dict[str, tuple[str, int, list[int] | None]] = {
    **dict.fromkeys(("rgb8", "8UC3"), ("u1", 3, None)),
    **dict.fromkeys(("mono8", "8UC1", "bayer_rggb8", "bayer_bggr8", "bayer_gbrg8", "bayer_grbg8"), ("u1", 1, None)),
    **dict.fromkeys(("mono16", "16UC1"), ("u2", 1, None)),
    "bgr8": ("u1", 3, [2, 1, 0]),
    "rgba8": ("u1", 4, None),
    "bgra8": ("u1", 4, [2, 1, 0, 3]),
    "32FC1": ("f4", 1, None),
}
"""The pixels of ROS: their type, how many values each has, and the order that makes them red, green, blue."""
_GENERIC = frozenset(
    [
        "compressed",
        "compressedDepth",
        "compressed_depth",
        "data",
        "image",
        "image_color",
        "image_compressed",
        "image_mono",
        "image_raw",
        "image_rect",
        "image_rect_color",
        "image_rect_raw",
        "joint_state",
        "joint_states",
        "raw",
    ]
)
_JOINTS = {"position": "joint_angles", "velocity": "joint_velocities", "effort": "joint_efforts"}
_NAMES: Path = ("joint_names",)


@dataclass(frozen=True)
class Sketch:
    """What a few messages of a topic tell about all of them."""

    topic: str
    role: str
    """`picture`, `pixels`, `joints`, `fields`, or `whole` for messages of too many fields."""
    kinds: Mapping[Path, Kind]
    certain: frozenset[Path]
    """The values that every message must have."""
    joints: tuple[str, ...]
    """The joints in the order that every message is brought to; () where they have no names, or not always the same."""

    @property
    def is_camera(self) -> bool:
        return self.role in ("picture", "pixels")

    def read(self, message: Mapping[str, Any]) -> Values:
        """The values of a message, each of its kind; raises `BadMessage`."""
        found = _ROLES[self.role](message)
        if found is None:
            raise BadMessage(f"it holds no {self.role}, as other messages of this topic do")
        if self.joints:
            found = _ordered(found, self.joints)
        there = {path: found[path] for path in self.kinds if found.get(path) is not None}
        if missing := self.certain - there.keys():
            raise BadMessage(f"it has no {'_'.join(min(missing))}, as other messages of this topic do")
        return {path: _fitting(value, self.kinds[path], path) for path, value in there.items()}


def sketch(channel: Channel, messages: Sequence[Mapping[str, Any]]) -> Sketch | None:
    """Decide what a topic becomes; None if its messages are empty."""
    for role in _GUESSES:
        found = [values for values in _each(_ROLES[role], messages) if values]
        if not found:
            continue
        paths = dict.fromkeys(path for values in found for path in values)
        if len(paths) > _MAX_FIELDS:
            return Sketch(channel.topic, "whole", {(): Json()}, frozenset({()}), ())
        whole = _declared_integers(channel) if channel.encoding == "json" else None
        kinds = {path: _kind(path, [v[path] for v in found if path in v], role, whole) for path in paths}
        joints = _constant_names(found) if role == "joints" else ()
        if joints:
            kinds.pop(_NAMES)
        fixed = role != "fields" or channel.encoding in ("cdr", "ros1")
        certain = frozenset(path for path in kinds if fixed and all(path in values for values in found))
        return Sketch(channel.topic, role, kinds, certain, joints)
    return None


def name_columns(sketches: Iterable[Sketch], taken: Iterable[str]) -> dict[tuple[str, Path], str]:
    """A name for each topic's values, none of which is another's, nor the name that batches give to another's mask."""
    sketches = list(sketches)
    used = set(taken)
    several = sum(known.role == "joints" for known in sketches) > 1
    names: dict[tuple[str, Path], str] = {}
    for known in sketches:
        parts = [part for part in known.topic.split("/") if part]
        kept = _without_generic(parts)
        if known.role == "joints":
            lead = kept if several else []
        else:
            lead = kept or parts[:1] or ["topic"]
        for path in known.kinds:
            tail = () if known.role == "fields" and len(known.kinds) == 1 else path
            names[known.topic, path] = _unused("_".join([*lead, *tail]), used)
    return names


def _without_generic(parts: Sequence[str]) -> list[str]:
    kept = list(parts)
    while kept and kept[-1] in _GENERIC:
        kept.pop()
    return kept


def _unused(wanted: str, used: set[str]) -> str:
    clean = re.sub(r"\W+", "_", wanted).strip("_")[:200] or "value"
    name, number = clean, 2
    while name in used or f"{name}_mask" in used or name.removesuffix("_mask") in used:
        name, number = f"{clean}_{number}", number + 1
    used.add(name)
    return name


def _each(read: Callable[[Mapping[str, Any]], Values | None], messages: Sequence[Any]) -> Iterator[Values | None]:
    for message in messages:
        try:
            yield read(message)
        except BadMessage:
            continue


def _picture(message: Mapping[str, Any]) -> Values | None:
    data = _bytes(message.get("data"))
    if data is None:
        return None
    if sniff(data) not in IMAGE_CODECS and "compressedDepth" in str(message.get("format")):
        data = data[_DEPTH_HEADER_BYTES:]
    return {(): data} if sniff(data) in IMAGE_CODECS else None


def _pixels(message: Mapping[str, Any]) -> Values | None:
    layout, data = _ENCODINGS.get(str(message.get("encoding"))), _bytes(message.get("data"))
    height, width = message.get("height"), message.get("width")
    numbers = (int, np.integer)
    if layout is None or data is None or not isinstance(height, numbers) or not isinstance(width, numbers):
        return None
    type, channels, order = layout
    dtype = np.dtype(type).newbyteorder(">" if message.get("is_bigendian") else "<")
    row_bytes, step = int(width) * channels * dtype.itemsize, message.get("step")
    step = int(step) if isinstance(step, numbers) and step else row_bytes
    if height <= 0 or width <= 0 or step < row_bytes or len(data) < step * (int(height) - 1) + row_bytes:
        raise BadMessage(f"its {len(data)} bytes are no {height} x {width} pixels of {message['encoding']}")
    pixels = np.ndarray(
        (int(height), int(width), channels), dtype, data, strides=(step, channels * dtype.itemsize, dtype.itemsize)
    )
    pixels = pixels[..., order] if order is not None else pixels
    native = np.ascontiguousarray(pixels, dtype.newbyteorder("="))
    return {(): native[..., 0] if channels == 1 else native}


def _joints(message: Mapping[str, Any]) -> Values | None:
    numbers = {key: _numbers(message.get(key)) for key in _JOINTS}
    names = message.get("name")
    if numbers["position"] is None or not any(key in message for key in ("name", "velocity", "effort")):
        return None
    found: Values = {(_JOINTS[key],): value for key, value in numbers.items() if value is not None and len(value)}
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        found[_NAMES] = names
    return found


def _fields(message: Mapping[str, Any]) -> Values:
    return {path: _leaf(value) for path, value in _leaves(message, ()) if path[0] != "header" or path == ("header",)}


def _leaves(part: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    for key, value in part.items():
        if isinstance(value, dict) and value and len(path) < _MAX_DEPTH:
            yield from _leaves(value, (*path, key))
        elif value is not None:
            yield (*path, key), value


def _whole(message: Mapping[str, Any]) -> Values:
    return {(): _plain(message)}


_ROLES: dict[str, Callable[[Mapping[str, Any]], Values | None]] = {
    "picture": _picture,
    "pixels": _pixels,
    "joints": _joints,
    "fields": _fields,
    "whole": _whole,
}
"""How the values are taken out of a message; None means that it is not such a message."""
_GUESSES = ("picture", "pixels", "joints", "fields")


def _bytes(value: Any) -> memoryview | None:
    """What may be a picture: bytes, numbers from 0 to 255, or base64."""
    try:
        if isinstance(value, str):
            return memoryview(b64decode(value.rpartition(",")[2], validate=True))
        if isinstance(value, list):
            return memoryview(bytes(value))
    except (OverflowError, TypeError, ValueError):
        return None
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
        return value.data
    return memoryview(value) if isinstance(value, bytes) else None


def _numbers(value: Any) -> npt.NDArray[np.float64] | None:
    if not isinstance(value, list | np.ndarray):
        return None
    try:
        found = np.asarray(value, np.float64)
    except (OverflowError, TypeError, ValueError):
        return None
    return found if found.ndim == 1 else None


def _leaf(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic | str | bytes | bool | int | float):
        return value
    if isinstance(value, list) and value and not all(isinstance(item, str) for item in value):
        try:
            array = np.asarray(value)
        except ValueError:  # lists of different lengths
            return _plain(value)
        return array if array.dtype.kind in "biuf" else _plain(value)
    return _plain(value)


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it: no numpy, no bytes, and nothing where a number is not one."""
    if depth > _MAX_NESTING:
        raise BadMessage(f"it is nested more than {_MAX_NESTING} deep")
    if isinstance(value, np.ndarray | np.generic):
        times = value.dtype.kind in "mM"
        return _plain(value.astype(np.int64).tolist() if times else value.tolist(), depth)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _plain(inner, depth + 1) for key, inner in value.items()}
    return [_plain(inner, depth + 1) for inner in value] if isinstance(value, list) else value


def _kind(path: Path, values: Sequence[Any], role: str, whole: set[Path] | None) -> Kind:
    """The kind that takes all values; `whole` are the numbers that a JSON schema says to be integers."""
    if role == "picture":
        return _image_kind(values)
    if all(isinstance(value, str) for value in values):
        return Text()
    if all(isinstance(value, bytes) for value in values):
        return Bytes()
    if all(isinstance(value, list) and all(isinstance(item, str) for item in value) for value in values):
        return List(Text()) if any(values) else Json()
    numbers = [value for value in values if not _is_empty_list(value)]
    if all(isinstance(value, np.ndarray | np.generic | bool | int | float) for value in numbers):
        arrays = [np.asarray(value) for value in numbers]
        dtype = _common_dtype(arrays, loose=whole is not None and path not in whole)
        if dtype is not None and len({array.ndim for array in arrays}) == 1:
            lengths = [set(lengths) for lengths in zip(*(array.shape for array in arrays), strict=True)]
            if lengths and len(numbers) < len(values):
                lengths[0].add(0)
            return Tensor(dtype.name, tuple(n.pop() if len(n) == 1 and 0 not in n else None for n in lengths))
    return Json()


def _is_empty_list(value: Any) -> bool:
    """An array of JSON that says nothing about its type."""
    return isinstance(value, list) and not value


def _common_dtype(arrays: Sequence[npt.NDArray[Any]], *, loose: bool) -> np.dtype[Any] | None:
    """The type of all arrays; in JSON (`loose`) 1 may mean 1.0: numbers are floats unless those would lose digits."""
    try:
        dtype = np.result_type(*{array.dtype for array in arrays})
    except TypeError:
        return None
    if dtype.kind not in "biufmM":
        return None
    if loose and dtype.kind in "iu" and all(np.abs(array).max(initial=0) <= _EXACT for array in arrays):
        return np.dtype(np.float64)
    return dtype


def _image_kind(values: Sequence[memoryview]) -> Image:
    codecs, shapes = {sniff(value) for value in values}, set()
    for value in values:
        try:
            shapes.add(_image_shape(value))
        except SampleError:
            continue
    codec = codecs.pop() if len(codecs) == 1 else None
    return Image(codec or "png", shapes.pop() if len(shapes) == 1 else None)


def _image_shape(data: memoryview) -> tuple[int, ...]:
    height, width, channels = image_size(data)
    return (height, width) if channels == 1 else (height, width, channels)


def _fitting(value: Any, kind: Kind, path: Path) -> Any:
    """A value that its column takes; one message may differ from those that decided about it."""
    if isinstance(kind, Json):
        return _plain(value)
    if isinstance(kind, Image):
        try:
            fits = kind.shape in (None, _image_shape(value))
        except SampleError as error:
            raise BadMessage(str(error)) from error
    elif isinstance(kind, Tensor):
        if _is_empty_list(value) and kind.shape:
            value = np.zeros((0, *(n or 0 for n in kind.shape[1:])), kind.dtype)
        fits = _is_tensor(value, kind)
    else:
        fits = isinstance(value, str if isinstance(kind, Text) else bytes if isinstance(kind, Bytes) else list)
    if not fits:
        raise BadMessage(f"its {'_'.join(path) or 'value'} is {_described(value)}, and the first ones are {kind}")
    return value


def _described(value: Any) -> str:
    if isinstance(value, memoryview):
        return f"a picture of shape {_image_shape(value)}"
    return f"{value.dtype.name} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def _is_tensor(value: Any, kind: Tensor) -> bool:
    if not isinstance(value, np.ndarray | np.generic | bool | int | float):
        return False
    array = np.asarray(value)
    lengths = zip(kind.shape, array.shape, strict=False)
    fits = array.ndim == len(kind.shape) and all(wanted in (None, length) for wanted, length in lengths)
    return fits and bool(np.can_cast(array.dtype, kind.dtype, "same_kind"))


def _constant_names(found: Sequence[Values]) -> tuple[str, ...]:
    """The names of the joints, if every message has the same ones."""
    sets = {tuple(sorted(values.get(_NAMES, ()))) for values in found}
    names = tuple(found[0].get(_NAMES, ()))
    return names if len(sets) == 1 and len(set(names)) == len(names) else ()


def _ordered(found: Values, joints: tuple[str, ...]) -> Values:
    """The values of the joints in the order that the table has them."""
    names = tuple(found.get(_NAMES, joints))
    if names == joints:
        return found
    if sorted(names) != sorted(joints):
        raise BadMessage(f"its joints are {', '.join(names)}, and those of the first messages {', '.join(joints)}")
    order = [names.index(joint) for joint in joints]
    return {
        path: value[order] if len(value) == len(order) else value for path, value in found.items() if path != _NAMES
    }


def _declared_integers(channel: Channel) -> set[Path]:
    """The fields that a JSON schema says to be integers, or arrays of them."""
    try:
        return set(_integers(json.loads(channel.schema or b"{}"), ()))
    except (ValueError, RecursionError):
        return set()


def _integers(schema: Any, path: Path) -> Iterator[Path]:
    if not isinstance(schema, dict) or len(path) > _MAX_DEPTH:
        return
    items, properties = schema.get("items"), schema.get("properties")
    if "integer" in (schema.get("type"), items.get("type") if isinstance(items, dict) else None):
        yield path
    for key, inner in properties.items() if isinstance(properties, dict) else ():
        yield from _integers(inner, (*path, key))
