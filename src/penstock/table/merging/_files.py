"""Merge the files of a fragment that two sides changed, without reading any."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from penstock.format import DataFile, Fragment
from penstock.table._pages import Int64Array
from penstock.table._statistics import merge_statistics
from penstock.table._update import Mask


@dataclass(frozen=True)
class FileRows:
    """The rows of a fragment that a file holds, and its fields."""

    fragment: Fragment
    file: DataFile

    @property
    def fields(self) -> tuple[int, ...]:
        return self.file.fields

    def row_ids(self) -> Int64Array:
        """The ids of the live rows."""
        rows = self.fragment.live_rows
        return self.fragment.row_ids_at(rows[(rows >= self.file.row_start) & (rows < self.file.row_end)])


def all_files(fragment: Fragment) -> list[FileRows]:
    return [FileRows(fragment, file) for file in fragment.files]


def adopt_files(
    base: Fragment, ours: Fragment, theirs: Fragment, *, keep: Mask, keep_fields: Set[int]
) -> tuple[Fragment, list[FileRows]]:
    """Our fragment with the files that only they replaced; and their files that must be merged value by value.

    `keep` masks the rows that stay live although they deleted them, and `keep_fields` are the columns that stay
    although they dropped them: what their files hold of these is not part of their version.
    """
    gone = [file for file in base.files if file not in theirs.files]
    new = [file for file in theirs.files if file not in base.files]
    our_new = [file for file in ours.files if file not in base.files]
    contested_gone = {file for file in gone if file not in ours.files}
    contested = {
        file
        for file in new
        if _overlaps_any(file, our_new)
        or keep[file.row_start : file.row_end].any()
        or not keep_fields.isdisjoint(file.fields)
    }
    size = -1
    while size < len(contested) + len(contested_gone):  # a file and what replaces it are adopted together or not at all
        size = len(contested) + len(contested_gone)
        contested |= {file for file in new if _overlaps_any(file, contested_gone)}
        contested_gone |= {file for file in gone if _overlaps_any(file, contested)}
    removed = set(gone) - contested_gone
    adopted = [file for file in new if file not in contested]
    statistics = theirs.statistics
    if ours.statistics != base.statistics:
        bounds = merge_statistics(*({bound.field: bound for bound in side.statistics} for side in (ours, theirs)))
        statistics = tuple(bounds.values())
    after = replace(
        ours, files=(*(file for file in ours.files if file not in removed), *adopted), statistics=statistics
    )
    return after, [FileRows(theirs, file) for file in new if file in contested]


def _overlaps_any(file: DataFile, others: Sequence[DataFile] | set[DataFile]) -> bool:
    return any(
        file.row_start < other.row_end
        and other.row_start < file.row_end
        and not set(file.fields).isdisjoint(other.fields)
        for other in others
    )
