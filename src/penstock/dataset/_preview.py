"""Rows of a view without their large values: blobs are not read, and links not followed by default."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.dataset._view import View
from penstock.errors import PenstockError
from penstock.format import Field
from penstock.format.kinds import Link, Linked
from penstock.table import RawColumn, Reader


@dataclass(frozen=True)
class BlobPreview:
    """Stands for a value that is stored as an object of its own."""

    length: int
    """Bytes of the value."""


def preview_rows(view: View, *, follow_links: bool = False) -> list[dict[str, Any]]:
    """The rows of a view as dictionaries of values.

    A blob is a `BlobPreview`; a linked value is a `Link`, unless links are followed; a value that cannot be read is the
    `PenstockError` that reading it raises.
    """
    view = view._pinned()
    reader, fields, positions = view._reader, list(view.schema), np.asarray(view._rows, np.int64)
    order = np.argsort(positions)
    cells = reader.raw_columns(fields, [positions[order]])[0]
    return [
        {field.name: _value(reader, field, cells[field.name].row(row), follow_links) for field in fields}
        for row in np.argsort(order).tolist()
    ]


def _value(reader: Reader, field: Field, cell: RawColumn, follow_links: bool) -> Any:
    if cell.references is not None and (blob := cell.references[0].as_py()) is not None:
        return BlobPreview(blob["length"])
    target = field.kind.to_values(cell.array)[0] if isinstance(field.kind, Linked) else None
    if target is not None and not follow_links:
        uri = f"{reader.snapshot.containers[target.container]}/{target.path}"
        return Link(uri, offset=target.offset, length=target.length)
    try:
        return reader.decode(field, cell).item(0)
    except PenstockError as error:
        return error
