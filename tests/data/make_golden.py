"""Makes the golden table: `python tests/data/make_golden.py` writes it anew; a released one is never made again.

The values come from a model in plain Python, which goes through the same operations as the table. `expected.json` is
written from that model alone, so a reader that agrees with it has read what was meant and not what was written.
"""

import base64
import hashlib
import json
import math
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import penstock
from penstock import (
    Audio,
    Boxes,
    Bytes,
    Column,
    Embedding,
    Image,
    Json,
    Label,
    Link,
    Linked,
    List,
    Mask,
    Points,
    Struct,
    Tensor,
    Text,
    Video,
)
from penstock.storage import open_store

HERE = Path(__file__).parent
GOLDEN = HERE / "golden-v1"
EXPECTED = HERE / "golden-v1.expected.json"
LINKED = HERE / "golden-links" / "speech.bin"
LINKS_URI = "memory://golden-links"
"""In memory, because a folder's URI and etags would differ from one checkout to the next."""

FIRST_CLAIM = 1 << 16
"""How many row ids a writer claims at first."""

NAN_ROW = 6
"""The row that has a NaN, so that its fragment has no bounds."""
CLASSES = ("cat", "dog", "owl")
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
SCHEMA: dict[str, Any] = {
    "number": "int64",
    "small": "int8",
    "large": "uint64",
    "half": Tensor("float16", (1,)),
    "single": Column(Tensor("float32"), nullable=True),
    "double": "float64",
    "flag": "bool",
    "flags": Tensor("bool", (3,)),
    "wave": "complex64",
    "waves": Tensor("complex128", (2, 2)),
    "brain": Tensor("bfloat16", (3,)),
    "tiny": Struct({name: Tensor(name) for name in FLOAT8}),
    "when": Column(Tensor("datetime64[us]"), nullable=True),
    "span": "timedelta64[ms]",
    "vector": Column(Tensor("float32", (4,)), page_bytes=32, file_bytes=64),
    "grid": Column(Tensor("int16", (2, 3)), nullable=True),
    "tokens": Column(Tensor("int32", (None,)), nullable=True),
    "maps": Column(Tensor("uint8", (None, None, 2)), nullable=True),
    "tones": Tensor("complex64", (None,)),
    "label": Label(CLASSES),
    "text": Column(Text(), nullable=True, codec="zstd:5"),
    "facts": Column(Json(), nullable=True),
    "raw": Column(Bytes(), nullable=True),
    "picture": Image("png"),
    "outline": Column(Mask("png"), nullable=True),
    "sound": Column(Audio("wav"), nullable=True),
    "film": Column(Video(), nullable=True),
    "boxes": Boxes(),
    "points": Points("float64", (None, 2)),
    "embedding": Embedding(4, "float16"),
    "pair": Column(
        Struct({"x": Tensor("float32"), "name": Text(), "path": List(Tensor("int32", (2,)))}), nullable=True
    ),
    "words": Column(List(Text()), nullable=True),
    "speech": Column(Linked(Bytes()), nullable=True),
    "packed": Column(Tensor("int32", (8,)), codec="zstd"),
    "squeezed": Column(Text(), codec="lz4"),
}


def make_row(n: int) -> dict[str, Any]:
    """Row number `n`, whose values say which row they belong to."""
    row: dict[str, Any] = {
        "number": n * 1_000_003,
        "small": n - 60,
        "large": 2**64 - 1 - n,
        "half": [n / 2],
        "single": math.nan if n == NAN_ROW else n / 4,
        "double": n / 10,
        "flag": n % 2 == 1,
        "flags": [n % 2 == 0, n % 3 == 0, True],
        "wave": complex(n, -n / 2),
        "waves": [[complex(n, 1), complex(0, n)], [complex(-n, 0), 1j]],
        "brain": [n / 2, -1.0, 0.0],
        "tiny": dict(zip(FLOAT8, (n / 8, -n / 4, n % 8 * 2.0, n % 8 / -2), strict=True)),
        "when": 1_700_000_000_000_000 + n,
        "span": -1500 * n,
        "vector": [n, n + 0.25, n + 0.5, n + 0.75],
        "grid": [[n, n + 1, n + 2], [-n, -n - 1, -n - 2]],
        "tokens": list(range(n % 4)),
        "maps": [[[n, x] for x in range(3)] for _ in range(1 + n % 3)],
        "tones": [complex(n, tone) for tone in range(n % 3)],
        "label": n % len(CLASSES),
        "text": f"row {n} · ряд · 行",
        "facts": {"n": n, "nested": [None, True, {"é": 0.5}]},
        "raw": bytes([n, 0, 255]),
        "picture": _png(2, 3, bytes((n + at) % 256 for at in range(18))),
        "outline": _png(1, 2, bytes([n] * 6)),
        "sound": b"RIFF\x04\0\0\0WAVE" + bytes([n]),
        "film": bytes((n * at) % 251 for at in range(3000 if n % 4 == 1 else 30)),
        "boxes": [[n, x, n + 1, x + 1] for x in range(n % 3)],
        "points": [[n / 2, x / 2] for x in range(1 + n % 2)],
        "embedding": [n / 2, 0.0, 1.0, -1.0],
        "pair": {"x": n / 2, "name": f"pair {n}", "path": [[n, step] for step in range(n % 3)]},
        "words": [f"word {word}" if word else None for word in range(n % 3)],
        "speech": Link(f"{LINKS_URI}/{LINKED.name}", offset=n * 4, length=n % 5),
        "packed": [n] * 8,
        "squeezed": "again and " * 5 + str(n),
    }
    for name, column in SCHEMA.items():
        if isinstance(column, Column) and column.nullable and (n + zlib.crc32(name.encode())) % 4 == 0:
            row[name] = None
    return row


def make_later_row(n: int) -> dict[str, Any]:
    """Row number `n` after the columns were changed."""
    row = make_row(n)
    changed = {"renamed": row["small"], "twice": row["number"] * 2, "double": [n, -n], "filled": str(n), "empty": n / 2}
    return row | changed


class Twin:
    """A table and the model of it; every operation is done to both."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.table = penstock.create(place, SCHEMA, links=[LINKS_URI], message="made")
        self.columns = list(SCHEMA)
        self.rows: list[dict[str, Any]] = []
        self.versions: dict[str, Any] = {}
        self._next_id = 0
        self._made = 0
        self._claims = 1
        self._record()

    def append(self, count: int, *, without: Mapping[str, Any]) -> None:
        """Add rows as one fragment; `without` has columns that are not given, and what is then read instead."""
        given = []
        for _ in range(count):
            made = make_later_row(self._made) if "twice" in self.columns else make_row(self._made)
            row = {name: without[name] if name in without else made[name] for name in self.columns}
            given.append({name: _given(name, value) for name, value in row.items() if name not in without})
            self.rows.append({"_row_id": self._next_id, **row})
            self._made += 1
            self._next_id += 1
        self.table.append(given)

    def delete(self, positions: Sequence[int]) -> None:
        self.table.delete(positions=positions)
        self.rows = [row for at, row in enumerate(self.rows) if at not in positions]

    def update(self, positions: Sequence[int], values: Mapping[str, Sequence[Any]]) -> None:
        self.table.update(
            positions=positions, data={name: [_given(name, v) for v in column] for name, column in values.items()}
        )
        for name, column in values.items():
            for at, value in zip(positions, column, strict=True):
                self.rows[at][name] = value

    def rename(self, old: str, new: str) -> None:
        self.table.rename_column(old, new)
        self.columns[self.columns.index(old)] = new
        self.rows = [{new if name == old else name: value for name, value in row.items()} for row in self.rows]

    def drop(self, name: str) -> None:
        self.table.drop_column(name)
        self.columns.remove(name)
        for row in self.rows:
            del row[name]

    def add(self, name: str, value: Callable[[dict[str, Any]], Any], **how: Any) -> None:
        self.table.add_column(name, **how)
        self.columns.append(name)
        for row in self.rows:
            row[name] = value(row)

    def commit(self, message: str) -> None:
        self.table.commit(message)
        self._record()

    def reload(self) -> None:
        """Go on as another writer, which claims row ids of its own."""
        self.table = penstock.load(self.place, links=[LINKS_URI])
        self._next_id = self._claims * FIRST_CLAIM
        self._claims += 1

    def _record(self) -> None:
        rows = [[plain(row[name]) for name in ("_row_id", *self.columns)] for row in self.rows]
        self.versions[self.table.version.partition("@")[2]] = {"columns": ["_row_id", *self.columns], "rows": rows}


def make(place: Path) -> dict[str, Any]:
    """Make the table; returns what is in each of its versions."""
    with small_limits():
        linked_objects()
        twin = Twin(place)
        twin.append(7, without={})
        twin.commit("one fragment")
        twin.append(3, without={"text": None, "film": None})
        twin.append(2, without={})
        twin.commit("two fragments")
        twin.delete([0, 4, 8])
        twin.update([1, 2], {"number": [-1, -2], "vector": [[9.5] * 4, [8.5] * 4]})
        twin.update([2, 7], {"vector": [[7.5] * 4, [6.5] * 4]})
        twin.update([1, 3], {"film": [b"no longer a blob", bytes(2000)], "text": [None, "changed"]})
        twin.commit("deleted and updated")
        twin.rename("small", "renamed")
        twin.drop("double")
        twin.drop("text")
        twin.commit("renamed and dropped")
        twin.add("double", lambda _: [1, 2], column=Tensor("int8", (2,)), fill=[1, 2])
        twin.add("filled", lambda _: "of old", column=Column(Text(), nullable=True, codec="zstd"), fill="of old")
        twin.add("empty", lambda _: None, column=Column(Tensor("float64"), nullable=True))
        twin.add("twice", lambda row: row["number"] * 2, compute=lambda batch: batch["number"] * 2, inputs=["number"])
        twin.commit("added")
        twin.reload()
        twin.append(2, without={"double": [1, 2], "filled": "of old", "empty": None})
        twin.append(1, without={})
        twin.append(1, without={})
        twin.commit("another writer, and a deeper tree")
        twin.update([0, 1, 10], {"filled": ["new", None, "newer"], "vector": [[0.5] * 4, [0.25] * 4, [0.125] * 4]})
        twin.delete([7, 8])
        twin.commit("filled values updated, a fragment emptied")
        return twin.versions


@contextmanager
def small_limits() -> Iterator[None]:
    """Blobs from 1 KiB, and a tree of two by two: what takes gigabytes otherwise fits a small table."""
    with ExitStack() as stack:
        stack.enter_context(patch("penstock.table._encode.MAX_INLINE_BYTES", 1024))
        stack.enter_context(patch("penstock.history._tree.LEAF_FRAGMENTS", 2))
        stack.enter_context(patch("penstock.history._tree.FANOUT", 2))
        yield


def linked_objects() -> None:
    """Put the linked object where the links of the golden table point; in a new process its etag is always the same."""
    store = open_store(LINKS_URI)
    if not list(store.list()):
        store.put(LINKED.name, LINKED.read_bytes())


def plain(value: Any) -> Any:
    """A value as JSON says it: complex numbers as pairs, bytes as base64 or, if long, their digest."""
    if isinstance(value, Link):
        assert value.length is not None
        return plain(LINKED.read_bytes()[value.offset : value.offset + value.length])
    if isinstance(value, bytes):
        if len(value) > 64:
            return {"length": len(value), "sha256": hashlib.sha256(value).hexdigest()}
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and math.isnan(value):
        return "NaN"  # which equals itself
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def _given(name: str, value: Any) -> Any:
    """A value as a user would pass it."""
    if value is None:
        return None
    if name == "boxes":
        return np.array(value, np.float32).reshape(-1, 4)
    if name in ("when", "span"):
        return np.datetime64(value, "us") if name == "when" else np.timedelta64(value, "ms")
    return CLASSES[value] if name == "label" else value


def _png(height: int, width: int, pixels: bytes) -> bytes:
    """An RGB picture, written by hand so that it is the same with every version of every library."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    lines = b"".join(b"\0" + pixels[at * width * 3 : (at + 1) * width * 3] for at in range(height))
    stored = b"\x78\x01\x01" + struct.pack("<HH", len(lines), len(lines) ^ 0xFFFF) + lines
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = stored + struct.pack(">I", zlib.adler32(lines))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def main() -> None:
    if GOLDEN.exists() and "--again" not in sys.argv:
        sys.exit(f"{GOLDEN} exists: it is what old versions wrote. With --again it is replaced")
    shutil.rmtree(GOLDEN, ignore_errors=True)
    LINKED.parent.mkdir(exist_ok=True)
    LINKED.write_bytes(bytes(range(256)))
    expected = make(GOLDEN)
    lines = [f"{json.dumps(version)}: {json.dumps(rows, ensure_ascii=False)}" for version, rows in expected.items()]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
