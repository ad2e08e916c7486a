"""COCO annotations: objects with boxes and categories, and captions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from penstock.format.kinds import Boxes, Kind, List, Tensor, Text

_OBJECT_COLUMNS: tuple[tuple[str, Kind, Any, str], ...] = (
    ("boxes", Boxes(layout="xywh"), slice(0, 4), "float32"),
    ("labels", Tensor("int64", (None,)), 4, "int64"),
    ("area", Tensor("float32", (None,)), 5, "float32"),
    ("iscrowd", Tensor("bool", (None,)), 6, "bool"),
)
"""The columns of objects, their indices in an object vector, and their dtypes."""


def is_coco(document: object) -> bool:
    """Whether a JSON document has the structure of COCO."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("images"), list)
        and any(isinstance(document.get(name), list) for name in ("annotations", "categories"))
    )


@dataclass
class _Annotations:
    """The annotations of one image."""

    id: Any
    objects: list[tuple[float, ...]] = field(default_factory=list)
    """Each is x, y, width, height, category, area, crowd."""
    captions: list[str] = field(default_factory=list)


class Coco:
    """Collects annotations of COCO files; category indices follow the order of the files."""

    def __init__(self, find: Callable[[object, str], str | None]) -> None:
        """`find` resolves a file name in a table to an image key."""
        self._find = find
        self._categories: dict[str, int] = {}
        self.annotations: dict[str, _Annotations] = {}

    def add(self, table: str, document: Mapping[str, Any], errors: list[str]) -> bool:
        """Add a file and append its problems to `errors`; returns whether it describes any image."""
        images = self._images(table, document, errors)
        present = {key for key in images.values() if key is not None}
        if not present:
            errors[:] = [f"names no image of the source: {len(images)} images are listed"]
            return False
        categories = {
            _id(one.get("id")): self._categories.setdefault(str(one.get("name", one.get("id"))), len(self._categories))
            for one in _dictionaries(document.get("categories"))
        }
        # The official COCO files repeat objects: those of person_keypoints are also in instances.
        earlier = {key: {known[:5] for known in self.annotations[key].objects} for key in present}
        for number, one in enumerate(_dictionaries(document.get("annotations")), 1):
            image = _id(one.get("image_id"))
            if image not in images:
                errors.append(f"annotation {number} refers to an image that is not listed: {image!r:.100}")
                continue
            if (key := images[image]) is None:
                continue
            if isinstance(caption := one.get("caption"), str):
                self.annotations[key].captions.append(caption)
            if "bbox" not in one:
                continue
            parsed = _object(one, categories.get(_id(one.get("category_id"))))
            if parsed is None:
                errors.append(f"annotation {number} is not a box of four numbers with a listed category")
            elif parsed[:5] not in earlier[key]:
                self.annotations[key].objects.append(parsed)
        return True

    def columns(self, keys: Sequence[str]) -> dict[str, tuple[Kind, list[Any]]]:
        """The kind and the values of each column; boxes are in pixels, as in the files."""
        each, names = [self.annotations.get(key) for key in keys], list(self._categories)
        known = list(self.annotations.values())
        found: dict[str, tuple[Kind, list[Any]]] = {}
        if known and all(type(one.id) is int and abs(one.id) < 1 << 63 for one in known):
            found["image_id"] = Tensor("int64"), [None if one is None else one.id for one in each]
        if any(one.objects for one in known):
            vectors = [None if one is None else _object_vectors(one) for one in each]
            for name, kind, index, dtype in _OBJECT_COLUMNS:
                found[name] = kind, [None if rows is None else rows[:, index].astype(dtype) for rows in vectors]
            named = [None if rows is None else [names[index] for index in rows[:, 4].astype(int)] for rows in vectors]
            found["categories"] = List(Text()), named
        if any(one.captions for one in known):
            found["captions"] = List(Text()), [None if one is None else one.captions for one in each]
        return found

    def _images(self, table: str, document: Mapping[str, Any], errors: list[str]) -> dict[Any, str | None]:
        """Image ids of a file to image keys; None for images that are not in the source."""
        images: dict[Any, str | None] = {}
        for number, image in enumerate(_dictionaries(document["images"]), 1):
            id, name = _id(image.get("id")), image.get("file_name")
            if id is None:
                errors.append(f"image {number}, {name!r:.100}, has no id")
                continue
            images[id] = key = self._find(name, table)
            if key is None:
                errors.append(f"image {number} is {name!r:.100}, which is not in the source")
            else:
                self.annotations.setdefault(key, _Annotations(id))
        return images


def _object_vectors(annotation: _Annotations) -> npt.NDArray[np.float64]:
    return np.array(annotation.objects, np.float64).reshape(-1, 7)


def _object(annotation: Mapping[str, Any], category: int | None) -> tuple[float, ...] | None:
    box, area = annotation["bbox"], annotation.get("area")
    if category is None or not isinstance(box, list) or len(box) != 4 or not all(map(_is_length, box)):
        return None
    if box[2] < 0 or box[3] < 0:
        return None
    area = area if _is_length(area) else box[2] * box[3]
    return (*map(float, box), category, float(area), bool(annotation.get("iscrowd")))


def _is_length(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < 1e18  # the area fits float32


def _id(value: object) -> int | float | str | None:
    return value if isinstance(value, int | float | str) else None


def _dictionaries(listed: object) -> list[dict[str, Any]]:
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
