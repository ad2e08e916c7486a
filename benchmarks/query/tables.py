"""The rows as a table of ours and as one of Lance, each written once under one folder, and their indexes."""

import json
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import penstock
from benchmarks.loader.tables import BUCKET
from benchmarks.query.data import DIMENSIONS, SCHEMA, batches
from benchmarks.query.process import Peer
from penstock.storage import Store

PLAIN = "plain"
"""The version without an index."""
_TABLE_SCHEMA = {
    "id": "int64",
    "ts": "datetime64[us]",
    "label": "int32",
    "camera": "text",
    "reward": "float32",
    "caption": "text",
    "emb": penstock.Tensor("float32", (DIMENSIONS,)),
}
_INDEXES: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "scalar": [("label", "scalar", {}), ("camera", "scalar", {})],
    "bitmap": [],
    "vector": [("emb", "vector", {"metric": "cosine"})],
    "text": [("caption", "text", {})],
}
"""What each name builds in our table; `bitmap` is Lance's alone, another scalar index of the labels."""
_LANCE_PARTITIONS = 1024
"""For a million rows."""


@dataclass(frozen=True)
class Tables:
    """Both tables."""

    folder: Path
    rows: int
    peer: Peer

    @property
    def ours(self) -> Path:
        return self.folder / BUCKET / f"query-{self.rows}"

    @property
    def lance(self) -> str:
        return str(self.folder / f"query-lance-{self.rows}")

    def write(self) -> None:
        """Write both, if they are not there."""
        if self._record.exists():
            return
        for path in (self.ours, Path(self.lance)):
            shutil.rmtree(path, ignore_errors=True)
        self.ours.parent.mkdir(parents=True, exist_ok=True)
        print(f"  writing {self.rows:,} rows", file=sys.stderr)
        version = write_table(self.ours, batches(self.rows))
        found = self.peer.ask("write", folder=self.lance, rows=self.rows)
        versions = {PLAIN: {"ours": version, "lance": 1}}
        self._keep({"versions": versions, "built": {}, "peers": found["versions"]})

    def build(self, *names: str) -> None:
        """Build indexes that are not there, one after the other: ours, then Lance's."""
        for name in names:
            record = self._read()
            if name in record["built"]:
                continue
            print(f"  building {name}", file=sys.stderr)
            start, cpu = time.perf_counter(), time.process_time()
            ds = penstock.load(self.ours)
            for column, kind, options in _INDEXES[name]:
                ds.create_index(column, kind, **options)
            ours = {"wall_s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}
            partitions = max(4, round(_LANCE_PARTITIONS * self.rows / 1e6))
            lance = self.peer.ask("build", folder=self.lance, kind=name, partitions=partitions)
            record["versions"][name] = {"ours": _number(ds.version), "lance": lance.pop("version")}
            date = datetime.now(UTC).isoformat(timespec="seconds")
            record["built"][name] = {"ours": ours, "lance": lance, "date": date}
            self._keep(record)

    def built(self, name: str) -> dict[str, Any]:
        """Seconds that an index took when it was built."""
        found: dict[str, Any] = self._read()["built"][name]
        return found

    def open(self, name: str = PLAIN, store: Store | None = None) -> penstock.Dataset:
        """Our table, with an index and all that were built before it; by way of another store, if one is given."""
        return penstock.load(store or self.ours, version=self._read()["versions"][name]["ours"])

    def lance_version(self, name: str = PLAIN) -> int:
        found: int = self._read()["versions"][name]["lance"]
        return found

    def newest(self) -> str:
        """The version that has all indexes."""
        versions = self._read()["versions"]
        return max(versions, key=lambda name: versions[name]["lance"])

    def peers(self) -> dict[str, str]:
        """The versions of the peers that wrote the other table."""
        found: dict[str, str] = self._read()["peers"]
        return found

    @property
    def _record(self) -> Path:
        return self.folder / f"query-{self.rows}.json"

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._record.read_text())
        return found

    def _keep(self, record: dict[str, Any]) -> None:
        self._record.write_text(json.dumps(record, indent=1))


def write_table(uri: Path, data: Any) -> int:
    """A table of Arrow data; returns the number of its version."""
    ds = penstock.create(uri, _TABLE_SCHEMA)
    ds.append(data)
    return _number(ds.commit())


def value_bytes(ds: penstock.Dataset) -> int:
    """The bytes of all values."""
    fixed = sum(kind.bit_width // 8 for kind in SCHEMA.types if pa.types.is_primitive(kind)) + DIMENSIONS * 4
    text = ds.select(["camera", "caption"]).to_arrow()
    return fixed * len(ds) + sum(pc.sum(pc.binary_length(column)).as_py() for column in text.columns)


def _number(version: str) -> int:
    """Of `main@7`."""
    return int(version.rpartition("@")[2])
