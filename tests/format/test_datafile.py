"""Data files: plain Arrow IPC files whose pages have checksums."""

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Boxes, Bytes, Column, Field, List, Struct, Tensor, Text
from penstock.errors import CorruptError
from penstock.format import (
    DataFile,
    FileColumn,
    PageDecoder,
    encode_file,
    make_field,
    row_sizes,
    split_rows,
    verify_frame,
    verify_pages,
)
from penstock.format.kinds import Kind
from tests.format.test_kinds import any_kind, rows, same

steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
codecs = st.sampled_from(["none", "lz4", "zstd"])


@st.composite
def files(draw: st.DrawFn) -> tuple[list[Field], list[list[Any]], list[int]]:
    """Columns, their values, and the rows of each page."""
    pages = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    codec = draw(codecs)
    fields, values = [], []
    for name in "ab"[: draw(st.integers(1, 2))]:
        kind, strategy = draw(any_kind())
        nullable = draw(st.booleans())
        fields.append(make_field(name, Column(kind, nullable=nullable, codec=codec)))
        one = st.none() | strategy if nullable else strategy
        values.append(draw(st.lists(one, min_size=sum(pages), max_size=sum(pages))))
    return fields, values, pages


def encode(fields: list[Field], values: list[list[Any]], pages: list[int]) -> tuple[DataFile, memoryview]:
    arrays = [field.kind.to_array(column) for field, column in zip(fields, values, strict=True)]
    return encode_file([FileColumn(field) for field in fields], arrays, row_start=7, page_rows=pages)


@steady
@given(files())
def test_every_page_decodes_independently(drawn: tuple[list[Field], list[list[Any]], list[int]]) -> None:
    fields, values, pages = drawn
    file, data = encode(fields, values, pages)
    assert (file.length, file.rows, file.row_start, file.row_end) == (len(data), sum(pages), 7, 7 + sum(pages))
    start = 0
    for number, count in enumerate(pages):
        at = file.page_range(number)
        page = data[at.start : at.end]
        verify_pages(file, number, number + 1, page, "somewhere")
        batch = PageDecoder([FileColumn(field) for field in fields]).decode(page, rows=count, where="somewhere")
        for n, field in enumerate(fields):
            assert same(rows(field.kind, batch.column(n)), values[n][start : start + count])
        start += count
    verify_frame(file, data[: file.page_offsets[0]], data[file.page_offsets[-1] :], "somewhere")


@steady
@given(files())
def test_a_file_opens_in_pyarrow(drawn: tuple[list[Field], list[list[Any]], list[int]]) -> None:
    fields, values, pages = drawn
    _, data = encode(fields, values, pages)
    reader = pa.ipc.open_file(pa.py_buffer(data))
    assert reader.num_record_batches == len(pages)
    table = reader.read_all()
    for n, field in enumerate(fields):
        assert same(rows(field.kind, table.column(n).combine_chunks()), values[n])


@steady
@given(files())
def test_value_starts_locate_the_values_without_parsing(drawn: tuple[list[Field], list[list[Any]], list[int]]) -> None:
    fields, values, pages = drawn
    file, data = encode(fields, values, pages)
    first = 0
    for number, count in enumerate(pages):
        for n, field in enumerate(fields):
            start = int(file.value_starts[number, n])
            part = values[n][first : first + count]
            dense = bool(field.fixed_row_bytes) and not any(value is None for value in part)
            assert (start >= 0) == dense
            if dense:
                page = data[file.page_offsets[number] : file.page_offsets[number + 1]]
                stored = field.kind.to_array(part)
                stored = stored.storage.flatten() if isinstance(stored, pa.ExtensionArray) else stored
                raw = np.frombuffer(page, np.uint8, count * (field.fixed_row_bytes or 0), start)
                assert raw.tobytes() == np.asarray(stored).tobytes()
        first += count


@steady
@given(st.data(), files())
def test_any_flipped_bit_is_detected(
    data: st.DataObject, drawn: tuple[list[Field], list[list[Any]], list[int]]
) -> None:
    file, good = encode(*drawn)
    bad = bytearray(good)
    at = data.draw(st.integers(0, len(bad) - 1))
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    pages_start, pages_end = file.page_offsets[0], file.page_offsets[-1]
    page = int(np.searchsorted(file.page_offsets, at, side="right")) - 1
    what = f"page {page} " if pages_start <= at < pages_end else "its header and footer"
    where = "s3://b/t/data/x"

    def verify() -> None:
        verify_frame(file, bad[:pages_start], bad[pages_end:], where)
        verify_pages(file, 0, len(file.page_rows), memoryview(bad)[pages_start:pages_end], where)

    with pytest.raises(CorruptError, match=f"{where} is damaged: the checksum of {what}.*does not match. Restore"):
        verify()


@steady
@given(st.data(), files())
def test_consecutive_pages_are_verified_together(
    data: st.DataObject, drawn: tuple[list[Field], list[list[Any]], list[int]]
) -> None:
    file, good = encode(*drawn)
    first = data.draw(st.integers(0, len(file.page_rows) - 1))
    end = data.draw(st.integers(first + 1, len(file.page_rows)))
    verify_pages(file, first, end, good[file.page_offsets[first] : file.page_offsets[end]], "somewhere")


@given(st.lists(st.integers(0, 1000)), st.integers(1, 2000))
def test_split_rows_gives_runs_of_about_the_target_size(sizes: list[int], target: int) -> None:
    runs = split_rows(np.array(sizes, np.int64), target)
    assert sum(runs) == len(sizes)
    assert all(count > 0 for count in runs)
    ends = list(itertools.accumulate(runs))
    for start, end in itertools.pairwise([0, *ends]):
        run = sizes[start:end]
        assert len(run) == 1 or sum(run[:-1]) <= target  # at most one row above the target
        assert sum(run) <= target + target / 2 or len(run) == 1 or sum(run) - target <= target - sum(run[:-1])
        if end < len(sizes):
            assert sum(run) + sizes[end] > target  # and the next row would exceed it


@steady
@given(st.data(), any_kind(), st.integers(0, 4), st.integers(0, 4))
def test_row_sizes_do_not_depend_on_the_slice(
    data: st.DataObject, drawn: tuple[Kind, st.SearchStrategy[Any]], start: int, count: int
) -> None:
    kind, strategy = drawn
    array = kind.to_array(data.draw(st.lists(st.none() | strategy, max_size=5)))
    sizes = row_sizes(array)
    assert len(sizes) == len(array)
    assert row_sizes(array.slice(start, count)).tolist() == sizes[start : start + count].tolist()


@pytest.mark.parametrize(
    ("kind", "value", "size"),
    [
        (Tensor("int16"), 1, 2),
        (Tensor("complex64"), 1j, 8),
        (Tensor("float32", (10, 10)), np.zeros((10, 10)), 400),
        (Tensor("float32", (None,)), np.zeros(100), 404),
        (Boxes(), np.zeros((5, 4)), 5 * 4 * 4 + 4 + 8),
        (Text(), "x" * 100, 104),
        (Bytes(), b"", 4),
        (List(Text()), ["x" * 10] * 3, 3 * 14 + 4),
        (Struct({"a": Tensor("int64"), "b": Text()}), {"a": 1, "b": "xx"}, 8 + 6),
    ],
    ids=str,
)
def test_row_sizes(kind: Kind, value: Any, size: int) -> None:
    assert row_sizes(kind.to_array([value, value])).tolist() == [size, size]


LONG = np.zeros(1 << 20, np.uint8)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Tensor("uint8", (None,)), LONG),
        (Tensor("uint8", (None, 1)), LONG[:, None]),
        (List(Tensor("uint8", (None,))), [LONG]),
    ],
    ids=str,
)
def test_row_sizes_take_memory_by_rows_and_not_by_elements(kind: Kind, value: Any) -> None:
    array = kind.to_array([value] * 4)
    tracemalloc.start()
    try:
        sizes = row_sizes(array.slice(1, 2))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (sizes > 1 << 20).all()
    assert peak < 1 << 16


def test_a_null_list_with_items_behind_it_does_not_shift_the_sizes_of_others() -> None:
    items = pa.array(["a", "bcd", "ef"])
    array = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), items, mask=pa.array([False, True, False]))
    assert row_sizes(array.slice(2, 1)).tolist() == row_sizes(array).tolist()[2:] == [4 + 4 + 2]


def test_a_file_without_pages() -> None:
    field = make_field("a", Text())
    file, data = encode_file([FileColumn(field)], [Text().to_array([])], row_start=0, page_rows=[])
    assert file.rows == 0
    assert pa.ipc.open_file(pa.py_buffer(data)).read_all().num_rows == 0


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize(("columns", "rows_per_page", "pages"), [(600, 1, 3), (2, 1, 500), (1, 3000, 2)])
def test_incompressible_data_fits_the_allocated_buffer(
    codec: str, columns: int, rows_per_page: int, pages: int
) -> None:
    rng, count = np.random.default_rng(0), rows_per_page * pages
    fields = [make_field(f"c{n}", Column(List(Text()), nullable=True, codec=codec)) for n in range(columns)]
    values = [[[rng.bytes(8).hex()] for _ in range(count)] for _ in fields]
    file, data = encode(fields, values, [rows_per_page] * pages)
    assert len(data) == file.length
    assert pa.ipc.open_file(pa.py_buffer(data)).read_all().column(0).to_pylist() == values[0]
