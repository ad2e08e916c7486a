"""What COCO files say of images: objects with their boxes and categories, and captions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from penstock.format.kinds import Boxes, Kind, List, Tensor, Text

_PARTS: tuple[tuple[str, Kind, Any, str], ...] = (
    ("boxes", Boxes(layout="xywh"), slice(0, 4), "float32"),
    ("labels", Tensor("int64", (None,)), 4, "int64"),
    ("area", Tensor("float32", (None,)), 5, "float32"),
    ("iscrowd", Tensor("bool", (None,)), 6, "bool"),
)
"""The columns of objects, and where in an object's numbers they are."""


def is_coco(document: object) -> bool:
    """Whether a JSON document is made as COCO's are."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("images"), list)
        and any(isinstance(document.get(name), list) for name in ("annotations", "categories"))
    )


@dataclass
class _Scene:
    """What is known of one image."""

    id: Any
    objects: list[tuple[float, ...]] = field(default_factory=list)
    """Each x, y, width, height, category, area, crowd."""
    captions: list[str] = field(default_factory=list)


class Coco:
    """Collects what COCO files say; categories are numbered in the order in which they are listed."""

    def __init__(self, find: Callable[[object, str], str | None]) -> None:
        """`find` gives the image that a name in a table means."""
        self._find = find
        self._categories: dict[str, int] = {}
        self.scenes: dict[str, _Scene] = {}

    def add(self, table: str, document: Mapping[str, Any], flaws: list[str]) -> bool:
        """Take in a file, and complain into `flaws`; returns whether it describes any image."""
        images = self._images(table, document, flaws)
        here = {key for key in images.values() if key is not None}
        if not here:
            flaws[:] = [f"names no image that is here: {len(images)} images are listed"]
            return False
        categories = {
            _id(one.get("id")): self._categories.setdefault(str(one.get("name", one.get("id"))), len(self._categories))
            for one in _dictionaries(document.get("categories"))
        }
        # COCO's own files repeat objects: those of person_keypoints are in instances, too.
        earlier = {key: {known[:5] for known in self.scenes[key].objects} for key in here}
        for number, one in enumerate(_dictionaries(document.get("annotations")), 1):
            image = _id(one.get("image_id"))
            if image not in images:
                flaws.append(f"annotation {number} is of an image that is not listed: {image!r:.100}")
                continue
            if (key := images[image]) is None:
                continue
            if isinstance(caption := one.get("caption"), str):
                self.scenes[key].captions.append(caption)
            if "bbox" not in one:
                continue
            made = _object(one, categories.get(_id(one.get("category_id"))))
            if made is None:
                flaws.append(f"annotation {number} is not a box of four numbers with a category that is listed")
            elif made[:5] not in earlier[key]:
                self.scenes[key].objects.append(made)
        return True

    def columns(self, keys: Sequence[str]) -> dict[str, tuple[Kind, list[Any]]]:
        """What is said of each image, and the kinds of the columns; boxes are in pixels, as in the files."""
        scenes, names = [self.scenes.get(key) for key in keys], list(self._categories)
        known = list(self.scenes.values())
        found: dict[str, tuple[Kind, list[Any]]] = {}
        if known and all(type(scene.id) is int and abs(scene.id) < 1 << 63 for scene in known):
            found["image_id"] = Tensor("int64"), [None if scene is None else scene.id for scene in scenes]
        if any(scene.objects for scene in known):
            numbers = [None if scene is None else _numbers(scene) for scene in scenes]
            for name, kind, at, dtype in _PARTS:
                found[name] = kind, [None if rows is None else rows[:, at].astype(dtype) for rows in numbers]
            named = [None if rows is None else [names[at] for at in rows[:, 4].astype(int)] for rows in numbers]
            found["categories"] = List(Text()), named
        if any(scene.captions for scene in known):
            found["captions"] = List(Text()), [None if scene is None else scene.captions for scene in scenes]
        return found

    def _images(self, table: str, document: Mapping[str, Any], flaws: list[str]) -> dict[Any, str | None]:
        """The images that a file lists, by its numbers for them; None for those that are not here."""
        images: dict[Any, str | None] = {}
        for number, image in enumerate(_dictionaries(document["images"]), 1):
            id, name = _id(image.get("id")), image.get("file_name")
            if id is None:
                flaws.append(f"image {number}, {name!r:.100}, has no id")
                continue
            images[id] = key = self._find(name, table)
            if key is None:
                flaws.append(f"image {number} is {name!r:.100}, which is not here")
            else:
                self.scenes.setdefault(key, _Scene(id))
        return images


def _numbers(scene: _Scene) -> npt.NDArray[np.float64]:
    return np.array(scene.objects, np.float64).reshape(-1, 7)


def _object(annotation: Mapping[str, Any], category: int | None) -> tuple[float, ...] | None:
    box, area = annotation["bbox"], annotation.get("area")
    if category is None or not isinstance(box, list) or len(box) != 4 or not all(map(_is_length, box)):
        return None
    if box[2] < 0 or box[3] < 0:
        return None
    area = area if _is_length(area) else box[2] * box[3]
    return (*map(float, box), category, float(area), bool(annotation.get("iscrowd")))


def _is_length(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < 1e18  # its square is a float32 as well


def _id(value: object) -> int | float | str | None:
    return value if isinstance(value, int | float | str) else None


def _dictionaries(listed: object) -> list[dict[str, Any]]:
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
