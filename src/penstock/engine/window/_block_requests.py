"""The requests and the memory that a block needs; computed once for all epochs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy.typing as npt

from penstock.engine.planning import Block, Layout, PlannedBlock
from penstock.format import Field
from penstock.table import (
    FixedColumn,
    FragmentRows,
    PageCache,
    PageRequest,
    RowPages,
    direct_row_range,
    linked_bytes,
    page_requests,
    reads_by_row,
)

_MAX_MEMOIZED = 16 << 10


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BlockRequest:
    """The requests and the memory of one block."""

    row_pages: Mapping[str, RowPages]
    """Columns that builders read row by row, so that they are not in the window."""
    slab_range: range
    """Its rows in the slab, with unwanted rows of shared pages: below 0, and after the last row."""
    slab_bytes: int
    """Bytes of its rows in the slab."""
    variable_bytes: int
    """Bytes of its columns of variable size, about."""
    sparse: bool
    """Whether most rows of the pages are not wanted, so that values are copied and pages freed."""
    requests: Sequence[PageRequest] = ()
    direct: Mapping[int, range] = field(default_factory=dict)
    """Indices of requests that are read directly into the slab, and the rows that each fills."""
    cacheable: Sequence[PageRequest] = ()
    """Requests that the page cache may already hold."""
    raw_bytes: int = 0
    """Bytes of pages until they are parsed."""
    cached_columns: dict[int, npt.NDArray[Any]] = field(default_factory=dict)
    """Fixed-width columns from the page cache, by field id."""


class BlockRequests:
    """Computes the requests of blocks, for a fixed set of columns."""

    def __init__(
        self,
        layout: Layout,
        *,
        in_slab: Sequence[FixedColumn],
        heaviest: Field | None,
        page_cache: PageCache | None,
        is_local: bool,
        by_row: int,
    ) -> None:
        """Local pages of fixed-width values are read directly to their destination.

        Builders read large local rows themselves, if a page holds at most `by_row` of them.
        """
        self._page_cache, self._heaviest_id, self._is_local = page_cache, heaviest.id if heaviest else 0, is_local
        self._ids = [field.id for field in layout.fields]
        self._variable_ids = {field.id for field in layout.variable}
        fields = [column.field for column in layout.fixed if column.field is not None]
        times = Counter(field.id for field in fields)  # a stored column can have several names
        self._fixed_width = [
            (field.id, field.fixed_row_bytes) for field in fields if field.fixed_row_bytes and times[field.id] == 1
        ]
        self.by_row = [field for field in fields if reads_by_row(field, by_row)]
        """Columns that builders may read."""
        self._rows_per_page = by_row
        self._never_cached = {self._heaviest_id, *(field.id for field in self.by_row)}
        self._row_bytes = [(column.field.id if column.field else 0, column.row_bytes) for column in in_slab]
        self._row_bytes += [(field.id, size) for field in layout.variable if (size := linked_bytes(field))]
        self._memoized = lru_cache(_MAX_MEMOIZED)(self._build)

    def for_block(self, block: PlannedBlock) -> BlockRequest:
        """The requests and the memory of a block."""
        direct = self._is_local and not block.parts
        if isinstance(block.source.selected, range):  # such a block is the same object in every epoch
            return self._memoized(block.source, direct)
        return self._build(block.source, direct)

    def for_part(self, part: PlannedBlock, whole: BlockRequest) -> BlockRequest:
        """The memory of a part of a block, given the request of that block, with which it is read."""
        share = part.rows / len(whole.slab_range)
        by_row = self._row_pages(part.fragment_rows) if whole.row_pages else {}
        return BlockRequest(
            row_pages={name: pages for name, pages in by_row.items() if name in whole.row_pages},
            slab_range=range(part.rows),
            slab_bytes=round(share * whole.slab_bytes),
            variable_bytes=round(share * whole.variable_bytes),
            sparse=True,
        )

    def is_cacheable(self, request: PageRequest) -> bool:
        """Whether the pages go through the page cache."""
        return self._page_cache is not None and self._never_cached.isdisjoint(request.file.fields)

    def _row_pages(self, fragment_rows: FragmentRows) -> dict[str, RowPages]:
        """The columns that builders read row by row."""
        places = {
            field.name: RowPages.of(fragment_rows, field.id, field.fixed_row_bytes or 0, self._rows_per_page)
            for field in self.by_row
        }
        return {name: pages for name, pages in places.items() if pages is not None}

    def _build(self, block: Block, may_read_directly: bool) -> BlockRequest:
        fragment_rows = FragmentRows(block.fragment, block.stored_rows)
        cacheable: list[PageRequest] = []
        requests: list[PageRequest] = []
        row_pages = self._row_pages(fragment_rows)
        elsewhere = {field.id for field in self.by_row if field.name in row_pages}
        ids = [field_id for field_id in self._ids if block.reads(field_id) and field_id not in elsewhere]
        for request in page_requests([fragment_rows], ids):
            if self._page_cache is not None and self.is_cacheable(request):
                cacheable += self._page_cache.groups(request)
            else:
                requests.append(request)
        most = (4 if isinstance(block.selected, range) else 2) * len(block)
        direct = self._direct_requests(requests, fragment_rows, most) if may_read_directly else {}
        starts, stops = zip((0, len(block)), *((rows.start, rows.stop) for rows in direct.values()), strict=True)
        slab_range = range(min(starts), max(stops))
        row_bytes = sum(
            size for field_id, size in self._row_bytes if block.reads(field_id) and field_id not in elsewhere
        )
        variable = [request for request in requests if self._variable_ids.intersection(request.file.fields)]
        share = len(block) / max([len(block), *_stored_rows(variable).values()])
        return BlockRequest(
            row_pages=row_pages,
            slab_range=slab_range,
            slab_bytes=len(slab_range) * row_bytes,
            variable_bytes=round(share * sum(request.bytes for request in variable)),
            sparse=share < 0.5,
            requests=tuple(requests),
            direct=direct,
            cacheable=tuple(cacheable),
            raw_bytes=sum(request.bytes for index, request in enumerate(requests) if index not in direct),
        )

    def _direct_requests(
        self, requests: Sequence[PageRequest], fragment_rows: FragmentRows, most: int
    ) -> dict[int, range]:
        """The requests that can be read directly to their destination; for a column, all or none.

        Blocks are split at page boundaries of the heaviest column. So if some rows at an end are left out, the pages
        that are read take no more memory than the whole block. Of a few rows of a block, more than `most` rows are not
        read directly: the wanted ones are copied from the pages.
        """
        direct: dict[int, range] = {}
        wanted = range(len(fragment_rows.rows))
        for field_id, row_bytes in self._fixed_width:
            indices = [index for index, request in enumerate(requests) if request.file.fields == (field_id,)]
            rows = [direct_row_range(requests[index], field_id, row_bytes, fragment_rows) for index in indices]
            parts = [part for part in rows if part is not None]
            if not parts or len(parts) < len(indices):
                continue
            filled = range(parts[0].start, parts[-1].stop)
            contiguous = sum(map(len, parts)) == len(filled)
            covers = filled.start <= 0 and wanted.stop <= filled.stop and field_id == self._heaviest_id
            covers = covers and len(filled) <= most
            if contiguous and (filled == wanted or covers):
                direct.update(zip(indices, parts, strict=True))
        return direct


def _stored_rows(requests: Sequence[PageRequest]) -> Counter[tuple[int, ...]]:
    """Rows in the pages of some requests, by the columns of their files."""
    stored: Counter[tuple[int, ...]] = Counter()
    for file, pages in requests:
        stored[file.fields] += file.row_ends[pages[-1]] - (file.row_ends[pages[0] - 1] if pages[0] else 0)
    return stored
