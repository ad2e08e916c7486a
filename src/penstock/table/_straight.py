"""Read pages that hold nothing but one column's numbers straight to where the rows go, without a copy in between."""

from collections.abc import Callable, Sequence
from itertools import chain, islice

from penstock.errors import CorruptError
from penstock.format import values_match, verify_pages
from penstock.storage import Store
from penstock.table._pages import PageRequest, Wanted
from penstock.types import ByteRange


def row_range(request: PageRequest, field_id: int, row_bytes: int, want: Wanted) -> range | None:
    """Which of the wanted rows a request's pages hold, if they can be read straight: no other column is in them.

    Rows of the first and the last page that nobody wants count too: they are before 0, or behind the last one wanted.
    """
    file, first, last = request.file, request.pages[0], request.pages[-1]
    if file.fields != (field_id,) or file.bare_row_bytes != row_bytes:
        return None
    rows = want.together
    row = file.row_start + (file.row_ends[first - 1] if first else 0)
    row_end = file.row_start + file.row_ends[last]
    if rows is None or last - first + 1 != len(request.pages):
        return None
    return range(row - rows.start, row_end - rows.start)


def read_straight(store: Store, request: PageRequest, out: memoryview, late_s: float | None = None) -> None:
    """Fill `out` with the values of a request's pages, and verify them; raises `StorageTimeout` if they are late."""
    values = [(out[part],) for part in request.file.bare_run(request.pages[0], request.pages[-1] + 1).values]
    _twice(lambda: _read(store, request, values, [out], late_s))


def read_apart(store: Store, request: PageRequest, rows: Sequence[memoryview], late_s: float | None = None) -> None:
    """The same with room for each row, wherever that is."""
    each = iter(rows)
    counts = request.file.page_rows[request.pages[0] : request.pages[-1] + 1].tolist()
    values = [tuple(islice(each, count)) for count in counts]
    _twice(lambda: _read(store, request, values, rows, late_s))


def _twice(read: Callable[[], None]) -> None:
    try:
        read()
    except CorruptError:  # perhaps it was the way and not the object: ask once more before saying so
        read()


def _read(
    store: Store,
    request: PageRequest,
    values: Sequence[Sequence[memoryview]],
    together: Sequence[memoryview],
    late_s: float | None,
) -> None:
    """Fill the room for the values of each page, which is checked `together`."""
    file, first, end = request.file, request.pages[0], request.pages[-1] + 1
    offsets, run = file.offsets, file.bare_run(first, end)
    scratch = memoryview(bytearray(run.heads[-1].stop))
    heads = [scratch[part] for part in run.heads]
    buffers = [*chain.from_iterable((head, *mine) for head, mine in zip(heads, values, strict=True))]
    store.read_into(file.key, offsets[first], buffers, late_s=late_s)
    if not values_match(file, first, end, heads, together):
        whole = store.get(file.key, byte_range=ByteRange(offsets[first], offsets[end]))
        verify_pages(file, first, end, whole, f"{store.uri}/{file.key}")  # names the page
        raise CorruptError(f"{store.uri}/{file.key} changed while it was read; read it again")
