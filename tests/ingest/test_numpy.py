"""numpy files: which arrays are columns, which are rows, and what is rejected."""

import copy
import io
import os
import tempfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import penstock
from penstock.engine import BadSamples
from penstock.errors import InvalidInputError
from penstock.format.kinds import Bytes, Tensor, Text
from penstock.ingest import IngestOptions, RowBatch, prepare, run
from penstock.ingest.sources import _limits
from penstock.ingest.sources._npy import parse_npy
from penstock.ingest.sources._numpy import NUMPY, NUMPY_ROWS, NUMPY_SAMPLES
from penstock.storage import open_store
from penstock.testing import SourceTests
from tests.ingest.arrays import kinds, open_scan, read_columns, same

RNG = np.random.default_rng(0)
EXPLOITED = Path(tempfile.gettempdir(), f"penstock-unpickled-{os.getpid()}")


class TestArrays(SourceTests):
    source = NUMPY
    expected = 11

    def make(self, folder: Path) -> None:
        for shard, rows in enumerate((4, 7)):
            np.save(folder / f"images_{shard}.npy", RNG.integers(0, 255, (rows, 3, 2), np.uint8))
            np.save(folder / f"labels_{shard}.npy", np.arange(rows))


class TestSamples(SourceTests):
    source = NUMPY
    expected = 17

    def make(self, folder: Path) -> None:
        for number in range(17):
            np.save(folder / f"{number}.npy", RNG.random((number + 1, 2), np.float32))


class TestArchives(SourceTests):
    source = NUMPY
    expected = 9

    def make(self, folder: Path) -> None:
        np.savez(folder / "a.npz", x=RNG.random((4, 3)), y=np.arange(4))
        np.savez_compressed(folder / "b.npz", x=RNG.random((5, 3)), y=np.arange(5))


class TestArchivesOfOneRow(SourceTests):
    source = NUMPY
    expected = 17

    def make(self, folder: Path) -> None:
        for number in range(17):
            np.savez_compressed(folder / f"{number}.npz", image=RNG.random((number + 1, 2)), label=np.int64(number))


ARRAYS = hnp.arrays(
    st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(endianness="?"),
        hnp.floating_dtypes(endianness="?"),
        hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
        st.sampled_from([np.dtype("M8[ns]"), np.dtype("m8[ms]"), np.dtype("M8[D]")]),
    ),
    hnp.array_shapes(max_dims=4, max_side=5),
)


def stored(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array as a table stores it, for dtypes that are converted."""
    return array.astype("M8[s]") if array.dtype == np.dtype("M8[D]") else array


@settings(deadline=None)
@given(array=ARRAYS, fortran=st.booleans())
def test_array_roundtrip(tmp_path_factory: pytest.TempPathFactory, array: npt.NDArray[Any], fortran: bool) -> None:
    folder = tmp_path_factory.mktemp("npy")
    if array.dtype == np.dtype("M8[D]"):
        array = np.zeros(array.shape, array.dtype) + np.arange(len(array)).reshape(-1, *[1] * (array.ndim - 1))
    np.save(folder / "a.npy", np.asfortranarray(array) if fortran else array)
    columns, rejects = read_columns(NUMPY, folder)
    assert not rejects
    assert same(columns["data"], stored(array))


@settings(deadline=None)
@given(array=ARRAYS, fortran=st.booleans(), compressed=st.booleans())
def test_archive_roundtrip(
    tmp_path_factory: pytest.TempPathFactory, array: npt.NDArray[Any], fortran: bool, compressed: bool
) -> None:
    folder = tmp_path_factory.mktemp("npz")
    if array.dtype.kind == "M":
        array = array.astype(np.int64)
    more = np.arange(2 * len(array)).reshape(len(array), 2)
    write = np.savez_compressed if compressed else np.savez
    write(folder / "a.npz", x=np.asfortranarray(array) if fortran else array, more=more)
    columns, rejects = read_columns(NUMPY, folder)
    assert not rejects
    assert same(columns["x"], array)
    assert same(columns["more"], more)


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_arrays_are_read_in_slices(tmp_path: Path, order: Any) -> None:
    array = np.asarray(np.arange(10_000_000, dtype=np.float32).reshape(-1, 1000), order=order)
    np.save(tmp_path / "a.npy", array)
    reader, scan = open_scan(NUMPY, tmp_path)
    sizes = [len(item.batch) for item in scan.rows(reader, scan.files) if isinstance(item, RowBatch)]
    assert len(sizes) > 1
    assert max(sizes) * 4000 <= 32 << 20
    assert same(read_columns(NUMPY, tmp_path)[0]["data"], np.ascontiguousarray(array))


def test_huge_array_is_read_lazily(tmp_path: Path) -> None:
    np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.uint8, (1 << 20, 1 << 16))  # 64 GiB of holes
    reader, scan = open_scan(NUMPY, tmp_path)
    rows = iter(scan.rows(reader, scan.files))
    first = next(rows)
    assert isinstance(first, RowBatch)
    del rows
    assert reader.byte_counter.bytes < 100 << 20


def test_archive_is_streamed_in_bounded_memory(tmp_path: Path) -> None:
    array = np.tile(RNG.integers(0, 255, 1 << 14, np.uint8), 1 << 13).reshape(1 << 13, 1 << 14)  # 128 MiB
    np.savez_compressed(tmp_path / "a.npz", x=array, y=np.arange(1 << 13))
    reader, scan = open_scan(NUMPY, tmp_path)
    tracemalloc.start()
    rows = sum(len(item.batch) for item in scan.rows(reader, scan.files) if isinstance(item, RowBatch))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == 1 << 13
    assert peak < 64 << 20


@settings(deadline=None)
@given(array=ARRAYS, fortran=st.booleans(), version=st.sampled_from([(1, 0), (2, 0), (3, 0)]))
def test_header_matches_numpy(array: npt.NDArray[Any], fortran: bool, version: tuple[int, int]) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asfortranarray(array) if fortran else array, version)
    found = parse_npy(file.getvalue())
    read = np.load(io.BytesIO(file.getvalue()))
    assert (found.dtype, found.shape) == (read.dtype, read.shape)
    assert found.start + found.nbytes == len(file.getvalue())
    assert np.array_equal(found.from_bytes(file.getvalue()[found.start :]), read, equal_nan=read.dtype.kind in "fcMm")


def test_python_2_header() -> None:
    header = b'{"shape":(3L, 4L,),"descr":"|u1",\n \'fortran_order\' : True}'
    with pytest.warns(UserWarning, match="Python 2"):
        found = parse_npy(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)
    assert (found.dtype, found.shape, found.fortran) == (np.dtype(np.uint8), (3, 4), True)


class TestColumnMapping:
    def columns(self, folder: Path) -> dict[str, list[Any]]:
        columns, rejects = read_columns(NUMPY, folder)
        assert not rejects
        return columns

    def test_files_of_equal_length_are_columns(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.zeros((5, 3)))
        np.save(tmp_path / "y.npy", np.arange(5))
        assert {name: len(rows) for name, rows in self.columns(tmp_path).items()} == {"x": 5, "y": 5}

    def test_single_column_is_named_data(self, tmp_path: Path) -> None:
        np.save(tmp_path / "train.npy", np.arange(5))
        assert self.columns(tmp_path) == {"data": [0, 1, 2, 3, 4]}

    def test_numbers_in_names_order_shards(self, tmp_path: Path) -> None:
        for number in (1, 2, 10):
            np.save(tmp_path / f"part-{number}.npy", np.full(2, number))
        assert self.columns(tmp_path) == {"data": [1, 1, 2, 2, 10, 10]}

    def test_shards_of_columns_match_by_number(self, tmp_path: Path) -> None:
        for shard in range(3):
            np.save(tmp_path / f"x-{shard:05}-of-00003.npy", np.full((shard + 1, 2), shard))
            np.save(tmp_path / f"y-{shard:05}-of-00003.npy", np.full(shard + 1, 10 * shard))
        columns = self.columns(tmp_path)
        assert [10 * row[0] for row in columns["x"]] == columns["y"] == [0, 10, 10, 20, 20, 20]

    def test_leading_number_identifies_the_shard(self, tmp_path: Path) -> None:
        for shard in range(2):
            np.save(tmp_path / f"{shard}_rgb.npy", np.zeros((2, 4)))
            np.save(tmp_path / f"{shard}_depth.npy", np.zeros(2))
        assert {name: len(rows) for name, rows in self.columns(tmp_path).items()} == {"rgb": 4, "depth": 4}

    def test_folders_are_shards(self, tmp_path: Path) -> None:
        for folder, rows in (("train", 3), ("val", 2)):
            (tmp_path / folder).mkdir()
            np.save(tmp_path / folder / "x.npy", np.zeros((rows, 2)))
            np.save(tmp_path / folder / "y.npy", np.arange(rows))
        assert self.columns(tmp_path)["y"] == [0, 1, 2, 0, 1]

    def test_names_with_numbers_can_be_columns(self, tmp_path: Path) -> None:
        for name in ("x1", "x2", "y"):
            np.save(tmp_path / f"{name}.npy", np.zeros(3))
        assert set(self.columns(tmp_path)) == {"x1", "x2", "y"}

    def test_files_of_different_length_are_parts_of_one_column(self, tmp_path: Path) -> None:
        np.save(tmp_path / "cat.npy", np.full((3, 4), 1, np.uint8))
        np.save(tmp_path / "dog.npy", np.full((2, 4), 2, np.uint8))
        assert [row[0] for row in self.columns(tmp_path)["data"]] == [1, 1, 1, 2, 2]

    def test_unrelated_files_raise(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.zeros((5, 3)))
        np.save(tmp_path / "y.npy", np.arange(6))
        with pytest.raises(InvalidInputError, match=r"x\.npy \(5, 3\), y\.npy \(6,\)"):
            read_columns(NUMPY, tmp_path)

    def test_many_small_files_are_rows_of_any_shape(self, tmp_path: Path) -> None:
        arrays = [RNG.random((1 + number % 5, 3), np.float32) for number in range(20)]
        for number, array in enumerate(arrays):
            np.save(tmp_path / f"{number:04}.npy", array)
        _, scan = open_scan(NUMPY, tmp_path)
        assert kinds(scan) == {"data": Tensor("float32", (None, 3))}
        rows = self.columns(tmp_path)["data"]
        assert all(np.array_equal(row, array) for row, array in zip(rows, arrays, strict=True))

    def test_many_small_pairs_are_rows_of_two_columns(self, tmp_path: Path) -> None:
        for number in range(20):
            np.save(tmp_path / f"x_{number}.npy", np.full((2, 3), number))
            np.save(tmp_path / f"y_{number}.npy", np.int64(number))
        columns = self.columns(tmp_path)
        assert columns["y"] == [row[0, 0] for row in columns["x"]] == list(range(20))

    def test_few_or_large_files_hold_rows(self, tmp_path: Path) -> None:
        for number in range(17):
            np.save(tmp_path / f"{number}.npy", np.zeros((2, 1 << 17), np.uint8))
        assert len(self.columns(tmp_path)["data"]) == 17
        np.save(tmp_path / "17.npy", np.zeros((9, 1 << 17), np.uint8))
        assert len(self.columns(tmp_path)["data"]) == 17 * 2 + 9

    def test_explicit_rows_or_samples(self, tmp_path: Path) -> None:
        for number in range(3):
            np.save(tmp_path / f"{number}.npy", np.zeros((4, 2)))
        assert len(read_columns(NUMPY_SAMPLES, tmp_path)[0]["data"]) == 3
        for number in range(20):
            np.save(tmp_path / f"{number}.npy", np.zeros((4, 2)))
        assert len(read_columns(NUMPY_ROWS, tmp_path)[0]["data"]) == 80

    def test_strings_are_text(self, tmp_path: Path) -> None:
        np.save(tmp_path / "name.npy", np.array(["ä", "", "cat"]))
        np.save(tmp_path / "raw.npy", np.array([b"a", b"bc", b""]))
        _, scan = open_scan(NUMPY, tmp_path)
        assert kinds(scan) == {"name": Text(), "raw": Bytes()}
        assert self.columns(tmp_path) == {"name": ["ä", "", "cat"], "raw": [b"a", b"bc", b""]}

    def test_shards_of_different_dtypes_are_promoted(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a_0.npy", np.zeros(2, np.int16))
        np.save(tmp_path / "a_1.npy", np.full(2, 0.5, np.float32))
        assert self.columns(tmp_path) == {"data": [0, 0, 0.5, 0.5]}

    def test_nonzero_bytes_are_true(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.array([0, 1, 2, 255], np.uint8).view(bool))
        assert self.columns(tmp_path) == {"data": [False, True, True, True]}


class TestRejects:
    def reason(self, folder: Path) -> str:
        """The reason why the one bad file is rejected, while the others are read."""
        columns, rejects = read_columns(NUMPY, folder)
        assert [reject.name for reject in rejects] in (["a_9.npy"], ["bad.npz"]), rejects
        [reject] = rejects
        assert sum(map(len, columns.values()))
        return reject.reason

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for number in range(3):
            np.save(tmp_path / f"a_{number}.npy", np.zeros((2, 4)))
        return tmp_path

    @pytest.fixture
    def archives(self, tmp_path: Path) -> Path:
        for number in range(3):
            np.savez(tmp_path / f"good_{number}.npz", x=np.zeros((2, 4)), y=np.zeros(2))
        return tmp_path

    def write(self, path: Path, header: bytes, data: bytes = b"", version: bytes = b"\1\0") -> None:
        length = len(header).to_bytes(2 if version == b"\1\0" else 4, "little")
        path.write_bytes(b"\x93NUMPY" + version + length + header + data)

    def test_pickles(self, folder: Path) -> None:
        np.save(folder / "a_9.npy", np.array([_Exploit()] * 2, dtype=object), allow_pickle=True)
        assert "pickled and never loaded" in self.reason(folder)
        assert not EXPLOITED.exists()

    def test_pickles_in_archives(self, archives: Path) -> None:
        np.savez(archives / "bad.npz", x=np.array([_Exploit()] * 2, dtype=object), y=np.zeros(2))
        assert "pickled and never loaded" in self.reason(archives)
        assert not EXPLOITED.exists()

    def test_only_pickles_raises(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.array([_Exploit()], dtype=object), allow_pickle=True)
        with pytest.raises(InvalidInputError, match="pickled and never loaded"):
            open_scan(NUMPY, tmp_path)
        assert not EXPLOITED.exists()

    @pytest.mark.parametrize(
        ("array", "reason"),
        [
            (np.zeros(2, [("a", "f4")]), "structured"),
            (np.zeros((2, 4), "V2"), "bfloat16"),
            (np.zeros((2, 4), np.longdouble), "not an element type"),
            (np.zeros((2, 4), "U3"), "strings per row"),
            (np.float64(1), "no axis of rows"),
            (np.zeros((2, 0)), "empty rows"),
        ],
        ids=str,
    )
    def test_unsupported_arrays_raise(self, tmp_path: Path, array: Any, reason: str) -> None:
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(InvalidInputError, match=reason):
            open_scan(NUMPY, tmp_path)

    @pytest.mark.parametrize(
        ("header", "reason"),
        [
            (b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 4)}", "truncated"),
            (b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 4)}", "not valid"),
            (b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,%s)}" % (b"1," * 99), "100 axes"),
            (b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 0)}", "empty rows"),
            (b"{'descr': '<f8', 'fortran_order': False, 'shape': (0, 9999999999)}", "the limit is"),
            (b"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 0, 9999999999, 9999999999)}", "the limit is"),
            (b"{'descr': '|O', 'fortran_order': False, 'shape': (2, 4)}", "pickled"),
            (b"(" * 5000, "cannot be parsed"),
            (b"__import__('os').getcwd()", "cannot be parsed"),
            (b"{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (0, 4)}", "structured"),
            (b"{'descr': '<f3', 'fortran_order': False, 'shape': (2, 4)}", "cannot be parsed"),
            (b"\xff\xfe", "cannot be parsed"),
        ],
        ids=range(12),
    )
    def test_invalid_headers(self, folder: Path, header: bytes, reason: str) -> None:
        self.write(folder / "a_9.npy", header)
        assert reason in self.reason(folder)

    def test_header_above_the_size_limit(self, tmp_path: Path) -> None:
        self.write(tmp_path / "a.npy", b" " * 100_000, version=b"\2\0")
        with pytest.raises(InvalidInputError, match="cannot be parsed"):
            open_scan(NUMPY, tmp_path)

    def test_two_arrays_in_one_file(self, tmp_path: Path) -> None:
        with (tmp_path / "a.npy").open("wb") as file:
            np.save(file, np.zeros(3))
            np.save(file, np.zeros(3))
        with pytest.raises(InvalidInputError, match="more than one array"):
            open_scan(NUMPY, tmp_path)

    def test_incomplete_shard(self, tmp_path: Path) -> None:
        for number in range(3):
            np.save(tmp_path / f"x_{number}.npy", np.zeros((2, 4)))
            np.save(tmp_path / f"y_{number}.npy", np.zeros(2))
        (tmp_path / "y_1.npy").unlink()
        columns, [reject] = read_columns(NUMPY, tmp_path)
        assert len(columns["x"]) == len(columns["y"]) == 4
        assert reject.name == "x_1.npy"
        assert reject.reason == "its arrays are x, and the columns are x, y"

    def test_shard_with_different_row_counts(self, tmp_path: Path) -> None:
        for number in range(3):
            np.save(tmp_path / f"x_{number}.npy", np.zeros((2, 4)))
            np.save(tmp_path / f"y_{number}.npy", np.zeros(2 + (number == 1)))
        columns, [reject] = read_columns(NUMPY, tmp_path)
        assert len(columns["x"]) == len(columns["y"]) == 4
        assert reject.reason == "its arrays have different row counts: x 2, y 3"

    def test_sample_with_a_different_number_of_axes(self, tmp_path: Path) -> None:
        for number in range(20):
            np.save(tmp_path / f"{number}.npy", np.zeros((2, 4)) if number != 7 else np.zeros(4))
        columns, [reject] = read_columns(NUMPY, tmp_path)
        assert len(columns["data"]) == 19
        assert reject.name == "7.npy"
        assert reject.reason == "data does not match: its rows are float64[4], and the column holds float64[2, 4]"

    def test_arrays_and_archives_mixed(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.zeros(3))
        np.savez(tmp_path / "a.npz", np.zeros(3))
        with pytest.raises(InvalidInputError, match=r"both \.npy and \.npz"):
            open_scan(NUMPY, tmp_path)

    def test_archive_with_different_row_counts(self, archives: Path) -> None:
        np.savez(archives / "bad.npz", x=np.zeros((3, 4)), y=np.zeros(2))
        assert self.reason(archives) == "its arrays have different row counts: x 3, y 2"

    def test_archive_with_different_columns(self, archives: Path) -> None:
        np.savez(archives / "bad.npz", x=np.zeros((2, 4)), z=np.zeros(2))
        assert self.reason(archives) == "its arrays are x, z, and the columns are x, y"

    def test_a_bomb(self, archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_limits, "HARMLESS_BYTES", 16 << 20)
        np.savez_compressed(archives / "bad.npz", x=np.zeros((1 << 20, 4)), y=np.zeros(1 << 20))
        assert "decompression bomb" in self.reason(archives)

    def test_other_compressions(self, archives: Path) -> None:
        with zipfile.ZipFile(archives / "bad.npz", "w", zipfile.ZIP_BZIP2) as archive:
            archive.writestr("x.npy", _npy(np.zeros((2, 4))))
        assert "compression that numpy does not" in self.reason(archives)

    def test_archive_member_that_is_not_an_array(self, archives: Path) -> None:
        with zipfile.ZipFile(archives / "bad.npz", "w") as archive:
            archive.writestr("../../x.sh", "echo")
        assert self.reason(archives) == "it holds ../../x.sh, which is not an array"

    def test_overlapping_archive_members(self, archives: Path) -> None:
        with zipfile.ZipFile(archives / "bad.npz", "w") as archive:
            archive.writestr("x.npy", _npy(np.zeros((200, 4))))
            twin = copy.copy(archive.filelist[0])
            twin.filename = "y.npy"
            archive.filelist.append(twin)
        assert "overlap" in self.reason(archives)

    def test_false_member_sizes(self, archives: Path) -> None:
        with zipfile.ZipFile(archives / "bad.npz", "w") as archive:
            archive.writestr("x.npy", _npy(np.zeros((2, 4))))
            archive.filelist[0].file_size -= 8
        assert "Bad CRC-32" in self.reason(archives)
        with zipfile.ZipFile(archives / "bad.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            forged = _npy(np.zeros((2, 4))).replace(b"(2, 4)", b"(9, 4)")
            archive.writestr("x.npy", forged)
            archive.writestr("y.npy", _npy(np.zeros(9)))
            archive.filelist[0].file_size += 7 * 32
        assert self.reason(archives) == "x.npy ends too early"

    @pytest.mark.parametrize("compressed", [False, True])
    def test_member_checksum_is_verified(self, archives: Path, compressed: bool) -> None:
        (np.savez_compressed if compressed else np.savez)(archives / "bad.npz", x=RNG.random((200, 4)), y=np.zeros(200))
        data = bytearray((archives / "bad.npz").read_bytes())
        data[1000] ^= 1
        (archives / "bad.npz").write_bytes(data)
        assert "damaged" in self.reason(archives)


class _Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return EXPLOITED.touch, ()


def _npy(array: npt.NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_ingest_into_a_table(tmp_path: Path) -> None:
    """End to end, with a reject."""
    for number in range(3):
        np.save(tmp_path / f"x_{number}.npy", np.full((5, 2), number, np.float32))
        np.save(tmp_path / f"on_{number}.npy", np.arange(5) > number)
    (tmp_path / "x_1.npy").write_bytes(b"nothing" * 9)
    ds = penstock.create("memory://")
    prepared = prepare(ds._session, open_store(tmp_path), {"numpy": NUMPY}, None, IngestOptions())
    outcome = run(ds._session, prepared, bad_samples=BadSamples(action="skip", limit=10), message="", num_workers=2)
    assert outcome.rows == 10
    [reject] = outcome.rejects
    assert reject.name == "on_1.npy"
    assert "x_1.npy: it is not a .npy file, or is truncated" in reject.reason
    assert np.array_equal(ds["x"][:], np.repeat(np.array([[0, 0], [2, 2]], np.float32), 5, axis=0))
    assert np.array_equal(ds["on"][:], np.concatenate([np.arange(5) > 0, np.arange(5) > 2]))
