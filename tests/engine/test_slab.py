"""The memory of columns of a fixed shape."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.device import Slab
from penstock.engine.planning import Layout
from penstock.format import Field, Schema
from penstock.format.kinds import Tensor


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_a_slab_that_is_too_small_grows_and_keeps_its_rows(sizes: list[int], random: Any) -> None:
    schema = Schema((Field(1, "n", Tensor("int64"), True, "none", 1 << 20, 1 << 18),))
    columns = Layout(schema, ["n"], range(0)).fixed
    slab = Slab(columns, 25)
    held: dict[int, int] = {}
    for number, rows in enumerate(sizes):
        start = slab.allocate(rows)
        start = slab.grow(rows) if start is None else start
        slab.buffer("n", start, rows)[:] = number
        slab.masks["n"][start : start + rows] = number % 2
        held[number] = start
        if random.random() < 0.3:
            gone = random.choice(sorted(held))
            slab.free(held.pop(gone), sizes[gone])
        for known, first in held.items():
            assert (slab.buffer("n", first, sizes[known]) == known).all()
            assert (slab.masks["n"][first : first + sizes[known]] == bool(known % 2)).all()
