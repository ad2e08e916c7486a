"""Counter-based random numbers: the values are a contract, since they determine every user's order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan import derive_key, random_u64

words = st.integers(-(2**63), 2**64 - 1)


def test_values_match_splitmix64() -> None:
    """The published first outputs for seed 0 (counters start at 0, splitmix64 at its first increment)."""
    reference = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert random_u64(0, np.arange(1, 4)).tolist() == reference
    assert derive_key(0) == reference[0]


def test_golden_values() -> None:
    """A change here changes every user's order and resumes old checkpoints at the wrong rows."""
    assert random_u64(derive_key(1, 2, 3), np.array([0, 7, 1 << 40])).tolist() == [
        0xBF3F2DE408FE6EB2, 0xE329A73209FD4A6E, 0x60A782261FB33643,
    ]  # fmt: skip
    assert [derive_key(), derive_key(0, 0), derive_key(1, 2, 3), derive_key(3, 2, 1), derive_key(-1)] == [
        0, 0xA706DD2F4D197E6F, 0xD0734750FDE362B3, 0xD62A7F6E291FEF64, 0xE4D971771B652C20,
    ]  # fmt: skip


@given(key=words.map(derive_key), counters=st.lists(st.integers(0, 2**62), max_size=20))
@settings(deadline=None)
def test_a_value_depends_on_key_and_counter_alone(key: int, counters: list[int]) -> None:
    together = random_u64(key, np.array(counters, np.int64)).tolist()
    assert together == [int(random_u64(key, np.array([counter]))[0]) for counter in counters]
    assert len(set(together)) == len(set(counters))


@given(st.lists(words, min_size=1, max_size=4), st.data())
@settings(deadline=None)
def test_a_key_depends_on_every_word_and_on_their_order(many: list[int], data: st.DataObject) -> None:
    key = derive_key(*many)
    assert 0 <= key < 2**64
    assert key == derive_key(*many)
    assert key != derive_key(*many, 0)
    at = data.draw(st.integers(0, len(many) - 1))
    assert key != derive_key(*many[:at], many[at] ^ 1, *many[at + 1 :])
    if len({word % 2**64 for word in many}) > 1:
        assert key != derive_key(*reversed(many)) or many == many[::-1]


def test_bits_are_unbiased() -> None:
    """Each bit is set in half of the values, for consecutive keys and counters alike."""
    by_counter = random_u64(derive_key(5), np.arange(20_000))
    by_key = np.array([derive_key(5, counter) for counter in range(20_000)], np.uint64)
    for values in (by_counter, by_key):
        shares = [float(((values >> np.uint64(bit)) & np.uint64(1)).mean()) for bit in range(64)]
        assert max(abs(share - 0.5) for share in shares) < 0.02
