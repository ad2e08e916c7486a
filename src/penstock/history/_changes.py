"""A writer's changes since its base version, and how they are rebased over other writers' commits."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from penstock.errors import ConflictError, InvalidInputError, NotFoundError
from penstock.format import DataFile, Field, Fragment, IngestManifest, Schema, Snapshot, unpack_bitmap
from penstock.format.kinds import Label
from penstock.history._tree import Tree


@dataclass(frozen=True)
class AddField:
    """Adds a column."""

    field: Field
    computed: bool = False
    """Whether its values were computed from the rows of the base."""

    def apply(self, schema: Schema) -> Schema:
        if self.field.name in schema:
            raise ConflictError(
                f"another writer added a column {self.field.name!r}; reload, then add it by another name"
            )
        return Schema((*schema.fields, self.field))


@dataclass(frozen=True)
class DropField:
    """Drops a column."""

    id: int
    name: str

    def apply(self, schema: Schema) -> Schema:
        field = schema.by_id(self.id)
        if field.dropped or field.name != self.name:
            raise ConflictError(f"another writer dropped or renamed column {self.name!r}; reload, then drop it again")
        return schema.with_field(replace(field, dropped=True))


@dataclass(frozen=True)
class RenameField:
    """Renames a column."""

    id: int
    old: str
    new: str

    def apply(self, schema: Schema) -> Schema:
        field = schema.by_id(self.id)
        if field.dropped or field.name != self.old:
            raise ConflictError(f"another writer dropped or renamed column {self.old!r}; reload, then rename it again")
        if self.new in schema:
            raise ConflictError(f"another writer added a column {self.new!r}; reload, then choose another name")
        return schema.with_field(replace(field, name=self.new))


@dataclass(frozen=True)
class MakeNullable:
    """Makes a column nullable."""

    id: int

    def apply(self, schema: Schema) -> Schema:
        return schema.with_field(replace(schema.by_id(self.id), nullable=True))


@dataclass(frozen=True)
class ExtendLabel:
    """Adds classes to a label column, after the existing ones: class indices stay."""

    id: int
    names: tuple[str, ...]

    def apply(self, schema: Schema) -> Schema:
        known = schema.by_id(self.id)
        assert isinstance(known.kind, Label)
        names = tuple(dict.fromkeys((*known.kind.names, *self.names)))
        if names[len(known.kind.names) :] != self.names:
            raise ConflictError(f"another writer added other classes to column {known.name!r}; reload and run it again")
        return schema.with_field(replace(known, kind=Label(names)))


Edit = AddField | DropField | RenameField | MakeNullable | ExtendLabel


@dataclass
class Changes:
    """Everything staged since the base version, in a form that can be rebased onto another version."""

    base: Snapshot
    appended: list[Fragment] = field(default_factory=list)
    replaced: dict[int, tuple[Fragment, Fragment]] = field(default_factory=dict)
    """By fragment id: the fragment in the base, and as changed."""
    compacted: list[tuple[tuple[Fragment, ...], tuple[Fragment, ...]]] = field(default_factory=list)
    """Consecutive fragments, and the fragments that replace them."""
    edits: list[Edit] = field(default_factory=list)
    containers: dict[str, str] = field(default_factory=dict)
    sources: dict[str, tuple[IngestManifest, ...]] = field(default_factory=dict)
    """Ingest manifests, by source URI."""
    operations: list[str] = field(default_factory=list)
    """Operations in order, without repeats, for the log."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows added, updated and deleted, for the log."""
    pid: int = field(default_factory=os.getpid)
    """The process that staged them."""

    def __bool__(self) -> bool:
        return bool(self.appended or self.replaced or self.compacted or self.edits or self.containers or self.sources)

    def record(self, operation: str, **counts: int) -> None:
        """Add an operation and its row counts to the log entry."""
        if operation not in self.operations:
            self.operations.append(operation)
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def replace(self, changed: Sequence[tuple[Fragment, Fragment]]) -> None:
        """Record changed fragments: pairs of before and after."""
        indices = {fragment.id: index for index, fragment in enumerate(self.appended)}
        for before, after in changed:
            if after.id in indices:
                self.appended[indices[after.id]] = after
            else:
                self.replaced[after.id] = (self.replaced.get(after.id, (before, before))[0], after)

    def apply(self, tree: Tree, head: Snapshot) -> Snapshot:
        """The head with these changes on top; raises `ConflictError`."""
        schema = head.schema
        for edit in self.edits:
            try:
                schema = edit.apply(schema)
            except (InvalidInputError, NotFoundError) as error:  # valid on the base, but not on the head
                raise ConflictError(f"another writer changed the columns: {error}; reload") from None
        self._check_columns(head)
        self._check_sources(head)
        merged = self._merge(tree, head)
        nodes = tree.replace(head.nodes, merged) if merged else head.nodes
        nodes = tree.splice(nodes, self._unchanged_since(tree, head)) if self.compacted else nodes
        return replace(
            head,
            schema=schema.with_dropped(self.base.schema.fields),
            nodes=tree.append(nodes, self.appended) if self.appended else nodes,
            containers={**head.containers, **self.containers},
            sources=merge_sources(head.sources, self.sources),
            claims=max(head.claims, self.base.claims),
        )

    def _check_columns(self, head: Snapshot) -> None:
        """Raise `ConflictError` if rows that one side added lack a value for a column that the other side added."""
        before = {known.id for known in self.base.schema.fields}
        if self.appended:
            for theirs in head.schema:
                if theirs.id not in before and not theirs.nullable and theirs.fill is None:
                    raise ConflictError(
                        f"another writer added column {theirs.name!r}, which every row needs; reload and append again"
                    )
        for edit in self.edits:
            if isinstance(edit, AddField) and edit.computed and head.fragments != self.base.fragments:
                raise ConflictError(
                    f"rows were added while column {edit.field.name!r} was computed; reload, add it again"
                )

    def _check_sources(self, head: Snapshot) -> None:
        """Raise `ConflictError` if another writer ingested from the same source: the rows may be the same."""
        for uri in self.sources:
            if set(head.sources.get(uri, ())) - set(self.base.sources.get(uri, ())) - set(self.sources[uri]):
                raise ConflictError(
                    f"another writer ingested objects of {uri} in the meantime; reload and run it again"
                )

    def _merge(self, tree: Tree, head: Snapshot) -> dict[int, Fragment]:
        if head.nodes == self.base.nodes:
            return {id: ours for id, (_, ours) in self.replaced.items()}
        firsts = np.sort(np.array([base.row_ids[0].start for base, _ in self.replaced.values()], np.int64))
        theirs = (
            {fragment.id: fragment for fragment, _ in tree.fragments_with_ids(head.nodes, firsts)}
            if len(firsts)
            else {}
        )
        merged = {}
        for id, (base, ours) in self.replaced.items():
            if id not in theirs:
                raise ConflictError("another writer rewrote rows that you changed; reload")
            merged[id] = merge_fragment(base, ours, theirs[id], self._names)
            restored = (base.deleted_rows & ~theirs[id].deleted_rows).any()
            if (theirs[id].files != base.files or restored) and any(
                isinstance(edit, AddField) and edit.computed for edit in self.edits
            ):
                raise ConflictError("values changed while a column was computed from them; reload, add it again")
        return merged

    def _unchanged_since(self, tree: Tree, head: Snapshot) -> list[tuple[tuple[Fragment, ...], tuple[Fragment, ...]]]:
        """The compactions whose fragments are unchanged in the head; the others are dropped."""
        current = {fragment.id: fragment for fragment in tree.fragments(head.nodes)}
        return [(old, new) for old, new in self.compacted if all(current.get(part.id) == part for part in old)]

    def _names(self, ids: Sequence[int]) -> str:
        return ", ".join(sorted(repr(known.name) for known in self.base.schema.fields if known.id in ids))


def merge_sources(
    known: Mapping[str, tuple[IngestManifest, ...]], more: Mapping[str, tuple[IngestManifest, ...]]
) -> dict[str, tuple[IngestManifest, ...]]:
    """The ingest manifests of both, by source URI, each once."""
    return {uri: tuple(dict.fromkeys((*known.get(uri, ()), *more.get(uri, ())))) for uri in {**known, **more}}


def merge_fragment(base: Fragment, ours: Fragment, theirs: Fragment, names: Callable[[Sequence[int]], str]) -> Fragment:
    """A fragment with both sides' changes.

    Raises `ConflictError` if both changed the same rows of a file, or one changed a row that the other deleted.
    """
    if theirs == base:
        return ours
    ours_only = [file for file in ours.files if file not in base.files]
    theirs_only = [file for file in theirs.files if file not in base.files]
    for file in ours_only:
        for other in theirs_only:
            shared = set(file.fields) & set(other.fields)
            if shared and file.row_start < other.row_end and other.row_start < file.row_end:
                raise ConflictError(
                    f"column {names(list(shared))}: rows near row id {base.row_ids[0].start + file.row_start} were"
                    " updated by you and by another writer; reload and update again"
                )
    _check_deleted(base, ours_only, theirs)
    _check_deleted(base, theirs_only, ours)
    replaced = {file.id for file in base.files if file not in theirs.files}
    deleted = (ours.deleted_rows & ~base.deleted_rows) | theirs.deleted_rows  # a reset may have restored rows
    bounds = {bound.field: bound for bound in ours.statistics}
    bounds.update({bound.field: bound.union(bounds.get(bound.field)) for bound in theirs.statistics})
    merged = replace(
        ours,
        files=(*(file for file in ours.files if file.id not in replaced), *theirs_only),
        statistics=tuple(bounds.values()),
    )
    merged = replace(merged, deleted=None, live=-1)
    return merged.without_rows(deleted) if deleted.any() else merged


def _check_deleted(base: Fragment, updated: Sequence[DataFile], other: Fragment) -> None:
    newly = other.deleted_rows & ~base.deleted_rows
    for file in updated:
        if not newly[file.row_start : file.row_end].any():
            continue
        known = {"", *(old.id for old in base.files)}
        rows: npt.NDArray[np.bool_] = np.zeros(file.rows, bool)
        for change in file.changed:
            if change.base in known:
                rows |= unpack_bitmap(change.rows, file.rows)
        both = np.flatnonzero(rows & newly[file.row_start : file.row_end])
        if len(both):
            ids = base.all_row_ids[file.row_start + both[:5]].tolist()
            raise ConflictError(f"rows with ids {ids} were updated by one writer and deleted by another; reload")
