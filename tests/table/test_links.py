"""Links: values in external objects, read only if the reader allows it; changed sources are detected."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Bytes, Column, Dataset, Image, Json, Link, Linked, Text
from penstock.errors import InvalidInputError, LinkNotAllowedError, SampleError, SourceChangedError, StorageError
from penstock.format import crc32c
from penstock.format.kinds import LinkTarget
from penstock.storage import open_store
from penstock.table import LinkContainers
from penstock.testing import CountingStore, Fault, FaultyStore
from tests.servers import StoreLocation, new_location

KINDS = ["folder", "s3", "gs", "az", "memory"]


def container(place: StoreLocation) -> str:
    scheme, separator, rest = place.uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else place.uri


def linked(values: list[Link | None], links: Any = True, kind: Any = None) -> Dataset:
    ds = penstock.create("memory://", {"x": Column(Linked(kind or Bytes()), nullable=True)}, links=links)
    ds.append({"x": values})
    ds.commit()
    return ds


@pytest.mark.parametrize("kind", KINDS)
def test_whole_objects_and_ranges_are_read_in_place(kind: str) -> None:
    source = new_location(kind)
    store = source.open()
    store.put("folder/a.bin", b"0123456789")
    store.put("b ü%20.bin", b"abc")
    table = new_location("memory")
    allowed = {container(source): source.options}
    ds = penstock.create(table.uri, {"n": int, "x": Column(Linked(Bytes()), nullable=True)}, links=allowed)
    a, b = f"{source.uri}/folder/a.bin", f"{source.uri}/b ü%20.bin"
    ds.append(
        {
            "n": range(7),
            "x": [Link(a), Link(a, 2), Link(a, 2, 3), Link(a, 10), None, Link(b), Link(a, 0, 1, crc32c=crc32c(b"0"))],
        }
    )
    expected = [b"0123456789", b"23456789", b"234", b"", None, b"abc", b"0"]
    assert ds["x"][:] == expected
    ds.commit()
    again = penstock.load(table.uri, links=allowed)
    assert again["x"][:] == expected
    assert again[::-1]["x"][:] == expected[::-1]
    assert again.to_arrow()["x"].to_pylist() == expected
    assert [row["x"] for row in again] == expected
    assert again["x"].open(2).read() == b"234"
    assert penstock.verify(table.uri, links=allowed).damaged == []
    assert [item.key for item in table.open().list("blobs/")] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.put("a", b"9876543210"),
        lambda store: store.put("a", b"01"),
        lambda store: store.delete(["a"]),
    ],
    ids=["changed", "shortened", "deleted"],
)
def test_a_changed_source_is_named(kind: str, change: Callable[[Any], None]) -> None:
    source = new_location(kind)
    store = source.open()
    store.put("a", b"0123456789")
    store.put("b", b"still here")
    allowed = {container(source): source.options}
    ds = linked([Link(f"{source.uri}/a", 4, 3), Link(f"{source.uri}/b")], links=allowed)
    change(store)
    for read in (lambda: ds["x"][0], lambda: ds["x"][:], lambda: ds.to_arrow(), lambda: list(ds)):
        with pytest.raises(SourceChangedError, match="/a "):
            read()
    assert ds["x"][1] == b"still here"


def test_bytes_that_fail_their_checksum_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123")
    ds = linked([Link(str(tmp_path / "a"), 1, 2, crc32c=crc32c(b"xx"))])
    with pytest.raises(SourceChangedError, match=r"the linked bytes 1 to 3 of .*/a have changed"):
        ds["x"][0]


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 20)), flip=st.none() | st.integers(0, 19), jumps=st.lists(st.integers(0, 20)))
def test_an_opened_link_is_verified_when_it_was_read_to_its_end(
    tmp_path: Path, cuts: list[int], flip: int | None, jumps: list[int]
) -> None:
    """In any steps, and whatever ranges are read in between."""
    value = bytes(range(20))
    data = bytearray(b"before" + value + b"after")
    path = tmp_path / "a.bin"
    path.write_bytes(data)
    ds = linked([Link(str(path), 6, 20, crc32c=crc32c(value))])
    if flip is not None:  # with the same size and time, so that the etag stays
        at = path.stat()
        data[6 + flip] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    file = ds["x"].open(0)
    read, ends = b"", sorted({*cuts, 20} - {0})
    for n, end in enumerate(ends):
        for jump in jumps[n : n + 1]:
            file.seek(jump)
            file.read(3 if jump < 17 else 0)  # never to the end
        file.seek(len(read))
        if end == 20 and flip is not None:
            for _ in range(2):  # it does not pass when it is tried again
                file.seek(len(read))
                with pytest.raises(SourceChangedError, match=r"bytes 6 to 26 of .*a\.bin have changed"):
                    file.read(end - len(read))
            return
        read += file.read(end - len(read))
    assert read == value
    file.seek(5)
    assert file.read() == value[5:]


def test_a_link_of_no_bytes_and_a_missing_object_are_checked_when_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"abc")
    ds = linked([Link(str(path), 0, 0, crc32c=1), Link(str(path), 0, 0, crc32c=0), Link(str(path))])
    with pytest.raises(SourceChangedError):
        ds["x"].open(0)
    assert ds["x"].open(1).read() == b""
    file = ds["x"].open(2)
    path.unlink()
    with pytest.raises(SourceChangedError, match="missing"):
        file.read()


def test_a_storage_error_is_not_reported_as_a_changed_source() -> None:
    store = open_store("memory://")
    store.put("a", b"0123")
    containers = LinkContainers(True, {"c": "memory://somewhere"})
    containers._stores["c"] = FaultyStore(store, Fault("fail_before", "get", "a"))
    target = LinkTarget("c", "a", 0, 4, None, None)
    with pytest.raises(StorageError, match="injected"):
        containers.read([target])
    assert containers.read([target]) == [b"0123"]


def test_the_error_names_the_container_to_allow(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123")
    table = str(tmp_path / "table")
    ds = penstock.create(table, {"n": int, "x": Linked(Bytes())}, links=True)
    ds.append({"n": [7], "x": [Link(str(tmp_path / "a"))]})
    ds.commit()
    ds = penstock.load(table)
    with pytest.raises(
        LinkNotAllowedError, match=rf"links into file://{tmp_path}, .*open it with links=\['file://{tmp_path}'\]"
    ):
        ds["x"][0]
    assert ds["n"][0] == 7
    assert list(ds.select("n")) == [{"n": 7}]


def test_a_writer_must_allow_containers_whose_lengths_it_reads(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123")
    ds = penstock.create("memory://", {"x": Linked(Bytes())})
    with pytest.raises(LinkNotAllowedError, match="open it with links="):
        ds.append({"x": [Link(str(tmp_path / "a"))]})
    assert ds.append({"x": [Link(str(tmp_path / "a"), 0, 4, etag="known")]}) == 1


@pytest.mark.parametrize(
    ("allowed", "ok"),
    [
        (lambda _: True, True),
        (lambda root: [f"file://{root}/data"], True),
        (lambda root: [f"file://{root}/data/"], True),
        (lambda root: [f"file://{root}"], True),
        (lambda root: (uri for uri in [f"file://{root}"]), True),
        (lambda root: {f"file://{root}/data": None}, True),
        (lambda root: {f"file://{root}/data": {}}, True),
        (lambda root: [str(root / "data")], True),
        (lambda root: [root / "data"], True),
        (lambda root: str(root), True),
        (lambda root: [os.path.relpath(root)], True),
        (lambda _: ["file:///"], True),
        (lambda _: False, False),
        (lambda _: [], False),
        (lambda _: {}, False),
        (lambda root: [f"file://{root}/dat"], False),
        (lambda root: [f"file://{root}/data/inner"], False),
        (lambda _: ["s3://bucket"], False),
        (lambda root: f"{root}/other", False),
    ],
)
def test_containers_are_allowed_by_uri_prefix(tmp_path: Path, allowed: Callable[[Path], Any], ok: bool) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_bytes(b"0123")
    table = str(tmp_path / "table")
    ds = penstock.create(table, {"x": Linked(Bytes())}, links=True)
    ds.append({"x": [Link(str(tmp_path / "data/a"))]})
    ds.commit()
    ds = penstock.load(table, links=allowed(tmp_path))
    if ok:
        assert ds["x"][0] == b"0123"
        assert ds["x"][:] == [b"0123"]
    else:
        with pytest.raises(LinkNotAllowedError):
            ds["x"][0]


@pytest.mark.parametrize("dotted", ["{root}/data/../secret", "{root}/data/%2e%2e/secret", "{root}/data/./../secret/"])
def test_path_traversal_cannot_leave_an_allowed_container(tmp_path: Path, dotted: str) -> None:
    """A table from an untrusted writer may declare any container."""
    for folder, text in (("data", b"open"), ("secret", b"secret")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_bytes(text)
    containers = LinkContainers([f"file://{tmp_path}/data"], {"c": "file://" + dotted.format(root=tmp_path)})
    with pytest.raises(LinkNotAllowedError):
        containers.read([LinkTarget("c", "a", 0, 4, None, None)])
    inside = LinkContainers([f"file://{tmp_path}/data"], {"c": f"file://{tmp_path}/data"})
    with pytest.raises(InvalidInputError, match="not a key"):
        inside.read([LinkTarget("c", "../secret/a", 0, 4, None, None)])


def test_a_link_with_dot_segments_is_normalised(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "a").write_bytes(b"0123")
    ds = linked([Link(f"{tmp_path}/data/../a"), Link(f"file://{tmp_path}/./a")])
    assert list(ds._session.snapshot.containers.values()) == [f"file://{tmp_path}"]
    assert ds["x"][:] == [b"0123", b"0123"]


@pytest.mark.parametrize("name", ["a b", "100%", "100%25", "ü", "a#b", "a?b"])
def test_files_with_special_names_are_linked_by_path_and_uri(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    file = tmp_path / name / name
    file.write_bytes(b"0123")
    assert linked([Link(str(file)), Link(file.as_uri()), Link(file)])["x"][:] == [b"0123"] * 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("{root}/none", "does not exist"),
        ("{root}", "does not exist"),
        ("s3://bucket", "cannot be linked: not a key"),
        ("memory://zz/a//b", "cannot be linked: not a key"),
        ("memory://zz/../b", "cannot be linked: not a key"),
        ("file://host/path", "names a host"),
        ("http://example.org/a", "no store for http"),
        ("", "no address"),
    ],
)
def test_an_invalid_link_raises_with_column_and_row(tmp_path: Path, uri: str, reason: str) -> None:
    (tmp_path / "a").write_bytes(b"0123")
    ds = penstock.create("memory://", {"x": Linked(Bytes())}, links=True)
    options = {"x": [Link(str(tmp_path / "a")), Link(uri.format(root=tmp_path))]}
    with pytest.raises(InvalidInputError, match=rf"column 'x', row 1: .*{reason}.*The whole call was rolled back"):
        ds.append(options)
    assert not ds.summary().has_changes


@pytest.mark.parametrize("link", [("a", 5), ("a", 2, 3), ("a", 0, 5)])
def test_a_range_outside_the_object_raises(tmp_path: Path, link: Any) -> None:
    (tmp_path / "a").write_bytes(b"0123")
    with pytest.raises(InvalidInputError, match=r"column 'x', row 0: .*has only 4 bytes"):
        linked([Link(str(tmp_path / link[0]), *link[1:])])


def test_a_failed_append_does_not_affect_the_next_link(tmp_path: Path) -> None:
    """The container of a failed append is not in the table; the next append must declare it again."""
    (tmp_path / "a").write_bytes(b"0123")
    table = str(tmp_path / "table")
    ds = penstock.create(table, {"n": int, "x": Linked(Bytes())}, links=True)
    good = Link(str(tmp_path / "a"))
    for rows in ([{"n": 1, "x": good}, {"n": 1, "x": Link(str(tmp_path / "none"))}], [{"n": 1, "x": good}, {"n": 1.5}]):
        with pytest.raises(InvalidInputError):
            ds.append(rows)
    with pytest.raises(InvalidInputError):
        ds.add_column("y", Linked(Bytes()), fill=Link(str(tmp_path / "none")))
    ds.append([{"n": 1, "x": good}])
    ds.commit()
    assert penstock.load(table, links=True)["x"][:] == [b"0123"]


def test_a_container_is_declared_once(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode())
    table = str(tmp_path / "table")
    ds = penstock.create(table, {"x": Linked(Bytes())}, links=True)
    for name in "abc":
        ds.append({"x": [Link(str(tmp_path / name)), Link((tmp_path / name).as_uri())]})
        ds.commit()
        ds = penstock.load(table, links=True)
    assert list(ds._session.snapshot.containers.values()) == [f"file://{tmp_path}"]
    assert ds["x"][:] == [b"a", b"a", b"b", b"b", b"c", b"c"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.none() | st.tuples(st.integers(0, 3), st.integers(0, 900), st.integers(0, 100)), max_size=12))
def test_any_ranges_of_any_objects_are_read_in_order(parts: list[tuple[int, int, int] | None]) -> None:
    objects = [np.random.default_rng(number).bytes(1000) for number in range(4)]
    store = open_store("memory://")
    for number, data in enumerate(objects):
        store.put(str(number), data)
    containers = LinkContainers(True, {"c": "memory://x"})
    containers._stores["c"] = counting = CountingStore(store)
    targets = [None if part is None else LinkTarget("c", str(part[0]), part[1], part[2], None, None) for part in parts]
    expected = [None if part is None else objects[part[0]][part[1] : part[1] + part[2]] for part in parts]
    assert containers.read(targets) == expected
    assert counting.requests["get"] == len({part[0] for part in parts if part is not None and part[2]})


def test_distant_ranges_are_not_coalesced() -> None:
    store = open_store("memory://")
    store.put("a", bytes(10 << 20))
    containers = LinkContainers(True, {"c": "memory://x"})
    containers._stores["c"] = counting = CountingStore(store)
    targets = [LinkTarget("c", "a", start, 100, None, None) for start in (0, 1000, 5 << 20, 10_000)]
    containers.read(targets)
    assert counting.requests["get"] == 2
    assert counting.bytes["get"] == 10_100 + 100


def test_links_survive_updates_deletes_renames_and_new_columns(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for name in "abc":
            (tmp_path / folder / name).write_bytes(f"{folder} {name}".encode())
    table = str(tmp_path / "table")
    ds = penstock.create(table, {"n": int, "x": Column(Linked(Bytes()), nullable=True)}, links=True)
    ds.append({"n": [0, 1, 2], "x": [Link(str(tmp_path / "one" / name)) for name in "abc"]})
    ds.update(positions=[1], data={"x": Link(str(tmp_path / "two/b"))})
    ds.update(positions=[2], data={"n": 20})
    ds.commit()
    ds.rename_column("x", "y")
    ds.add_column("z", Linked(Text()), fill=Link(str(tmp_path / "two/c")))
    ds.add_column("w", Linked(Bytes()), values=[Link(str(tmp_path / "two" / name)) for name in "abc"])
    ds.delete(positions=[0])
    ds.append({"n": [3], "y": [None], "z": [Link(str(tmp_path / "one/a"))], "w": [Link(str(tmp_path / "one/b"))]})
    ds.update(positions=[0, 1], data={"w": [Link(str(tmp_path / "one/c")), Link(str(tmp_path / "two/a"))]})
    ds.commit()
    ds = penstock.load(table, links=[tmp_path])
    assert [row["y"] for row in ds] == [b"two b", b"one c", None]
    assert [row["z"] for row in ds] == ["two c", "two c", "one a"]
    assert [row["w"] for row in ds] == [b"one c", b"two a", b"one b"]
    assert len(ds._session.snapshot.containers) == 2
    assert penstock.load(table, version=1, links=True)["x"][:] == [b"one a", b"two b", b"one c"]


def test_linked_images_and_json_decode(tmp_path: Path) -> None:
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    (tmp_path / "a.png").write_bytes(Image().to_array([image])[0].as_py())
    (tmp_path / "a.json").write_bytes(b'{"a": [1, null]}')
    ds = penstock.create("memory://", links=True)
    ds.append({"i": [Link(str(tmp_path / "a.png"))]})
    assert ds.schema["i"].kind == Linked(Image("png"))
    np.testing.assert_array_equal(ds["i"][0], image)
    fixed = linked([Link(str(tmp_path / "a.png"))] * 2, kind=Image(shape=(4, 4, 3)))
    assert fixed["x"][:].shape == (2, 4, 4, 3)
    assert linked([Link(str(tmp_path / "a.json"))], kind=Json())["x"][0] == {"a": [1, None]}


def test_a_linked_object_that_is_no_image_is_a_bad_sample(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(SampleError, match="column 'x'"):
        linked([Link(str(tmp_path / "a.png"))], kind=Image())["x"][0]


@pytest.mark.parametrize(("kind", "data"), [(Text(), b"\xff"), (Json(), b"{")])
def test_a_linked_object_that_does_not_parse_is_a_bad_sample(tmp_path: Path, kind: Any, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(SampleError, match="column 'x'"):
        linked([Link(str(tmp_path / "a"))], kind=kind)["x"][0]
