"""Direct reads: pages of one fixed-width column, read into the rows' destination without an intermediate copy."""

from collections.abc import Callable, Sequence
from itertools import chain, islice

from penstock.errors import CorruptError
from penstock.format import values_match, verify_pages
from penstock.storage import Store
from penstock.table._pages import FragmentRows, PageRequest
from penstock.types import ByteRange


def direct_row_range(request: PageRequest, field_id: int, row_bytes: int, selected: FragmentRows) -> range | None:
    """The rows of a request's pages, as indices into the selected rows; None if the pages cannot be read directly.

    The first and the last page may hold rows outside the selection: the range may start below 0 and end past the last.
    """
    file, first, last = request.file, request.pages[0], request.pages[-1]
    if file.fields != (field_id,) or file.dense_row_bytes != row_bytes:
        return None
    rows = selected.contiguous
    row = file.row_start + (file.row_ends[first - 1] if first else 0)
    row_end = file.row_start + file.row_ends[last]
    if rows is None or last - first + 1 != len(request.pages):
        return None
    return range(row - rows.start, row_end - rows.start)


def read_direct(store: Store, request: PageRequest, out: memoryview) -> None:
    """Read the values of a request's pages into `out`, and verify them.

    Raises `CorruptError` for a damaged page.
    """
    values = [(out[part],) for part in request.file.dense_pages(request.pages[0], request.pages[-1] + 1).values]
    _retry_corrupt(lambda: _read(store, request, values, [out]))


def read_direct_scattered(store: Store, request: PageRequest, rows: Sequence[memoryview]) -> None:
    """`read_direct` into one buffer per row."""
    each = iter(rows)
    counts = request.file.page_rows[request.pages[0] : request.pages[-1] + 1].tolist()
    values = [tuple(islice(each, count)) for count in counts]
    _retry_corrupt(lambda: _read(store, request, values, rows))


def _retry_corrupt(read: Callable[[], None]) -> None:
    try:
        read()
    except CorruptError:  # perhaps damaged in transit: retry once
        read()


def _read(
    store: Store,
    request: PageRequest,
    page_values: Sequence[Sequence[memoryview]],
    values: Sequence[memoryview],
) -> None:
    """Fill the buffers of each page; `values` are the same buffers, verified in one pass."""
    file, first, end = request.file, request.pages[0], request.pages[-1] + 1
    offsets, run = file.offsets, file.dense_pages(first, end)
    scratch = memoryview(bytearray(run.headers[-1].stop))
    heads = [scratch[part] for part in run.headers]
    buffers = [*chain.from_iterable((head, *mine) for head, mine in zip(heads, page_values, strict=True))]
    store.read_into(file.key, offsets[first], buffers)
    if not values_match(file, first, end, heads, values):
        whole = store.get(file.key, byte_range=ByteRange(offsets[first], offsets[end]))
        verify_pages(file, first, end, whole, f"{store.uri}/{file.key}")  # names the damaged page
        raise CorruptError(f"{store.uri}/{file.key} changed while it was read; read it again")
