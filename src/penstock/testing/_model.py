"""A model table of plain dictionaries: any sequence of operations on a real table must equal it."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.dataset import View
from penstock.table import ROW_ID


@dataclass
class ModelTable:
    """Rows as dictionaries, in order, and every committed version."""

    columns: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    versions: list[tuple[list[str], list[dict[str, Any]]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.commit()

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows += [{name: row.get(name) for name in self.columns} for row in rows]

    def update(self, positions: Sequence[int], values: Mapping[str, Sequence[Any]]) -> None:
        for index, position in enumerate(positions):
            self.rows[position] = {**self.rows[position], **{name: new[index] for name, new in values.items()}}

    def delete(self, positions: Sequence[int]) -> None:
        deleted = set(positions)
        self.rows = [row for position, row in enumerate(self.rows) if position not in deleted]

    def add_column(self, name: str, values: Sequence[Any]) -> None:
        self.columns.append(name)
        self.rows = [{**row, name: value} for row, value in zip(self.rows, values, strict=True)]

    def drop_column(self, name: str) -> None:
        self.columns.remove(name)
        self.rows = [{other: value for other, value in row.items() if other != name} for row in self.rows]

    def rename_column(self, old: str, new: str) -> None:
        self.columns = [new if name == old else name for name in self.columns]
        self.rows = [{new if name == old else name: value for name, value in row.items()} for row in self.rows]

    def commit(self) -> None:
        self.versions.append((list(self.columns), deepcopy(self.rows)))

    def rollback(self) -> None:
        columns, rows = self.versions[-1]
        self.columns, self.rows = list(columns), deepcopy(rows)

    def check(self, view: View, version: int | None = None) -> None:
        """Assert that a view has the model's columns and rows, read one by one and by row id."""
        columns, rows = (self.columns, self.rows) if version is None else self.versions[version]
        assert sorted(view.schema.names) == sorted(columns)
        assert len(view) == len(rows)
        for real, model in zip(view, rows, strict=True):
            assert_same(real, model)
        if rows and columns:
            middle = len(rows) // 2
            assert_same(view[middle], rows[middle])
            ids = view.select([ROW_ID])[:].to_numpy()[ROW_ID]
            assert len(set(np.asarray(ids).tolist())) == len(rows)
            assert_same(view.rows(row_ids=ids[::-1][:3])[0], rows[-1])


def assert_same(real: Any, model: Any) -> None:
    """Assert that two values are equal; arrays equal lists of their items, and NaN equals NaN."""
    if isinstance(real, Mapping):
        assert isinstance(model, Mapping)
        assert set(real) == set(model)
        for name in real:
            assert_same(real[name], model[name])
    elif isinstance(real, np.ndarray | list | tuple) or isinstance(model, np.ndarray | list | tuple):
        assert len(real) == len(model), (real, model)
        for a, b in zip(real, model, strict=True):
            assert_same(a, b)
    else:
        assert real == model or (real != real and model != model), (real, model)
