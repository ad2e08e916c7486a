"""Values of loaders and of `ds[i]`: one decoder, masks of nullable columns, and options as users write them."""

from io import BytesIO
from typing import Any

import numpy as np
import PIL.Image
import pytest

import penstock
from penstock import Column, Dataset, Image, List, Tensor
from penstock.errors import InvalidInputError, SampleError


def encoded(mode: str, image_format: str = "PNG") -> bytes:
    values = np.random.default_rng(0).integers(0, 256, (6, 8, 4), np.uint8)
    image = PIL.Image.fromarray(values, "RGBA").convert("RGB").convert(mode) if mode != "RGBA" else None
    if mode == "I;16":
        image = PIL.Image.fromarray(values[:, :, 0].astype(np.uint16) * 257)
    image = PIL.Image.fromarray(values, "RGBA") if image is None else image
    out = BytesIO()
    image.save(out, image_format)
    return out.getvalue()


IMAGES = {
    "rgb": encoded("RGB"), "gray": encoded("L"), "rgba": encoded("RGBA"), "palette": encoded("P"),
    "16 bits": encoded("I;16"), "cmyk": encoded("CMYK", "JPEG"), "gray jpeg": encoded("L", "JPEG"),
    "one bit": encoded("1"),
}  # fmt: skip


@pytest.mark.parametrize("shape", [(6, 8, 3), (6, 8, 1), (6, 8, 4), (6, 8), None], ids=str)
@pytest.mark.parametrize("name", IMAGES)
def test_a_table_and_its_loaders_decode_images_alike(name: str, shape: tuple[int, ...] | None) -> None:
    ds = penstock.create("memory://", {"p": Image("png", shape)})
    ds.append({"p": [IMAGES[name]]})
    ds.commit()

    def outcome(read: Any) -> Any:
        try:
            found = np.asarray(read())
        except SampleError as error:
            return str(error)
        return found.shape, found.dtype.name, found.tobytes()

    expected = outcome(lambda: ds[0]["p"])
    assert outcome(lambda: next(iter(ds.numpy(batch_size=1)))["p"][0]) == expected
    assert outcome(lambda: ds["p"][:][0]) == expected
    assert outcome(lambda: ds.pytorch()[0]["p"]) == expected
    if shape == (6, 8, 3) and name != "16 bits":
        assert expected[:2] == ((6, 8, 3), "uint8"), "every common image is converted to the column's channels"


def test_nullable_ragged_columns_have_a_mask() -> None:
    ds = penstock.create(
        "memory://",
        {
            "n": int,
            "r": Column(Tensor("float32", (None,)), nullable=True),
            "f": Column(Tensor("float64"), nullable=True),
        },
    )
    ds.append(
        [
            {"n": k, "r": None if k % 3 == 0 else np.ones(k, np.float32), "f": None if k % 3 == 0 else 1.0}
            for k in range(10)
        ]
    )
    ds.commit()
    there = [k % 3 != 0 for k in range(10)]
    for loader in (ds.numpy(batch_size=10), ds.pytorch(batch_size=10), ds.pytorch(batch_size=10, collate_fn="pad")):
        [batch] = loader
        assert batch["r_mask"].tolist() == batch["f_mask"].tolist() == there
    [batch] = ds[::-1].numpy(batch_size=10, collate_fn="pad")
    assert batch["r_mask"].tolist() == there[::-1]
    assert batch["r_shape"][:, 0].tolist() == [k if k % 3 else 0 for k in range(10)][::-1]
    assert [bool(ds.pytorch()[k]["r_mask"]) for k in range(10)] == there


def test_lists_of_images_stay_encoded_without_decode() -> None:
    ds = penstock.create("memory://", {"p": List(Image("png")), "one": Image("png")})
    ds.append([{"p": [IMAGES["rgb"], IMAGES["gray"]], "one": IMAGES["rgb"]}, {"p": [], "one": IMAGES["gray"]}])
    ds.commit()
    [batch] = ds.numpy(batch_size=2, decode=False)
    assert batch["p"] == [[IMAGES["rgb"], IMAGES["gray"]], []]
    assert batch["one"] == [IMAGES["rgb"], IMAGES["gray"]]
    [batch] = ds.numpy(batch_size=2, decode={"p": False})
    assert batch["p"][0] == [IMAGES["rgb"], IMAGES["gray"]]
    assert batch["one"][0].shape == (6, 8, 3)
    [batch] = ds.numpy(batch_size=2)
    assert [image.shape for image in batch["p"][0]] == [(6, 8, 3), (6, 8)]


@pytest.fixture(scope="module")
def ds() -> Dataset:
    made = penstock.create("memory://", {"p": Image("png")})
    made.append({"p": [IMAGES["rgb"]] * 4})
    made.commit()
    return made


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GB", 10**9), ("512MiB", 512 << 20), ("2 MB", 2 * 10**6), ("1.5gib", 3 << 29), ("4096kb", 4096000),
     ("2000000", 2000000), (np.int64(1 << 20), 1 << 20)],
)  # fmt: skip
def test_a_budget_can_have_a_unit(ds: Dataset, text: Any, size: int) -> None:
    assert ds.pytorch(batch_size=2, memory_budget=text).stats().budget_bytes == size
    assert ds.numpy(batch_size=2, memory_budget=text).stats().budget_bytes == size


@pytest.mark.parametrize("budget", ["much", "1 XB", "-1GB", "", 1.5, True, "1kB", b"1GB"])
def test_a_budget_that_is_none_is_rejected(ds: Dataset, budget: Any) -> None:
    with pytest.raises(InvalidInputError, match="memory_budget is a number of bytes"):
        ds.pytorch(batch_size=2, memory_budget=budget)


def test_an_image_size_can_be_one_number(ds: Dataset) -> None:
    for size in (64, np.int32(64), (64, 64), [64, 64]):
        assert next(iter(ds.numpy(batch_size=2, image_size=size)))["p"].shape == (2, 64, 64, 3)  # type: ignore[arg-type]
    for bad in (0, -1, 1.5, True, (64,), (64, 0), (64, 64, 3), "64", object()):
        with pytest.raises(InvalidInputError, match="image_size is a height and a width in pixels"):
            ds.numpy(batch_size=2, image_size=bad)  # type: ignore[arg-type]
