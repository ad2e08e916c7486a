"""Values of some rows in little room: blobs are not read, and links not followed unless told to."""

from collections.abc import Sequence

import numpy as np

from penstock.cli._show import Preview, amount, preview
from penstock.errors import PenstockError
from penstock.format import Field
from penstock.format.kinds import Linked, Place
from penstock.table import Cells, Reader, Rows


def previews(reader: Reader, fields: Sequence[Field], positions: Rows, *, follow: bool) -> dict[str, list[Preview]]:
    """Read the rows at once, then look at each value alone, so that one that cannot be shown is one that is not."""
    order = np.argsort(positions)
    back = np.argsort(order)
    cells = reader.cells(fields, [np.asarray(positions)[order]])[0]
    return {
        field.name: [_value(reader, field, cells[field.name].row(int(row)), follow=follow) for row in back]
        for field in fields
    }


def _value(reader: Reader, field: Field, cell: Cells, *, follow: bool) -> Preview:
    if cell.references is not None and (blob := cell.references[0].as_py()) is not None:
        return Preview({"bytes": blob["length"]}, f"{amount(blob['length'])}, an object of its own")
    place = field.kind.to_values(cell.array)[0] if isinstance(field.kind, Linked) else None
    if place is not None and not follow:
        return _place(reader, place)
    try:
        return preview(field.kind, reader.values(field, cell).item(0))
    except PenstockError as error:
        return Preview({"error": str(error)}, f"cannot be read: {error}")


def _place(reader: Reader, place: Place) -> Preview:
    uri = f"{reader.snapshot.containers[place.container]}/{place.path}"
    document = {"link": uri, "offset": place.offset, "length": place.length}
    return Preview(document, f"link to {uri} ({amount(place.length)})")
