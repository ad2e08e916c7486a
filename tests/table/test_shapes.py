"""An inferred shape of images holds until an image of another shape is added; a declared one is enforced."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Image
from penstock.codecs import decode_image
from penstock.errors import InvalidInputError
from penstock.table import _encode

FORMATS = [
    ("PNG", "RGB"), ("PNG", "L"), ("PNG", "RGBA"), ("PNG", "P"), ("PNG", "I;16"), ("PNG", "1"), ("JPEG", "RGB"),
    ("JPEG", "L"), ("JPEG", "CMYK"), ("WEBP", "RGB"), ("BMP", "RGB"), ("TIFF", "L"),
]  # fmt: skip


def encoded(height: int = 4, width: int = 6, *, form: tuple[str, str] = ("PNG", "RGB"), value: int = 7) -> bytes:
    out = BytesIO()
    PIL.Image.new(form[1], (width, height), value).save(out, form[0])
    return out.getvalue()


SAME, OTHER, GRAY = encoded(), encoded(5), encoded(form=("PNG", "L"))
INFERRED = Image("png", (4, 6, 3), inferred=True)


def table(place: Any = "memory://", images: int = 3) -> Dataset:
    """A table whose column `p` has an inferred shape."""
    ds = penstock.create(place)
    ds.append({"n": list(range(images)), "p": [SAME] * images})
    ds.commit()
    assert ds.schema["p"].kind == INFERRED
    return ds


def batch(ds: Dataset) -> Any:
    return next(iter(ds.numpy(batch_size=len(ds))))["p"]


def shape(ds: Dataset) -> tuple[int, ...] | None:
    kind = ds.schema["p"].kind
    assert isinstance(kind, Image)
    return kind.shape


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_batch_is_stacked_exactly_if_all_images_have_one_shape(data: st.DataObject) -> None:
    image = st.builds(encoded, st.integers(1, 2), st.just(2), form=st.sampled_from(FORMATS), value=st.integers(0, 1))
    few = st.lists(st.sampled_from(data.draw(st.lists(image, min_size=1, max_size=2))), min_size=1, max_size=4)
    ds, expected = penstock.create("memory://"), []
    for images in data.draw(st.lists(few, min_size=1, max_size=3)):
        ds.append({"p": pa.array(images) if data.draw(st.booleans()) else images})
        expected += [decode_image(value) for value in images]
        assert (shape(ds) is not None) == (len({pixels.shape for pixels in expected}) == 1)
    ds.commit()
    for found in (batch(ds), ds["p"][:]):
        assert isinstance(found, np.ndarray) == (len({pixels.shape for pixels in expected}) == 1)
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


CHANGES: dict[str, Callable[[Dataset, Any], object]] = {
    "append": lambda ds, image: ds.append({"n": [9], "p": [image]}),
    "append arrow": lambda ds, image: ds.append(pa.table({"n": [9], "p": pa.array([image], pa.binary())})),
    "append of a file": lambda ds, image: ds.append({"n": [9], "p": [BytesIO(image)]}),
    "update": lambda ds, image: ds.update(positions=[1], data={"p": image}),
}


@pytest.mark.parametrize("image", [OTHER, GRAY], ids=["size", "channels"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_image_of_another_shape_ends_stacking(change: Callable[[Dataset, Any], object], image: bytes) -> None:
    torch = pytest.importorskip("torch")
    ds = table()
    before = ds.version
    change(ds, SAME)
    assert ds.schema["p"].kind == INFERRED
    change(ds, image)
    assert ds.schema["p"].kind == Image("png")
    ds.commit()
    found = batch(ds)
    assert isinstance(found, list)
    assert {pixels.shape for pixels in found} == {(4, 6, 3), decode_image(image).shape}
    assert isinstance(next(iter(ds.pytorch(batch_size=4)))["p"], list)
    ds.checkout(before)
    assert next(iter(ds.pytorch(batch_size=3)))["p"].shape == torch.Size((3, 4, 6, 3))
    assert batch(ds).shape == (3, 4, 6, 3)


def test_a_rolled_back_image_of_another_shape_leaves_the_shape() -> None:
    ds = table()
    ds.append({"n": [9], "p": [OTHER]})
    ds.rollback()
    assert (ds.schema["p"].kind, batch(ds).shape) == (INFERRED, (3, 4, 6, 3))


@pytest.mark.parametrize("other", [False, True])
def test_an_added_column_stacks_if_all_its_images_have_one_shape(other: bool) -> None:
    ds = table(images=1500)
    images = [SAME] * 1500
    images[-1] = OTHER if other else SAME  # a later batch than the one that the kind is inferred from
    ds.add_column("q", values=images)
    ds.add_column("r", fill=SAME)
    assert ds.schema["q"].kind == (Image("png") if other else INFERRED)
    assert ds.schema["r"].kind == INFERRED
    assert ds["q"][1499].shape == (5 if other else 4, 6, 3)


@pytest.mark.parametrize("streamed", [False, True], ids=["bytes", "file"])
def test_a_blob_of_another_shape_ends_stacking(streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_encode, "MAX_INLINE_BYTES", 16)
    ds = table()
    ds.append({"n": [9], "p": [BytesIO(SAME) if streamed else SAME]})
    assert ds.schema["p"].kind == INFERRED
    ds.append({"n": [9], "p": [BytesIO(OTHER) if streamed else OTHER]})
    assert (ds.schema["p"].kind, ds["p"][4].shape) == (Image("png"), (5, 6, 3))


def test_null_images_have_any_shape() -> None:
    ds = penstock.create("memory://")
    ds.append({"p": [SAME, None]})
    assert (ds.schema["p"].kind, ds.schema["p"].nullable) == (INFERRED, True)
    ds.append({"p": [None]})
    assert ds.schema["p"].kind == INFERRED


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_declared_shape_is_enforced(change: Callable[[Dataset, Any], object]) -> None:
    ds = penstock.create("memory://", {"n": int, "p": Column(Image("png", (4, 6, 3)))})
    ds.append({"n": [0, 1], "p": [SAME, SAME]})
    with pytest.raises(InvalidInputError, match=r"shape \(4, 6, 3\), got 5 x 6 pixels"):
        change(ds, OTHER)
    assert ds.schema["p"].kind == Image("png", (4, 6, 3))


@pytest.mark.parametrize("first", ["other", "same"])
def test_of_concurrent_writers_one_may_add_an_image_of_another_shape(first: str, tmp_path: Any) -> None:
    table(tmp_path / "t")
    writers = {image: penstock.load(tmp_path / "t") for image in ("same", "other")}
    writers["same"].append({"n": [3], "p": [SAME]})
    writers["other"].update(positions=[0], data={"p": OTHER})
    for name in sorted(writers, key=lambda name: name != first):
        writers[name].commit()
    ds = penstock.load(tmp_path / "t")
    assert ds.schema["p"].kind == Image("png")
    assert [pixels.shape[0] for pixels in batch(ds)] == [5, 4, 4, 4]


@pytest.mark.parametrize("other_on", ["main", "branch"])
def test_a_merge_with_images_of_another_shape_gives_lists(other_on: str) -> None:
    ds = table()
    branch = ds.branches.create("branch")
    branch.append({"n": [3], "p": [OTHER if other_on == "branch" else SAME]})
    branch.commit()
    ds.append({"n": [4], "p": [OTHER if other_on == "main" else SAME]})
    ds.commit()
    ds.merge("branch")
    ds.commit()
    assert ds.schema["p"].kind == Image("png")
    assert sorted(pixels.shape[0] for pixels in batch(ds)) == [4, 4, 4, 4, 5]


def test_image_size_does_not_depend_on_an_inferred_shape() -> None:
    ds = penstock.create("memory://")
    ds.append({"p": [GRAY]})
    ds.commit()
    assert shape(ds) == (4, 6)
    before = next(iter(ds.numpy(batch_size=1, image_size=2)))["p"]
    ds.append({"p": [OTHER]})
    ds.commit()
    after = next(iter(ds.numpy(batch_size=2, image_size=2)))["p"]
    assert (before.shape, np.array_equal(after[:1], before)) == ((1, 2, 2, 3), True)
