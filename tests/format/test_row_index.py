"""Row indexes: what is decoded is what was encoded, and any other bytes are refused."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptError
from penstock.format import decode_row_index, encode_row_index

ITEMS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(0, 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float16(): st.floats(width=16, allow_nan=False).map(np.float16),
    pa.large_binary(): st.binary(max_size=5),
}


@st.composite
def indexes(draw: st.DrawFn) -> tuple[dict[str, pa.Array], pa.DataType]:
    arrow_type = draw(st.sampled_from(list(ITEMS)))
    values = st.lists(ITEMS[arrow_type] | st.none(), max_size=8).map(lambda items: pa.array(items, arrow_type))
    return draw(st.dictionaries(st.text("0123456789abcdef", min_size=32, max_size=32), values, max_size=4)), arrow_type


@given(indexes())
def test_decode_is_the_inverse_of_encode(index: tuple[dict[str, pa.Array], pa.DataType]) -> None:
    values, arrow_type = index
    data = encode_row_index(values, arrow_type)
    found = decode_row_index(data, arrow_type, "index")
    assert list(found) == list(values)
    assert all(found[file].equals(values[file]) for file in values)


@given(indexes(), st.data())
def test_damage_and_other_types_are_refused(
    index: tuple[dict[str, pa.Array], pa.DataType], data: st.DataObject
) -> None:
    encoded = encode_row_index(*index)
    at = data.draw(st.floats(0, 1, exclude_max=True))
    damaged = bytearray(encoded)
    damaged[int(at * len(encoded))] ^= data.draw(st.integers(1, 255))
    for content in (bytes(damaged), encoded[: int(at * len(encoded))]):
        with pytest.raises(CorruptError, match="index is damaged"):
            decode_row_index(content, index[1], "index")
    other = data.draw(st.sampled_from([each for each in ITEMS if each != index[1]]))
    with pytest.raises(CorruptError, match="no index of this column"):
        decode_row_index(encoded, other, "index")
