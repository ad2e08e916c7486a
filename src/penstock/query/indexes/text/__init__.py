"""Text indexes: words, their postings in pages, and what a query finds in them."""

from penstock.query.indexes.text._kind import TextKind, check_text
from penstock.query.indexes.text._postings import (
    MAX_BLOCK,
    NO_POSTINGS,
    Numbers,
    Postings,
    decode_blocks,
    join_postings,
    one_batch,
    position_steps,
    run_starts,
    with_positions,
)
from penstock.query.indexes.text._words import Query, Tokenizer, Tokens

__all__ = [
    "MAX_BLOCK",
    "NO_POSTINGS",
    "Numbers",
    "Postings",
    "Query",
    "TextKind",
    "Tokenizer",
    "Tokens",
    "check_text",
    "decode_blocks",
    "join_postings",
    "one_batch",
    "position_steps",
    "run_starts",
    "with_positions",
]
