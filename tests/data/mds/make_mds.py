"""Makes the MDS datasets beside it, with MosaicML's own writer, in an environment of its own.

`pip install mosaicml-streaming==0.13.0`, then `python tests/data/mds/make_mds.py`. `sample` and `other` say what is in
them; the tests import both, so nothing but numpy is imported here before the writer is needed.
"""

import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).parent
IMAGE = HERE / "image.jpg"
COLUMNS = {
    "number": "int",
    "weight": "float32",
    "caption": "str",
    "about": "json",
    "image": "jpeg",
    "pose": "ndarray:float32:4",
    "points": "ndarray",
    "blob": "bytes",
}
OTHERS = {
    "tiny": "uint8",
    "half": "float16",
    "big": "uint64",
    "digits": "str_int",
    "fraction": "str_float",
    "money": "str_decimal",
    "tokens": "ndarray:int32",
    "matrix": "ndarray:uint16:2,3",
    "drawing": "png",
    "raw": "pil",
    "frames": "list[jpeg]",
    "drawings": "list[png]",
    "film": "jpeg_array",
}


def sample(row: int) -> dict[str, Any]:
    """A row of `plain` and of the compressed ones; the image is IMAGE as it is."""
    return {
        "number": row - 2,
        "weight": row / 8,
        "caption": f"row {row} · größer",
        "about": {"row": row, "tags": ["a", "b"][: row % 3]},
        "pose": np.arange(4, dtype=np.float32) + row,
        "points": np.arange(2 * (row + 1), dtype=[np.int16, np.float64][row % 2]).reshape(row + 1, 2),
        "blob": bytes(range(row)),
    }


def other(row: int) -> dict[str, Any]:
    """A row of `others`, its images as pixels; those of `frames` and `film` are IMAGE, row + 1 times."""
    pixels = (np.arange(5 * 7 * 3).reshape(5, 7, 3) + row).astype(np.uint8)
    return {
        "tiny": 250 + row,
        "half": 0.5 * row,
        "big": 2**63 + row,
        "digits": -(10**15) - row,
        "fraction": 0.1 + row,
        "money": f"12345678901234567890.{row:02}",
        "tokens": np.arange(row + 1, dtype=np.int32),
        "matrix": np.full((2, 3), row, np.uint16),
        "drawing": pixels,
        "raw": pixels if row % 2 else pixels[..., 0],
        "drawings": [pixels] * row,
    }


def main() -> None:
    from decimal import Decimal

    # Ready-made datasets, which are not used here, import torchvision.
    for name in ("streaming.multimodal", "streaming.text", "streaming.vision"):
        sys.modules[name] = ModuleType(name)
    from PIL import Image
    from streaming import MDSWriter  # type: ignore[import-not-found]

    def write(name: str, rows: range, columns: dict[str, str], **options: Any) -> None:
        shutil.rmtree(HERE / name, ignore_errors=True)
        with MDSWriter(out=str(HERE / name), columns=columns, **options) as out:
            for row in rows:
                if columns is COLUMNS:
                    values = sample(row)
                    values["weight"] = np.float32(values["weight"])
                    values["image"] = Image.open(IMAGE)
                else:
                    values = other(row)
                    values["money"] = Decimal(values["money"])
                    values["drawing"] = Image.fromarray(values["drawing"])
                    values["raw"] = Image.fromarray(values["raw"])
                    values["frames"] = [Image.open(IMAGE)] * (row + 1)
                    values["drawings"] = [Image.fromarray(pixels) for pixels in values["drawings"]]
                    values["film"] = [IMAGE.read_bytes()] * (row + 1)
                out.write(values)

    Image.fromarray((np.arange(16 * 24 * 3).reshape(16, 24, 3) % 251).astype(np.uint8)).save(IMAGE, quality=60)
    write("plain/train", range(8), COLUMNS, size_limit=4096)
    write("plain/val", range(8, 10), COLUMNS)
    for compression in ("zstd", "gz", "snappy", "br", "bz2"):
        write(compression, range(4), COLUMNS, compression=compression)
    write("others", range(3), OTHERS, hashes=["sha1"])


if __name__ == "__main__":
    main()
