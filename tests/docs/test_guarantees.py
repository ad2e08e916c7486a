"""Every promise on the page of guarantees names a test that exists."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "guarantees.md"


def test_every_promise_names_a_test() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "| promise |" not in line]
    assert len(rows) > 40
    for row in rows:
        found = re.search(r"\| `([a-z0-9_/]+\.py)::(test_[a-z0-9_]+)` \|$", row)
        assert found is not None, row
        file, name = found.groups()
        assert f"\ndef {name}(" in (TESTS / file).read_text(), row
