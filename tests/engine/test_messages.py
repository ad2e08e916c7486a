"""Values on their way between processes: equal after the way, in the slot as far as there is room."""

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runners import compact, expand, pack, unpack

Array = npt.NDArray[Any]


def array_of(size: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@given(
    st.lists(st.integers(0, 30_000), max_size=8),
    st.lists(st.tuples(st.integers(0, 90_000), st.integers(0, 20_000)), max_size=4),
    st.sampled_from([None, 0, 5000, 40_000, 100_000]),
)
@settings(deadline=None)
def test_arrays_are_equal_after_the_way(sizes: list[int], taken: list[tuple[int, int]], room: int | None) -> None:
    """Some are views of the slot, and none of the others is written over them."""
    slot = None if room is None else array_of(room, 99)
    views = [slot[start : start + size] for start, size in taken] if slot is not None else []
    value = {"own": [array_of(size, size) for size in sizes], "views": views, "text": "x"}
    expected = {"own": [a.copy() for a in value["own"]], "views": [a.copy() for a in views]}  # type: ignore[attr-defined]
    shipment, memory = pack(value, slot)
    found = unpack(shipment, memory, slot)
    del memory
    assert found["text"] == "x"
    for name in ("own", "views"):
        assert all(map(np.array_equal, found[name], expected[name]))
        assert all(array.flags.writeable for array in found[name])


@given(st.integers(0, 40), st.integers(0, 3), st.booleans())
@settings(deadline=None)
def test_lists_of_arrays_are_equal_after_the_way(rows: int, seed: int, nulls: bool) -> None:
    rng = np.random.default_rng(seed)
    ragged: list[Any] = [None if nulls and k % 5 == 0 else rng.integers(0, 9, (k % 4, 2)) for k in range(rows)]
    batch = {"ragged": ragged, "text": [f"row {k}" for k in range(rows)], "mask": np.arange(rows) % 2 == 0}
    found = expand(compact(batch))
    assert list(found) == list(batch)
    assert found["text"] == batch["text"]
    assert found["mask"] is batch["mask"]
    for one, other in zip(found["ragged"], ragged, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (np.array_equal(one, other) and one.dtype == other.dtype)
