"""Merge the columns of two versions; a field id identifies a column, and its name is a property like any other."""

from collections.abc import Container
from dataclasses import dataclass, replace

from penstock.errors import InvalidInputError, MergeConflictError
from penstock.format import Field, Schema
from penstock.format.kinds import Image, Kind, Label, any_shape
from penstock.table.merging._conflicts import Conflict, Resolver, Side


@dataclass(frozen=True)
class SchemaSide:
    """The columns of one side of a merge."""

    schema: Schema
    updated: Container[int]
    """Ids of the fields with a value that this side changed."""


def merge_schemas(base: Schema, ours: SchemaSide, theirs: SchemaSide, resolver: Resolver) -> Schema:
    """The columns of both sides: our fields in order, then theirs; includes fields that either side dropped.

    A column that one side dropped is dropped, unless the other side renamed or updated it: that is a conflict, as are
    two names for one column, and two columns of one name.
    """
    merged = _Columns(base, ours, theirs, resolver)
    merged.resolve_names()
    fields = {known.id: known for known in (*theirs.schema.fields, *ours.schema.fields)}
    order = dict.fromkeys(known.id for known in (*ours.schema.fields, *theirs.schema.fields))
    try:
        return Schema(tuple(merged.field(fields[id]) for id in order))
    except InvalidInputError as error:  # each side is valid: one has `x_mask`, and the other made `x` nullable
        raise MergeConflictError(
            f"the columns of both sides do not fit together: {error}", tuple(resolver.conflicts)
        ) from None


class _Columns:
    def __init__(self, base: Schema, ours: SchemaSide, theirs: SchemaSide, resolver: Resolver) -> None:
        self._base = {known.id: known for known in base}
        self._ours = {known.id: known for known in ours.schema}
        self._theirs = {known.id: known for known in theirs.schema}
        self._resolver = resolver
        self.names: dict[int, str] = {}
        """The name of each column of the result, by field id."""
        for id in dict.fromkeys((*self._ours, *self._theirs)):
            if id in self._ours and id in self._theirs:
                self.names[id] = self._merge_name(id)
            elif id not in self._base:
                self.names[id] = (self._ours.get(id) or self._theirs[id]).name
            else:
                self._merge_drop(id, ours.updated, theirs.updated)

    def resolve_names(self) -> None:
        """Give every column a name of its own: where two have one name, the losing side's column gives way.

        It gets its name on the winning side, or is left out if the winning side does not have it.
        """
        decided: dict[str, Side] = {}
        for _ in range(2 * len(self.names) + 1):
            owners: dict[str, list[int]] = {}
            for id, name in self.names.items():
                owners.setdefault(name, []).append(id)
            if len(owners) == len(self.names):
                return
            name = next(name for name, ids in owners.items() if len(ids) > 1)
            if name not in decided:
                decided[name] = self._resolver.choose_column(
                    name, *(self._origin(side, owners[name], name) for side in (self._ours, self._theirs))
                )
            winner = self._ours if decided[name] == "ours" else self._theirs
            for id in owners[name]:
                if id in winner:
                    self.names[id] = winner[id].name
                else:
                    del self.names[id]
        raise MergeConflictError(
            f"the names of columns conflict in a circle: {', '.join(map(repr, decided))}; rename one on a branch first",
            tuple(self._resolver.conflicts),
        )

    def field(self, known: Field) -> Field:
        """A field of the result; dropped if it is no column of it."""
        sides = [side[known.id] for side in (self._ours, self._theirs) if known.id in side]
        if known.id not in self.names:
            return replace(known, dropped=True)
        return replace(
            known,
            name=self.names[known.id],
            kind=self._merge_kind(sides),
            nullable=any(side.nullable for side in sides),
            dropped=False,
        )

    def _merge_name(self, id: int) -> str:
        ours, theirs = self._ours[id].name, self._theirs[id].name
        before = self._base[id].name if id in self._base else ours
        if ours == theirs or theirs == before:
            return ours
        if ours == before:
            return theirs
        side = self._resolver.choose_column(before, f"renamed {ours!r}", f"renamed {theirs!r}")
        return ours if side == "ours" else theirs

    def _merge_drop(self, id: int, updated_by_us: Container[int], updated_by_them: Container[int]) -> None:
        """Decide about a column that only one side dropped."""
        dropped_by: Side = "theirs" if id in self._ours else "ours"
        kept, updated = (self._ours[id], updated_by_us) if id in self._ours else (self._theirs[id], updated_by_them)
        before = self._base[id].name
        changes = [f"renamed {kept.name!r}"] if kept.name != before else []
        changes += ["updated"] if id in updated else []
        if not changes:
            return
        outcomes = ("dropped", " and ".join(changes))
        if self._resolver.choose_column(before, *(outcomes if dropped_by == "ours" else outcomes[::-1])) != dropped_by:
            self.names[id] = kept.name

    def _origin(self, side: dict[int, Field], ids: list[int], name: str) -> str:
        """What a side did so that a column has this name."""
        mine = next((id for id in ids if id in side and side[id].name == name), None)
        if mine is None:
            return "has another column of this name"
        if mine not in self._base:
            return "added another column of this name"
        before = self._base[mine].name
        return f"renamed from {before!r}" if before != name else "unchanged"

    def _merge_kind(self, sides: list[Field]) -> Kind:
        """The kind of a column.

        Only an inferred shape of images can differ, if one side has images of other shapes; and the classes of a label,
        only by new ones at the end.
        """
        if isinstance(sides[0].kind, Image):
            shapes = {side.kind.shape for side in sides if isinstance(side.kind, Image)}
            return any_shape(sides[0].kind) if None in shapes else sides[0].kind
        names = sorted((side.kind.names for side in sides if isinstance(side.kind, Label)), key=len)
        if not names:
            return sides[0].kind
        if names[-1][: len(names[0])] != names[0]:
            conflict = Conflict("column", sides[0].name, None, ours="added classes", theirs="added other classes")
            raise MergeConflictError(
                f"{conflict}; both have the same class indices: add the same classes to both sides first",
                (*self._resolver.conflicts, conflict),
            )
        return Label(names[-1])
