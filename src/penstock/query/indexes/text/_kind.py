"""The text index: for each word the rows that have it, how often and where, and the length of each row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.format import Field
from penstock.format.kinds import Text
from penstock.query.indexes._kind import Run, TableLayout
from penstock.query.indexes.text._postings import (
    LENGTHS,
    MAX_BLOCK,
    POSITIONS,
    POSTINGS,
    Postings,
    decode_blocks,
    encode_blocks,
    encode_positions,
    key_groups,
    one_batch,
    pack_positions,
    position_steps,
)
from penstock.query.indexes.text._words import Tokenizer, Tokens
from penstock.table import Int64Array, Reader

_TABLES = {
    "postings": TableLayout(POSTINGS, page_bytes=32 << 10),
    "positions": TableLayout(POSITIONS),
    "lengths": TableLayout(LENGTHS),
}


@dataclass(frozen=True)
class TextKind:
    """An index of the words of a text column."""

    name: ClassVar[str] = "text"
    run_bytes: ClassVar[int] = 16 << 20
    rows_table: ClassVar[str | None] = "lengths"

    tokenizer: Tokenizer = Tokenizer()  # noqa: RUF009 - it is frozen

    @classmethod
    def make(cls, field: Field, options: Mapping[str, Any]) -> "TextKind":
        """Raises `InvalidInputError` for a column that holds no text, and for unknown options."""
        check_text(field)
        unknown = options.keys() - {"stem"}
        if unknown:
            raise InvalidInputError(f"a text index has no option {min(unknown)!r}; it has: stem")
        stem = options.get("stem")
        if not (stem is None or isinstance(stem, str)):
            raise InvalidInputError(f"stem is the name of a language, such as 'english', not {stem!r}")
        return cls(Tokenizer(stem))

    @property
    def options(self) -> Mapping[str, Any]:
        """The options as JSON."""
        return {} if self.tokenizer.stem is None else {"stem": self.tokenizer.stem}

    @property
    def tables(self) -> Mapping[str, TableLayout]:
        """Its tables by name."""
        return _TABLES

    def objects(self, reader: Reader, field: Field, positions: Int64Array) -> Mapping[str, pa.Table]:  # noqa: ARG002
        """No object is needed before the entries."""
        return {}

    def run(self, row_ids: Int64Array, values: pa.Array, objects: Mapping[str, pa.Table]) -> Run:  # noqa: ARG002
        """The words of some rows."""
        present = np.asarray(values.is_valid())
        if not present.all():
            values, row_ids = values.drop_null(), row_ids[present]
        if (row_ids[1:] < row_ids[:-1]).any():
            order = np.argsort(row_ids)
            values, row_ids = values.take(pa.array(order)), row_ids[order]
        tokens = self.tokenizer.tokens(values)
        lengths = np.diff(tokens.offsets)
        tables = _word_tables(tokens, row_ids, lengths)
        blocks = row_ids // MAX_BLOCK
        keys, groups = key_groups(pa.array(blocks))
        tables["lengths"] = encode_blocks(
            keys, groups, Postings(row_ids, np.ones_like(row_ids), lengths + 1), with_counts=False
        )
        totals = {"rows": len(row_ids), "nulls": int((~present).sum()), "length": int(lengths.sum())}
        return Run(tables, totals)

    def pack(self, table: str, entries: pa.Table) -> pa.Table:
        """Join the small blocks of a word from many runs."""
        if not len(entries):
            return entries
        batch, where = one_batch(entries.to_batches()), "a run of a text index"
        keys, groups = key_groups(batch.column("key"))
        if table == "positions":
            counts, steps = position_steps(batch, where)
            return pack_positions(keys, np.repeat(groups, counts), steps)
        counts, postings = decode_blocks(batch, where)
        return encode_blocks(keys, np.repeat(groups, counts), postings, with_counts=table == "postings")

    def entry_rows(self, table: str, entries: pa.RecordBatch) -> Int64Array:
        """The rows of blocks."""
        return decode_blocks(entries, f"table {table!r} of a text index")[1].rows


def check_text(field: Field) -> None:
    """Raise `InvalidInputError` unless a column holds text."""
    if not isinstance(field.kind, Text):
        raise InvalidInputError(f"column {field.name!r} holds {field.kind}, and words are searched in text")


def _word_tables(tokens: Tokens, row_ids: Int64Array, lengths: Int64Array) -> dict[str, pa.Table]:
    """Postings and positions of tokens of rows in ascending order."""
    by_word = pc.array_sort_indices(tokens.vocabulary)
    ranks = np.empty(len(by_word), np.int64)
    ranks[np.asarray(by_word)] = np.arange(len(by_word))
    vocabulary = tokens.vocabulary.take(by_word)
    words, documents, positions = _sorted_tokens(ranks[tokens.codes], lengths)
    is_posting = np.ones(len(words), bool)
    is_posting[1:] = (words[1:] != words[:-1]) | (documents[1:] != documents[:-1])
    starts = np.flatnonzero(is_posting)
    rows = documents[starts]
    postings = Postings(row_ids[rows], np.diff(np.append(starts, len(words))), lengths[rows])
    return {
        "postings": encode_blocks(vocabulary, words[starts], postings, with_counts=True),
        "positions": encode_positions(vocabulary, words, positions, is_posting),
    }


def _sorted_tokens(words: Int64Array, lengths: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Word, document and position of each token, sorted by all three."""
    starts = np.cumsum(lengths) - lengths
    documents = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(words)) - np.repeat(starts, lengths)
    position_bits = int(lengths.max(initial=1)).bit_length()
    document_bits = len(lengths).bit_length()
    if int(words.max(initial=0)).bit_length() + document_bits + position_bits > 63:
        order = np.argsort(words, kind="stable")
        return words[order], documents[order], positions[order]
    # numbers sort several times faster than their order is found
    keys = (((words << document_bits) | documents) << position_bits) | positions
    keys.sort()
    words = keys >> (document_bits + position_bits)
    documents = (keys >> position_bits) & ((1 << document_bits) - 1)
    return words, documents, keys & ((1 << position_bits) - 1)
