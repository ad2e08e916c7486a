"""Open, create, fill, ask and administer tables by name."""

import os
from collections.abc import Iterable
from datetime import datetime
from typing import Any, overload

from penstock.catalog import (
    Access,
    Catalog,
    TableAddress,
    default_workspace,
    find_settings,
    is_table_address,
    open_catalog,
    own_workspace,
)
from penstock.client._ingest import ingest_files, ingest_rows, ingest_source
from penstock.client._table_info import TableInfo, table_info
from penstock.dataset import Dataset, IngestResult, ManagedTable, View, create, load, open_entry, purge, query_tables
from penstock.errors import InvalidInputError
from penstock.format import SchemaLike
from penstock.query import Params, table_names
from penstock.table import AllowedLinks, Appendable


class Client:
    """The tables of a workspace, by name.

    With a key or a URL, they are those of a server (`penstock serve`). The arguments default to `PENSTOCK_API_KEY`,
    `PENSTOCK_WORKSPACE` and `PENSTOCK_API_URL`, and these to `penstock login`. Without a workspace, it is that of the
    key. Without any of them, the tables are those of the embedded catalog of this user, in the workspace `default`.
    Rows never pass through the server.

    A table of another workspace is named `workspace/table`. Raises `AccessDeniedError` for a URL without a key,
    `InvalidInputError` for settings that cannot be right. Its methods raise `AccessDeniedError` for a key or a role
    that does not suffice, `NotFoundError`, with similar names, for an unknown table, and `StorageError` if the server
    or the store does not answer.
    """

    def __init__(self, *, api_key: str | None = None, workspace: str | None = None, api_url: str | None = None) -> None:
        self._settings = find_settings(api_key=api_key, workspace=workspace, api_url=api_url)
        self._catalog = open_catalog(self._settings)
        self._workspace = default_workspace(workspace) if self._settings is None else self._settings.workspace
        if self._workspace is not None:
            TableAddress(self._workspace, "table")  # raises for a name that no workspace can have

    def __repr__(self) -> str:
        named = "" if self._workspace is None else f", workspace={self._workspace!r}"
        return f"Client({str(self._catalog)!r}{named})"

    @property
    def workspace(self) -> str:
        """The workspace of tables that are named without one; the server is asked once, if only the key knows it."""
        if self._workspace is None:
            assert self._settings is not None
            self._workspace = own_workspace(self._settings)
        return self._workspace

    def create_table(
        self, name: str, schema: SchemaLike | None = None, *, links: AllowedLinks = False, message: str = ""
    ) -> Dataset:
        """Create an empty table; without a schema, columns are inferred from the first rows appended.

        `links` and `message` are those of `penstock.create`. Raises `AlreadyExistsError` if there is one of this name.
        """
        return create(self._table(name), schema, links=links, message=message)

    @overload
    def open_table(
        self,
        name: str,
        *,
        version: int | str | None = None,
        tag: str | None = None,
        branch: str | None = None,
        as_of: datetime | str | None = None,
        view: None = None,
        access: Access | None = None,
        links: AllowedLinks = False,
    ) -> Dataset: ...
    @overload
    def open_table(
        self, name: str, *, view: str, access: Access | None = None, links: AllowedLinks = False
    ) -> View: ...
    def open_table(
        self,
        name: str,
        *,
        version: int | str | None = None,
        tag: str | None = None,
        branch: str | None = None,
        as_of: datetime | str | None = None,
        view: str | None = None,
        access: Access | None = None,
        links: AllowedLinks = False,
    ) -> Dataset | View:
        """Open a table at its newest version, or at another one; the options are those of `penstock.load`.

        The server is asked once, for the location and for credentials of this table, which are renewed while it is in
        use, in worker processes too. `access="read"` asks for credentials that cannot write.
        """
        table = ManagedTable(self._catalog, self._address(name), access)
        if view is not None:
            if (version, tag, branch, as_of) != (None, None, None, None):
                raise InvalidInputError(f"the view {view!r} has a version of its own; pass no other one")
            return load(table, view=view, links=links)
        return load(table, version=version, tag=tag, branch=branch, as_of=as_of, links=links)

    def ingest(
        self,
        table: str,
        data: Appendable | None = None,
        *,
        files: Iterable[str | os.PathLike[str]] | None = None,
        source: str | os.PathLike[str] | None = None,
        message: str = "",
        **options: Any,
    ) -> IngestResult:
        """Add rows to a table, which is created if there is none of this name.

        data: rows, as `Dataset.append` takes them; one commit.
        files: files of data; each is a source and a commit of its own.
        source: a folder, a bucket or a file, such as `s3://bucket/path`; one commit.
        options: those of `penstock.ingest`, for `files` and `source`; files that are in the table are skipped.

        Raises what `penstock.ingest` and `Dataset.append` raise.
        """
        place = self._table(table)
        if sum(each is not None for each in (data, files, source)) != 1:
            raise InvalidInputError("ingest takes one of data, files and source")
        if source is not None:
            return ingest_source(source, place, {"message": message, **options})
        if files is not None:
            return ingest_files(files, place, {"message": message, **options})
        if options:
            raise InvalidInputError(f"{next(iter(options))} is an option for files and sources, not for data")
        assert data is not None
        return ingest_rows(data, place, message)

    def query(self, sql: str, params: Params = None, **options: Any) -> View:
        """A view of the answer to one SELECT over tables by name: `FROM robot_telemetry JOIN labels USING (episode)`.

        A name that is no word of SQL is quoted: `FROM "robot-telemetry"`, `FROM "other/table"`. The tables are those of
        their newest versions. `options` are those of `penstock.sql`; raises as `View.query` does.
        """
        tables = {name: self.open_table(name.lower(), access="read") for name in table_names(sql)}
        return query_tables(sql, tables, params, **options)

    def list_tables(self, *, dropped: bool = False) -> list[TableInfo]:
        """The tables of the workspace, sorted by name; or those that were dropped and can be restored."""
        return [table_info(entry) for entry in self._catalog.tables(self.workspace, dropped=dropped)]

    def describe_table(self, name: str) -> TableInfo:
        """A table with its newest version, rows and columns."""
        entry = self._catalog.find(self._address(name), access="read")
        return table_info(entry, load(open_entry(entry, None)))

    def drop_table(self, name: str) -> TableInfo:
        """Remove a table; `restore_table` brings it back until the time in the result, and then it is deleted."""
        dropped = self._catalog.drop(self._address(name))
        if isinstance(self._catalog, Catalog):  # a server deletes tables by itself
            purge(self._catalog)
        return table_info(dropped)

    def restore_table(self, name: str) -> TableInfo:
        """Bring back the table of this name that was dropped last. Raises `AlreadyExistsError` for a name in use."""
        return table_info(self._catalog.restore(self._address(name)))

    def rename_table(self, name: str, new: str) -> TableInfo:
        """Rename a table, in its workspace unless `new` has another one; its objects stay where they are."""
        address = self._address(name)
        return table_info(self._catalog.rename(address, self._address(new, address.workspace)))

    def register_table(self, name: str, uri: str | os.PathLike[str]) -> TableInfo:
        """Give a name to an existing table; on a server, its admin can, for locations that it was started with."""
        return table_info(self._catalog.register(self._address(name), uri))

    def workspaces(self) -> list[str]:
        """The names of the workspaces that the user may see, sorted."""
        return self._catalog.workspaces()

    def _table(self, name: str) -> ManagedTable:
        return ManagedTable(self._catalog, self._address(name))

    def _address(self, name: str, workspace: str | None = None) -> TableAddress:
        """The address of `table`, `workspace/table` or `penstock://workspace/table`."""
        if is_table_address(name):
            return TableAddress.parse(name)
        found, separator, table = name.rpartition("/")
        return TableAddress(found if separator else workspace or self.workspace, table)
