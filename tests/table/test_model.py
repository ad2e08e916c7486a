"""Stateful test: any sequence of operations equals a model of dictionaries, on every store."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import penstock
from penstock import Column, Json, Label, List, Struct, Tensor, Text
from penstock.testing import ModelTable
from tests.servers import KINDS, new_location

int16 = st.integers(-(2**15), 2**15 - 1)
float32 = st.floats(width=32, allow_nan=False)
byte = st.integers(0, 255)
text = st.text(max_size=12)

VALUES: dict[str, tuple[penstock.format.kinds.Kind, st.SearchStrategy[Any]]] = {
    "int16": (Tensor("int16"), int16),
    "float32": (Tensor("float32"), float32),
    "bool": (Tensor("bool"), st.booleans()),
    "bfloat16": (Tensor("bfloat16"), st.integers(-100, 100).map(float)),
    "complex64": (Tensor("complex64"), st.complex_numbers(width=64, allow_nan=False)),
    "pair": (Tensor("uint8", (2, 2)), st.lists(st.lists(byte, min_size=2, max_size=2), min_size=2, max_size=2)),
    "ragged": (Tensor("int16", (None,)), st.lists(int16, max_size=5)),
    "boxes": (penstock.Boxes(), st.lists(st.lists(float32, min_size=4, max_size=4), max_size=3)),
    "text": (Text(), text),
    "bytes": (penstock.Bytes(), st.binary(max_size=20)),
    "json": (Json(), st.dictionaries(text, st.integers() | text | st.none(), max_size=3)),
    "label": (Label(("a", "b", "c")), st.integers(0, 2)),
    "list": (List(Text()), st.lists(text, max_size=3)),
    "struct": (Struct({"n": Tensor("int16"), "t": Text()}), st.fixed_dictionaries({"n": int16, "t": text})),
}  # fmt: skip


@st.composite
def columns(draw: st.DrawFn) -> tuple[Column, str]:
    kind_name = draw(st.sampled_from(sorted(VALUES)))
    codec = draw(st.sampled_from(["none", "none", "lz4", "zstd:1"]))
    tiny = draw(st.booleans())  # many pages and files, even of few rows
    sizes = {"page_bytes": 16, "file_bytes": 64} if tiny else {}
    return Column(VALUES[kind_name][0], nullable=draw(st.booleans()), codec=codec, **sizes), kind_name


class TableMachine(RuleBasedStateMachine):
    store_kind: str

    @initialize(schema=st.dictionaries(st.sampled_from("abcd"), columns(), min_size=1, max_size=4))
    def create(self, schema: dict[str, tuple[Column, str]]) -> None:
        place = new_location(self.store_kind)
        self.uri, self.options = place.uri, place.options
        self.kinds = {name: (word, column.nullable) for name, (column, word) in schema.items()}
        self.committed_kinds = dict(self.kinds)
        self.ds = penstock.create(
            self.uri, {name: column for name, (column, _) in schema.items()}, storage_options=self.options
        )
        self.model = ModelTable(list(schema))

    def values(self, data: st.DataObject, name: str, count: int) -> list[Any]:
        word, nullable = self.kinds[name]
        value = VALUES[word][1]
        return data.draw(st.lists(value | st.none() if nullable else value, min_size=count, max_size=count), name)

    def positions(self, data: st.DataObject) -> list[int]:
        return data.draw(st.lists(st.integers(0, len(self.model.rows) - 1), max_size=4, unique=True), "positions")

    def chosen(self, data: st.DataObject, positions: list[int]) -> dict[str, Any]:
        """The same rows, chosen in any way; a mask and SQL choose them in the order of the table."""
        ids = np.asarray(self.ds["_row_id"][positions]) if positions else np.zeros(0, np.int64)
        ways: dict[str, Any] = {
            "positions": {"positions": positions},
            "row ids": {"row_ids": ids},
            "view": {"where": self.ds[positions]},
            "view of row ids": {"where": self.ds.rows(row_ids=ids).select([])},
        }
        if positions == sorted(positions):
            listed = ", ".join(map(str, ids.tolist()))
            ways["mask"] = {"where": np.isin(np.arange(len(self.model.rows)), positions)}
            ways["sql"] = {"where": f"_row_id IN ({listed})" if positions else "false"}
        found: dict[str, Any] = ways[data.draw(st.sampled_from(sorted(ways)), "chosen by")]
        return found

    @rule(data=st.data(), count=st.integers(0, 7), form=st.sampled_from(["columns", "rows", "generator", "arrow"]))
    def append(self, data: st.DataObject, count: int, form: str) -> None:
        columns = {name: self.values(data, name, count) for name in self.kinds}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        given: Any = {"columns": columns, "rows": rows, "generator": iter(rows)}.get(form)
        if form == "arrow":
            given = pa.table({name: self.ds.schema[name].kind.to_array(values) for name, values in columns.items()})
        assert self.ds.append(given) == count
        self.model.append(rows)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        where = self.positions(data)
        names = data.draw(st.lists(st.sampled_from(sorted(self.kinds)), min_size=1, unique=True), "columns")
        values = {name: self.values(data, name, len(where)) for name in names}
        assert self.ds.update(**self.chosen(data, where), data=values) == len(where)
        self.model.update(where, values)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        where = self.positions(data)
        assert self.ds.delete(**self.chosen(data, where)) == len(where)
        self.model.delete(where)

    @precondition(lambda self: any(word == "int16" for word, _ in self.kinds.values()))
    @rule(data=st.data(), bound=int16)
    def update_by_sql(self, data: st.DataObject, bound: int) -> None:
        name = data.draw(st.sampled_from(sorted(n for n, (word, _) in self.kinds.items() if word == "int16")))
        matching = [i for i, row in enumerate(self.model.rows) if row[name] is not None and row[name] > bound]
        values = {name: f"{bound} - CAST({name} % 7 AS SMALLINT)" if bound > 0 else str(bound)}
        assert self.ds.update(where=f"{name} > {bound}", values=values) == len(matching)
        new = [bound - int(np.fmod(self.model.rows[i][name], 7)) if bound > 0 else bound for i in matching]
        self.model.update(matching, {name: new})

    @precondition(lambda self: any(word == "int16" for word, _ in self.kinds.values()))
    @rule(data=st.data(), bound=int16)
    def delete_by_expression(self, data: st.DataObject, bound: int) -> None:
        name = data.draw(st.sampled_from(sorted(n for n, (word, _) in self.kinds.items() if word == "int16")))
        matching = [i for i, row in enumerate(self.model.rows) if row[name] is not None and row[name] > bound]
        assert self.ds.delete(pc.field(name) > bound) == len(matching)
        self.model.delete(matching)

    @precondition(lambda self: len(self.kinds) < 6)
    @rule(
        data=st.data(),
        column=columns(),
        name=st.sampled_from("abcdefgh"),
        how=st.sampled_from(["fill", "values", "compute"]),
    )
    def add_column(self, data: st.DataObject, column: tuple[Column, str], name: str, how: str) -> None:
        if name in self.kinds:
            with pytest.raises(penstock.errors.InvalidInputError, match="already"):
                self.ds.add_column(name, column[0], fill=1)
            return
        self.kinds[name] = (column[1], column[0].nullable)
        count = len(self.model.rows)
        if how == "fill":
            values = self.values(data, name, 1) * count
            if not values or (values[0] is None):
                values = data.draw(VALUES[column[1]][1].map(lambda value: [value] * count), "fill")
            self.ds.add_column(name, column[0], fill=values[0] if values else data.draw(VALUES[column[1]][1]))
        else:
            values = self.values(data, name, count)
            rest = iter(values)
            if how == "values":
                self.ds.add_column(name, column[0], values=values)
            else:
                first = sorted(self.model.columns)[0]
                self.ds.add_column(
                    name, column[0], compute=lambda batch: [next(rest) for _ in batch[first]], inputs=[first]
                )
        self.model.add_column(name, values)

    @precondition(lambda self: len(self.kinds) > 1)
    @rule(data=st.data())
    def drop_column(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.kinds)))
        self.ds.drop_column(name)
        self.model.drop_column(name)
        del self.kinds[name]

    @rule(data=st.data(), new=st.sampled_from("abcdefgh"))
    def rename_column(self, data: st.DataObject, new: str) -> None:
        old = data.draw(st.sampled_from(sorted(self.kinds)))
        if new in self.kinds:
            with pytest.raises(penstock.errors.InvalidInputError):
                self.ds.rename_column(old, new)
            return
        self.ds.rename_column(old, new)
        self.model.rename_column(old, new)
        self.kinds = {new if name == old else name: word for name, word in self.kinds.items()}

    @rule()
    def commit(self) -> None:
        changed = self.ds.summary().has_changes
        self.ds.commit("step")
        assert not self.ds.summary().has_changes
        if changed:
            self.model.commit()
        self.committed_kinds = dict(self.kinds)
        assert self.ds.version == f"main@{len(self.model.versions) - 1}"

    @rule()
    def rollback(self) -> None:
        self.ds.rollback()
        self.model.rollback()
        self.kinds = dict(self.committed_kinds)

    @rule()
    def reload(self) -> None:
        self.rollback()
        self.ds = penstock.load(self.uri, storage_options=self.options)

    @rule(data=st.data())
    def read_older_version(self, data: st.DataObject) -> None:
        version = data.draw(st.integers(0, len(self.model.versions) - 1))
        old = penstock.load(self.uri, version=version, storage_options=self.options)
        self.model.check(old, version)

    @invariant()
    def equals_model(self) -> None:
        if hasattr(self, "model"):
            self.model.check(self.ds)

    def teardown(self) -> None:
        if hasattr(self, "ds"):
            report = penstock.verify(self.uri, storage_options=self.options)
            assert report.damaged == []


EXAMPLES = {"memory": (60, 30), "folder": (30, 25)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_any_sequence_of_operations_equals_the_model(kind: str) -> None:
    machine = type(f"{kind}Machine", (TableMachine,), {"store_kind": kind})
    examples, steps = EXAMPLES.get(kind, (12, 15))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes longer than finding
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_page_batches_of_fixed_width_columns_are_views(tmp_path: Any) -> None:
    ds = penstock.create(tmp_path / "t", {"x": Column(Tensor("uint8", (64,)), page_bytes=640)})
    ds.append({"x": np.arange(64 * 20, dtype=np.uint8).reshape(20, 64)})
    batches = list(ds.batches(None))
    assert [len(batch["x"]) for batch in batches] == [10, 10]
    assert all(not batch["x"].flags.owndata for batch in batches)  # type: ignore[union-attr]
