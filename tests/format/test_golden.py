"""Golden tables of released formats remain readable, and a reader written from FORMAT.md agrees with ours."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.errors import UnsupportedFormatError
from penstock.format.kinds import KINDS, Image
from tests.data.make_golden import EXPECTED, GOLDEN, LINKED, LINKS_URI, linked_objects, make, plain
from tests.format.independent_reader import DamagedError, IndependentReader, Version, crc32c, unseal

CONTAINERS = {LINKS_URI: LINKED.parent}
VERSIONS: dict[str, Any] = json.loads(EXPECTED.read_text(encoding="utf-8"))


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module", autouse=True)
def untouched() -> Iterator[None]:
    """Reading does not modify a table."""
    before = _content(GOLDEN)
    yield
    assert _content(GOLDEN) == before


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A table written by this version, and its expected content."""
    folder = tmp_path_factory.mktemp("fresh") / "table"
    return folder, make(folder)


def test_crc32c_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_the_example_in_the_specification_verifies() -> None:
    text = (Path(__file__).parents[2] / "FORMAT.md").read_text(encoding="utf-8")
    objects = [
        block.replace("\n", "") for block in re.findall(r"^```\n(\{.*?\})\n```$", text, re.DOTALL | re.MULTILINE)
    ]
    sealed = [unseal(f"{text}\n".encode()) for text in objects if '"crc32c"' in text]
    (snapshot,) = (text.encode() for text in objects if '"crc32c"' not in text)
    assert len(sealed) == 2
    (ref,) = (document["snapshot"] for document in sealed if "snapshot" in document)
    assert (len(snapshot), crc32c(snapshot)) == (ref["length"], ref["crc"])


def test_the_independent_reader_reads_the_golden_table(version: int) -> None:
    assert _independent(GOLDEN, version) == VERSIONS[str(version)]


def test_penstock_reads_the_golden_table(version: int) -> None:
    assert _penstock(GOLDEN, version) == VERSIONS[str(version)]


def test_a_new_table_has_the_expected_content(fresh: tuple[Path, dict[str, Any]], version: int) -> None:
    folder, expected = fresh
    assert expected == VERSIONS
    assert _independent(folder, version) == expected[str(version)]
    assert _penstock(folder, version) == expected[str(version)]


def test_a_reader_that_does_not_know_quarantine_lists_reads_the_table(tmp_path: Path) -> None:
    folder, newest = tmp_path / "table", max(map(int, VERSIONS))
    shutil.copytree(GOLDEN, folder)
    ds = penstock.load(folder)
    ds.quarantine(row_ids=ds[:1]["_row_id"][:], reason="bad")
    assert IndependentReader(folder, CONTAINERS).newest() == newest + 1
    assert _independent(folder, newest + 1) == _independent(GOLDEN, newest)


@pytest.mark.parametrize("hint", ["right", "missing", "old", "too high", "damaged"])
def test_the_newest_version_is_found_with_any_hint(fresh: tuple[Path, dict[str, Any]], hint: str) -> None:
    folder, _ = fresh
    reader = IndependentReader(folder, CONTAINERS)
    file = folder / "log" / reader.info["main"] / "HINT"
    right = file.read_bytes()
    other = {"old": 2, "too high": 99}.get(hint)
    try:
        if hint == "missing":
            file.unlink()
        elif hint == "damaged":
            file.write_bytes(right.replace(b"version", b"varsion"))
        elif other is not None:
            body = f'{{"version":{other}'.encode()
            file.write_bytes(body + b',"crc32c":"%08x"}\n' % crc32c(body))
        assert reader.newest() == max(map(int, VERSIONS))
        assert penstock.load(folder).version == f"main@{max(map(int, VERSIONS))}"
    finally:
        file.write_bytes(right)


def test_the_golden_table_covers_the_format() -> None:
    """Otherwise the tests above would prove less than they seem to."""
    read = IndependentReader(GOLDEN, CONTAINERS).read(max(map(int, VERSIONS)))
    files = [file for fragment in read.fragments for file in fragment["files"]]
    assert read.levels == {0, 1}
    assert any(fragment["live"] == 0 for fragment in read.fragments)
    assert any(0 < fragment["live"] < fragment["rows"] for fragment in read.fragments)
    assert any(len(file["page_rows"]) > 1 for file in files)
    assert any(file["row_start"] for file in files)
    assert any(file["changed"] for file in files)
    assert any(id < 0 for file in files for id in file["fields"])
    assert {start % 8 for file in files for start in file["value_starts"] if start >= 0} == {0}
    assert any(file["blobs"] for file in files)
    assert any(
        bound["low"] is None and bound["nulls"] < fragment["rows"]  # because of a NaN
        for fragment in read.fragments
        for bound in fragment["statistics"]
    )
    assert any(field.get("dropped") for field in read.snapshot["schema"])
    assert any("fill" in field for field in read.snapshot["schema"])
    assert {field["type"]["kind"] for field in read.snapshot["schema"]} == set(KINDS)


def test_every_data_file_opens_in_pyarrow() -> None:
    files = sorted(GOLDEN.glob("*/*.arrow"))
    assert files
    for file in files:
        with pa.OSFile(str(file)) as source:
            assert pa.ipc.open_file(source).read_all().num_rows > 0


def test_unknown_members_are_ignored_and_unknown_features_rejected(
    fresh: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    newest = max(map(int, VERSIONS))
    later = _later_table(fresh[0], tmp_path / "later", {"read": [], "write": ["unheard-of"]})
    assert _independent(later, newest) == VERSIONS[str(newest)]
    assert _penstock(later, newest) == VERSIONS[str(newest)]
    with pytest.raises(UnsupportedFormatError, match="unheard-of"):
        penstock.load(later).delete(positions=[0])

    unreadable = _later_table(fresh[0], tmp_path / "unreadable", {"read": ["unheard-of"], "write": []})
    with pytest.raises(DamagedError, match="features"):
        _independent(unreadable, newest)
    with pytest.raises(UnsupportedFormatError, match="unheard-of"):
        _penstock(unreadable, newest)


@pytest.mark.parametrize("prefix", ["log", "snapshots", "manifests", "data", "blobs"])
def test_the_independent_reader_detects_a_flipped_bit(fresh: tuple[Path, dict[str, Any]], prefix: str) -> None:
    folder, _ = fresh
    newest = IndependentReader(folder, CONTAINERS).read(max(map(int, VERSIONS)))
    keys = {
        "log": f"log/{newest.commit['branch']}/{newest.commit['version']:020}.json",
        "snapshots": f"snapshots/{newest.commit['snapshot']['id']}",
        "manifests": f"manifests/{newest.snapshot['manifests']['id'][0]}.arrow",
        "data": min(key for key in newest.files if key.startswith("data/")),
        "blobs": min(key for key in newest.files if key.startswith("blobs/")),
    }
    file = folder / keys[prefix]
    right = file.read_bytes()
    wrong = bytearray(right)
    wrong[len(wrong) // 2] ^= 1
    try:
        file.write_bytes(wrong)
        with pytest.raises(DamagedError):
            IndependentReader(folder, CONTAINERS).read(newest.commit["version"])
    finally:
        file.write_bytes(right)


def _later_table(folder: Path, copy: Path, features: dict[str, list[str]]) -> Path:
    """A copy of a table whose last version has unknown members and features."""
    shutil.copytree(folder, copy)
    (log,) = (copy / "log").iterdir()
    last = max(log.glob("*.json"))
    commit = unseal(last.read_bytes())
    file = copy / "snapshots" / commit["snapshot"]["id"]
    snapshot = json.loads(file.read_bytes())
    snapshot |= {"features": features, "mood": "calm"}
    snapshot["manifests"]["colour"] = ["blue"] * len(snapshot["manifests"]["id"])
    for described in snapshot["schema"]:
        described["unit"] = "m"
        described["type"]["hint"] = 1
    body = json.dumps(snapshot, ensure_ascii=False).encode()
    file.write_bytes(body)
    commit["snapshot"] |= {"length": len(body), "crc": crc32c(body), "mood": "calm"}
    commit["parent"]["mood"] = commit["mood"] = "calm"
    del commit["crc32c"]
    sealed = json.dumps(commit).encode()[:-1]
    last.write_bytes(sealed + b',"crc32c":"%08x"}\n' % crc32c(sealed))
    return copy


def _independent(folder: Path, version: int) -> dict[str, Any]:
    read: Version = IndependentReader(folder, CONTAINERS).read(version)
    return {"columns": read.columns, "rows": [[plain(value) for value in row] for row in read.rows]}


def _penstock(folder: Path, version: int) -> dict[str, Any]:
    linked_objects()
    table = penstock.load(folder, version=version, links=[LINKS_URI])
    names = ["_row_id", *table.schema.names]
    images = [field.name for field in table.schema if isinstance(field.kind, Image)]
    encoded = {name: table.select(name).to_arrow()[name].to_pylist() for name in images}
    rows = []
    for at, row in enumerate(table.select(names)):
        row |= {name: encoded[name][at] for name in images}
        rows.append([plain(_python(row[name])) for name in names])
    return {"columns": names, "rows": rows}


def _python(value: Any) -> Any:
    """Convert numpy values to the Python values of the model."""
    if isinstance(value, dict):
        return {name: _python(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_python(item) for item in value]
    if not isinstance(value, np.ndarray | np.generic):
        return value
    if value.dtype.kind in "Mm":
        return value.astype(np.int64).tolist()
    if value.dtype.kind in "iufcb":
        return value.tolist()
    return value.astype(np.float64).tolist()


def _content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
