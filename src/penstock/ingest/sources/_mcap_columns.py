"""How the messages of a topic map to columns: images, pixels, joints, or one column per field."""

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.codecs import IMAGE_CODECS, image_size, sniff
from penstock.errors import SampleError
from penstock.format.kinds import Bytes, Image, Json, Kind, List, Tensor, Text
from penstock.ingest.sources._mcap_log import Channel
from penstock.ingest.sources._mcap_messages import BadMessageError
from penstock.ingest.sources._values import column_name

Path: TypeAlias = tuple[str, ...]
"""The path of a value in a message; () is the whole message."""
Values: TypeAlias = dict[Path, Any]

_MAX_DEPTH = 8
_MAX_FIELDS = 256
_MAX_NESTING = 64
_MAX_EXACT_INT = 1 << 53
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
"""ROS pixel encodings: dtype, channels, and the channel order that gives RGB."""
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
class TopicPlan:
    """How the messages of a topic become values, decided from a sample."""

    topic: str
    role: str
    """`image`, `pixels`, `joints`, `fields`, or `whole` for messages with too many fields."""
    kinds: Mapping[Path, Kind]
    required: frozenset[Path]
    """The values that every message must have."""
    joints: tuple[str, ...]
    """The joint order of the columns; () if joints have no names, or names that vary."""

    @property
    def is_camera(self) -> bool:
        return self.role in ("image", "pixels")

    def read(self, message: Mapping[str, Any]) -> Values:
        """The values of a message, which match their kinds; raises `BadMessageError`."""
        found = _ROLES[self.role](message)
        if found is None:
            raise BadMessageError(f"it has no {self.role}, unlike other messages of this topic")
        if self.joints:
            found = _reordered(found, self.joints)
        present = {path: found[path] for path in self.kinds if found.get(path) is not None}
        if missing := self.required - present.keys():
            raise BadMessageError(f"it has no {'_'.join(min(missing))}, unlike other messages of this topic")
        return {path: _validated(value, self.kinds[path], path) for path, value in present.items()}


def plan_topic(channel: Channel, messages: Sequence[Mapping[str, Any]]) -> TopicPlan | None:
    """Decide the columns of a topic; None if its messages are empty."""
    for role in _ROLE_ORDER:
        found = [values for values in _read_all(_ROLES[role], messages) if values]
        if not found:
            continue
        paths = dict.fromkeys(path for values in found for path in values)
        if len(paths) > _MAX_FIELDS:
            return TopicPlan(channel.topic, "whole", {(): Json()}, frozenset({()}), ())
        integers = _declared_integers(channel) if channel.encoding == "json" else None
        kinds = {path: _kind(path, [v[path] for v in found if path in v], role, integers) for path in paths}
        joints = _constant_names(found) if role == "joints" else ()
        if joints:
            kinds.pop(_NAMES)
        fixed = role != "fields" or channel.encoding in ("cdr", "ros1")
        required = frozenset(path for path in kinds if fixed and all(path in values for values in found))
        return TopicPlan(channel.topic, role, kinds, required, joints)
    return None


def name_columns(topics: Iterable[TopicPlan], taken: Collection[str]) -> dict[tuple[str, Path], str]:
    """A unique column name for each value, distinct also from the names of masks in batches (`NAME_mask`)."""
    topics = list(topics)
    used = {*taken, *(f"{name}_mask" for name in taken)}
    several = sum(plan.role == "joints" for plan in topics) > 1
    names: dict[tuple[str, Path], str] = {}
    for plan in topics:
        parts = [part for part in plan.topic.split("/") if part]
        specific = _without_generic(parts)
        if plan.role == "joints":
            lead = specific if several else []
        else:
            lead = specific or parts[:1] or ["topic"]
        for path in plan.kinds:
            tail = () if plan.role == "fields" and len(plan.kinds) == 1 else path
            name = names[plan.topic, path] = column_name("_".join([*lead, *tail]), used, identifier=True)
            used |= {name, f"{name}_mask", name.removesuffix("_mask")}
    return names


def _without_generic(parts: Sequence[str]) -> list[str]:
    specific = list(parts)
    while specific and specific[-1] in _GENERIC:
        specific.pop()
    return specific


def _read_all(read: Callable[[Mapping[str, Any]], Values | None], messages: Sequence[Any]) -> Iterator[Values | None]:
    for message in messages:
        try:
            yield read(message)
        except BadMessageError:
            continue


def _image(message: Mapping[str, Any]) -> Values | None:
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
        raise BadMessageError(f"its {len(data)} bytes do not hold {height} x {width} pixels of {message['encoding']}")
    pixels = np.ndarray(
        (int(height), int(width), channels), dtype, data, strides=(step, channels * dtype.itemsize, dtype.itemsize)
    )
    pixels = pixels[..., order] if order is not None else pixels
    native = np.ascontiguousarray(pixels, dtype.newbyteorder("="))
    return {(): native[..., 0] if channels == 1 else native}


def _joints(message: Mapping[str, Any]) -> Values | None:
    values = {key: _vector(message.get(key)) for key in _JOINTS}
    names = message.get("name")
    if values["position"] is None or not any(key in message for key in ("name", "velocity", "effort")):
        return None
    found: Values = {(_JOINTS[key],): value for key, value in values.items() if value is not None and len(value)}
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
    return {(): _to_json(message)}


_ROLES: dict[str, Callable[[Mapping[str, Any]], Values | None]] = {
    "image": _image,
    "pixels": _pixels,
    "joints": _joints,
    "fields": _fields,
    "whole": _whole,
}
"""Extractors of values; None means that the message does not have this role."""
_ROLE_ORDER = ("image", "pixels", "joints", "fields")


def _bytes(value: Any) -> memoryview | None:
    """Data that may be an image: bytes, integers from 0 to 255, or base64."""
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


def _vector(value: Any) -> npt.NDArray[np.float64] | None:
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
            return _to_json(value)
        return array if array.dtype.kind in "biuf" else _to_json(value)
    return _to_json(value)


def _to_json(value: Any, depth: int = 0) -> Any:
    """A value as JSON: without numpy and bytes, and with null for NaN and infinity."""
    if depth > _MAX_NESTING:
        raise BadMessageError(f"it is nested deeper than {_MAX_NESTING} levels")
    if isinstance(value, np.ndarray | np.generic):
        times = value.dtype.kind in "mM"
        return _to_json(value.astype(np.int64).tolist() if times else value.tolist(), depth)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _to_json(inner, depth + 1) for key, inner in value.items()}
    return [_to_json(inner, depth + 1) for inner in value] if isinstance(value, list) else value


def _kind(path: Path, values: Sequence[Any], role: str, integers: set[Path] | None) -> Kind:
    """The kind that fits all values; `integers` are the paths that a JSON schema declares as integers."""
    if role == "image":
        return _image_kind(values)
    if all(isinstance(value, str) for value in values):
        return Text()
    if all(isinstance(value, bytes) for value in values):
        return Bytes()
    if all(isinstance(value, list) and all(isinstance(item, str) for item in value) for value in values):
        return List(Text()) if any(values) else Json()
    present = [value for value in values if not _is_empty_list(value)]
    if all(isinstance(value, np.ndarray | np.generic | bool | int | float) for value in present):
        arrays = [np.asarray(value) for value in present]
        dtype = _common_dtype(arrays, loose=integers is not None and path not in integers)
        if dtype is not None and len({array.ndim for array in arrays}) == 1:
            lengths = [set(lengths) for lengths in zip(*(array.shape for array in arrays), strict=True)]
            if lengths and len(present) < len(values):
                lengths[0].add(0)
            return Tensor(dtype.name, tuple(n.pop() if len(n) == 1 and 0 not in n else None for n in lengths))
    return Json()


def _is_empty_list(value: Any) -> bool:
    """An empty JSON array, which does not show its type."""
    return isinstance(value, list) and not value


def _common_dtype(arrays: Sequence[npt.NDArray[Any]], *, loose: bool) -> np.dtype[Any] | None:
    """The common dtype; in JSON (`loose`) 1 may mean 1.0, so integers become floats unless that loses digits."""
    try:
        dtype = np.result_type(*{array.dtype for array in arrays})
    except TypeError:
        return None
    if dtype.kind not in "biufmM":
        return None
    if loose and dtype.kind in "iu" and all(np.abs(array).max(initial=0) <= _MAX_EXACT_INT for array in arrays):
        return np.dtype(np.float64)
    return dtype


def _image_kind(values: Sequence[memoryview]) -> Image:
    codecs = {sniff(value) for value in values}
    return Image((codecs.pop() if len(codecs) == 1 else None) or "png")


def _validated(value: Any, kind: Kind, path: Path) -> Any:
    """The value, converted to match its column; raises `BadMessageError` if it does not match."""
    if isinstance(kind, Json):
        return _to_json(value)
    if isinstance(kind, Image):
        try:
            image_size(value)
        except SampleError as error:
            raise BadMessageError(str(error)) from error
        fits = True
    elif isinstance(kind, Tensor):
        if _is_empty_list(value) and kind.shape:
            value = np.zeros((0, *(n or 0 for n in kind.shape[1:])), kind.dtype)
        fits = _is_tensor(value, kind)
    else:
        fits = isinstance(value, str if isinstance(kind, Text) else bytes if isinstance(kind, Bytes) else list)
    if not fits:
        raise BadMessageError(f"its {'_'.join(path) or 'value'} is {_described(value)}, and the column holds {kind}")
    return value


def _described(value: Any) -> str:
    if isinstance(value, memoryview):
        return "an image"
    return f"{value.dtype.name} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def _is_tensor(value: Any, kind: Tensor) -> bool:
    if not isinstance(value, np.ndarray | np.generic | bool | int | float):
        return False
    array = np.asarray(value)
    lengths = zip(kind.shape, array.shape, strict=False)
    fits = array.ndim == len(kind.shape) and all(wanted in (None, length) for wanted, length in lengths)
    return fits and bool(np.can_cast(array.dtype, kind.dtype, "same_kind"))


def _constant_names(found: Sequence[Values]) -> tuple[str, ...]:
    """The joint names, if they are the same in every message."""
    sets = {tuple(sorted(values.get(_NAMES, ()))) for values in found}
    names = tuple(found[0].get(_NAMES, ()))
    return names if len(sets) == 1 and len(set(names)) == len(names) else ()


def _reordered(found: Values, joints: tuple[str, ...]) -> Values:
    """The joint values in the order of the columns."""
    names = tuple(found.get(_NAMES, joints))
    if names == joints:
        return found
    if sorted(names) != sorted(joints):
        raise BadMessageError(f"its joints are {', '.join(names)}, and the columns have {', '.join(joints)}")
    order = [names.index(joint) for joint in joints]
    return {
        path: value[order] if len(value) == len(order) else value for path, value in found.items() if path != _NAMES
    }


def _declared_integers(channel: Channel) -> set[Path]:
    """The fields that a JSON schema declares as integers or arrays of integers."""
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
