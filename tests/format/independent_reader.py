"""A second reader of the format: it follows FORMAT.md, imports nothing from Penstock, and verifies everything.

If it and Penstock disagree about a table, one of them or the specification is wrong.
"""

import base64
import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import Any

import pyarrow as pa

_BLOCK = 1 << 20
_NODE = ("id", "level", "length", "crc", "fragments", "rows", "live", "bytes", "first_id", "end_id")
_TEXT, _INT, _SUM = pa.string(), pa.int64(), pa.uint32()
_REFERENCE = pa.struct({"id": _TEXT, "length": _INT, "crc": _SUM})
_LINK = pa.struct({"container": _TEXT, "path": _TEXT, "offset": _INT, "length": _INT, "etag": _TEXT, "crc32c": _SUM})
_SIMPLE = dict.fromkeys(("bytes", "image", "mask", "audio", "video"), pa.binary())
_SIMPLE |= {"text": _TEXT, "json": _TEXT, "label": _INT, "linked": _LINK}
_STORED = {"bool": "uint8", "bfloat16": "uint16", "float8": "uint8", "complex64": "float32", "complex128": "float64"}
_STORED |= {"datetime64": "int64", "timedelta64": "int64"}
_TENSORS = ("tensor", "boxes", "points", "embedding")
_MANTISSA_BITS_AND_BIAS = {"e4m3fn": (3, 7), "e4m3fnuz": (3, 8), "e5m2": (2, 15), "e5m2fnuz": (2, 16)}


class DamagedError(Exception):
    """The table violates the specification."""


def check(condition: object, what: str) -> None:
    if not condition:
        raise DamagedError(what)


_CRC = list(range(256))
for _ in range(8):
    _CRC = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in _CRC]


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def unseal(data: bytes) -> dict[str, Any]:
    """Verify and parse sealed JSON."""
    body, tail = data[:-22], data[-22:]
    check(tail == b',"crc32c":"%08x"}\n' % crc32c(body), "the seal of a JSON object")
    return dict(json.loads(data))


@dataclass
class Version:
    """One version of a table."""

    commit: dict[str, Any]
    snapshot: dict[str, Any]
    columns: list[str] = field(default_factory=lambda: ["_row_id"])
    rows: list[list[Any]] = field(default_factory=list)
    fields: dict[int, dict[str, Any]] = field(default_factory=dict)
    fragments: list[dict[str, Any]] = field(default_factory=list)
    levels: set[int] = field(default_factory=set)
    files: set[str] = field(default_factory=set)


class IndependentReader:
    """Reads a table in a folder; `containers` maps the URIs of linked containers to folders."""

    def __init__(self, root: Path, containers: Mapping[str, Path]) -> None:
        self._root, self._containers = root, containers
        self.info = unseal(self._get("penstock.json"))
        check(self.info["penstock"] == 1 and not self.info["features"]["read"], "an unknown format")

    def newest(self) -> int:
        """Exponential search from the hint, then binary search."""
        try:
            known = unseal(self._get(f"log/{self.info['main']}/HINT"))["version"]
        except (OSError, DamagedError):
            known = 0
        known, step = (known if self._commit(known).exists() else 0), 1
        while self._commit(known + step).exists():
            known, step = known + step, step * 2
        missing = known + step
        while missing - known > 1:
            middle = (known + missing) // 2
            known, missing = (middle, missing) if self._commit(middle).exists() else (known, middle)
        return int(known)

    def read(self, version: int) -> Version:
        """All rows of a version."""
        commit = unseal(self._commit(version).read_bytes())
        check((commit["branch"], commit["version"]) == (self.info["main"], version), "a commit under the wrong key")
        ref = commit["snapshot"]
        snapshot = json.loads(self._checked(f"snapshots/{ref['id']}", ref["length"], ref["crc"]))
        check(not snapshot["features"]["read"], "unknown features")
        found = Version(commit, snapshot)
        statistics = iter(snapshot["manifests"].get("statistics", []))
        for node in zip(*(snapshot["manifests"][name] for name in _NODE), strict=True):
            known = [[int(id, 16), *bounds] for id, *bounds in next(statistics, [])]
            bounds = [dict(zip(("field", "nulls", "low", "high"), bound, strict=True)) for bound in known]
            self._walk({**dict(zip(_NODE, node, strict=True)), "statistics": bounds}, found)
        found.fields = {int(described["id"], 16): described for described in snapshot["schema"]}
        found.columns += [described["name"] for described in snapshot["schema"] if not described.get("dropped")]
        for fragment in found.fragments:
            found.rows += self._rows(fragment, found)
        check(len(found.rows) == commit["rows"], "the number of rows")
        return found

    def _walk(self, node: Mapping[str, Any], found: Version) -> None:
        found.levels.add(node["level"])
        data = self._checked(f"manifests/{node['id']}.arrow", node["length"], node["crc"])
        children = pa.ipc.open_file(pa.py_buffer(data)).read_all().to_pylist()
        before = len(found.fragments)
        if node["level"]:
            for child in children:
                check(child["level"] < node["level"], "a node that is not below its parent")
                self._walk(child, found)
        else:
            found.fragments += children
        mine = found.fragments[before:]
        ids = [run for f in mine for run in f["row_ids"]]
        sizes = [part["length"] for f in mine for file in f["files"] for part in (file, *file["blobs"])]
        sums = [len(mine), sum(f["rows"] for f in mine), sum(f["live"] for f in mine), sum(sizes)]
        sums += [min(run["start"] for run in ids), max(run["end"] for run in ids)]
        check(sums == [node[name] for name in _NODE[4:]], f"the totals of manifest {node['id']}")
        for bound in node.get("statistics") or []:
            for known in [
                each for f in mine if f["live"] for each in f["statistics"] if each["field"] == bound["field"]
            ]:
                values = [json.loads(known[name]) for name in ("low", "high") if known[name] is not None]
                self._check_bounds(bound, values)

    def _rows(self, fragment: Mapping[str, Any], found: Version) -> list[list[Any]]:
        count, deleted = fragment["rows"], fragment["deleted"]
        ids = [id for run in fragment["row_ids"] for id in range(run["start"], run["end"])]
        live = [row for row in range(count) if deleted is None or not deleted[row >> 3] >> (row & 7) & 1]
        check(len(ids) == count and len(live) == fragment["live"] and count > 0, "the rows of a fragment")
        columns: dict[int, list[Any]] = {}
        for file in sorted(fragment["files"], key=lambda file: file["row_start"]):
            found.files.add(f"data/{file['id']}.arrow")
            for id, values in self._file(file, found).items():
                check(len(columns.setdefault(id, [])) == file["row_start"], "the files of a field leave a gap")
                columns[id] += values
        for id, described in found.fields.items():
            if id not in columns:
                columns[id] = [self._fill(described, found)] * count
            check(len(columns[id]) == count, "the files of a field do not cover the fragment")
            if not described.get("nullable") and not described.get("dropped"):
                check(all(columns[id][row] is not None for row in live), "null in a field that is not nullable")
        for bound in fragment["statistics"]:
            self._check_bounds(bound, [columns[bound["field"]][row] for row in live])
        selected = [id for id, described in found.fields.items() if not described.get("dropped")]
        return [[ids[row], *(columns[id][row] for id in selected)] for row in live]

    def _file(self, file: Mapping[str, Any], found: Version) -> dict[int, list[Any]]:
        data, at = self._get(f"data/{file['id']}.arrow"), file["page_offsets"]
        check(len(data) == file["length"], "the length of a data file")
        check(crc32c(data[: at[0]] + data[at[-1] :]) == file["frame_crc"], "the frame of a data file")
        kinds = [found.fields[id]["type"] if id > 0 else None for id in file["fields"]]
        types = [_REFERENCE if kind is None else arrow_type(kind) for kind in kinds]
        check(pa.ipc.open_file(pa.py_buffer(data)).schema.types == types, "the types of a data file")
        schema = pa.schema([(str(number), kind) for number, kind in enumerate(types)])
        columns: dict[int, list[Any]] = {id: [] for id in file["fields"]}
        for page, (start, end) in enumerate(pairwise(at)):
            check(crc32c(data[start:end]) == file["page_crcs"][page], f"page {page}")
            batch = pa.ipc.read_record_batch(pa.py_buffer(data[start:end]), schema)
            check(len(batch) == file["page_rows"][page], f"the rows of page {page}")
            for number, id in enumerate(file["fields"]):
                array, kind = batch.column(number), kinds[number]
                columns[id] += array.to_pylist() if kind is None else self._values(kind, array, found)
                if (values_at := file["value_starts"][page * len(kinds) + number]) >= 0:
                    stored = array.storage.values if isinstance(array, pa.ExtensionArray) else array
                    raw = data[start + values_at :][: stored.nbytes]
                    check(stored.buffers()[1].to_pybytes().startswith(raw), f"where the values of page {page} start")
        check(sum(file["page_rows"]) == file["rows"], "the rows of a file")
        for bounds in file.get("bounds") or []:
            ends = [0, *accumulate(file["page_rows"])]
            for page, (first, end) in enumerate(pairwise(ends)):
                bound = {name: bounds[name][page] for name in ("nulls", "low", "high")}
                self._check_bounds(bound, columns[bounds["field"]][first:end])
                check(columns[bounds["field"]][first:end].count(None) == bound["nulls"], "the nulls of a page")
        blobs = []
        for id in [id for id in columns if id < 0]:
            for row, reference in enumerate(columns.pop(id)):
                if reference is not None:
                    check(columns[-id][row] is None, "a row with a value and a blob")
                    columns[-id][row] = self._blob(reference, found)
                    blobs.append((reference["id"], reference["length"]))
        check(sorted(blobs) == sorted((b["id"], b["length"]) for b in file["blobs"]), "the blobs of a file")
        return columns

    def _fill(self, described: Mapping[str, Any], found: Version) -> Any:
        if "fill" not in described:
            return None
        schema = pa.schema([("fill", arrow_type(described["type"]))])
        batch = pa.ipc.read_record_batch(pa.py_buffer(base64.b64decode(described["fill"])), schema)
        return self._values(described["type"], batch.column(0), found)[0]

    def _blob(self, reference: Mapping[str, Any], found: Version) -> bytes:
        length, data = reference["length"], self._get(f"blobs/{reference['id']}")
        found.files.add(f"blobs/{reference['id']}")
        check(crc32c(data[length:]) == reference["crc"], "the checksums of a blob")
        sums = [crc32c(data[start : min(start + _BLOCK, length)]) for start in range(0, length, _BLOCK)]
        check(data[length:] == struct.pack(f"<{len(sums)}I", *sums), "a block of a blob")
        return data[:length]

    def _values(self, kind: Mapping[str, Any], array: pa.Array, found: Version) -> list[Any]:
        """Python values of an array of a kind; None for nulls."""
        name, valid = kind["kind"], array.is_valid().to_pylist()
        values: list[Any] = array.to_pylist() if name in _SIMPLE else []
        if name in _TENSORS:
            values = _tensors(kind, array)
        elif name == "struct":
            children = {key: self._values(of, array.field(n), found) for n, (key, of) in enumerate(kind["fields"])}
            values = [{key: child[n] for key, child in children.items()} for n in range(len(array))]
        elif name == "list":
            items = self._values(kind["of"], array.values, found)
            values = [items[start:end] for start, end in pairwise(array.offsets.to_pylist())]
        elif name == "json":
            values = [json.loads(text or "null") for text in values]
        elif name == "linked":
            values = [link and self._linked(link, found) for link in values]
        return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]

    def _linked(self, link: Mapping[str, Any], found: Version) -> bytes:
        folder = self._containers[found.snapshot["containers"][link["container"]]]
        value: bytes = (folder / link["path"]).read_bytes()[link["offset"] :][: link["length"]]
        check(len(value) == link["length"], "a linked object is too short")
        check(link["crc32c"] in (None, crc32c(value)), "a linked object has changed")
        return value

    def _check_bounds(self, bound: Mapping[str, Any], values: list[Any]) -> None:
        present = [value for value in values if value is not None]
        check(len(values) - len(present) <= bound["nulls"], "the number of nulls")
        low, high = (None if bound[name] is None else json.loads(bound[name]) for name in ("low", "high"))
        check(low is None or all(value >= low for value in present), "a lower bound")
        check(high is None or all(value <= high for value in present), "an upper bound")

    def _get(self, key: str) -> bytes:
        return (self._root / key).read_bytes()

    def _checked(self, key: str, length: int, crc: int) -> bytes:
        data = self._get(key)
        check(len(data) == length and crc32c(data) == crc, key)
        return data

    def _commit(self, version: int) -> Path:
        return self._root / f"log/{self.info['main']}/{version:020}.json"


def arrow_type(kind: Mapping[str, Any]) -> pa.DataType:
    """The Arrow type of a kind."""
    name = kind["kind"]
    if name == "list":
        return pa.list_(arrow_type(kind["of"]))
    if name == "struct":
        return pa.struct([(inner, arrow_type(of)) for inner, of in kind["fields"]])
    if name not in _TENSORS:
        check(name in _SIMPLE, f"an unknown kind: {name}")
        return _SIMPLE[name]
    family = re.split(r"[_\[]", kind["dtype"])[0]
    number, shape = getattr(pa, _STORED.get(family, family))(), kind.get("shape", [kind.get("length")])
    if None not in shape:
        shape = [*shape, 2] if kind["dtype"].startswith("complex") else shape
        return pa.fixed_shape_tensor(number, shape) if shape else number
    if len(shape) == 1:
        return pa.list_(number)
    return pa.struct([("data", pa.list_(number)), ("shape", pa.list_(pa.int32(), len(shape)))])


def _tensors(kind: Mapping[str, Any], array: pa.Array) -> list[Any]:
    shape, dtype = kind.get("shape", [kind.get("length")]), kind["dtype"]
    if None in shape and len(shape) > 1:
        rows = [None if row is None else (row["data"], row["shape"]) for row in array.to_pylist()]
    else:
        stored = (array.storage if isinstance(array, pa.ExtensionArray) else array).to_pylist()
        rows = [None if row is None else (row if isinstance(row, list) else [row], shape) for row in stored]
    return [None if row is None else _nested(list(_elements(dtype, row[0])), row[1]) for row in rows]


def _nested(flat: list[Any], shape: list[int | None]) -> Any:
    if len(shape) < 2:
        return flat if shape else flat[0]
    step = prod(length or 0 for length in shape[1:])
    return [_nested(flat[n * step : (n + 1) * step], shape[1:]) for n in range(shape[0] or 0)]


def _elements(dtype: str, stored: list[Any]) -> Iterator[Any]:
    """Logical values of stored values; times remain integers of their unit."""
    if dtype == "bool":
        return map(bool, stored)
    if dtype.startswith("complex"):
        return (complex(*pair) for pair in zip(stored[::2], stored[1::2], strict=True))
    if dtype == "bfloat16":
        return (struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in stored)
    if dtype.startswith("float8_"):
        return (_float8(bits, *_MANTISSA_BITS_AND_BIAS[dtype.removeprefix("float8_")]) for bits in stored)
    return iter(stored)


def _float8(bits: int, mantissa_bits: int, bias: int) -> float:
    """One value; infinities and NaN, which the formats encode in four ways, are not supported."""
    mantissa, exponent = bits & (1 << mantissa_bits) - 1, (bits & 0x7F) >> mantissa_bits
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    return (-1.0 if bits & 0x80 else 1.0) * fraction * 2.0 ** (max(exponent, 1) - bias)
