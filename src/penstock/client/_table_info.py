"""What a client tells about a table."""

from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.catalog import CatalogEntry
from penstock.dataset import Dataset
from penstock.format import Schema


@dataclass(frozen=True)
class TableInfo:
    """A table of a workspace."""

    name: str
    workspace: str
    uri: str
    """Where its objects are."""
    created: datetime
    dropped: datetime | None = None
    """When it was dropped; None unless it was."""
    restorable_until: datetime | None = None
    """Until when a dropped table can be restored."""
    version: str | None = None
    """Its newest version; this, `rows` and `schema` are known to `describe_table` only, which opens the table."""
    rows: int | None = None
    schema: Schema | None = None

    @property
    def address(self) -> str:
        """Its name wherever a place is taken: `penstock://workspace/table`."""
        return f"penstock://{self.workspace}/{self.name}"


def table_info(entry: CatalogEntry, dataset: Dataset | None = None) -> TableInfo:
    """What the catalog knows about a table, and the table about itself, if it was opened."""
    info = TableInfo(
        entry.address.table, entry.address.workspace, entry.uri, _time(entry.created_us),
        None if entry.dropped_us is None else _time(entry.dropped_us),
        None if entry.purge_us is None else _time(entry.purge_us),
    )  # fmt: skip
    if dataset is None:
        return info
    opened = {"version": dataset.version, "rows": len(dataset), "schema": dataset.schema}
    return TableInfo(**vars(info) | opened)


def _time(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)
