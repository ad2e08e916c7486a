"""Arrays that cross from one process to another in memory that is used again."""

import gc
import os

import numpy as np

from penstock.device import MIN_BYTES, Inbox, Outbox, Parcel, opened
from tests.engine.watch import open_files

SHAPE = (MIN_BYTES,)


def sent(outbox: Outbox, value: int) -> Parcel:
    array = outbox.empty(SHAPE, np.uint8)
    array[:] = value
    parcel = outbox.post(array.ctypes.data, array.nbytes)
    assert parcel is not None
    return parcel


def test_memory_is_used_again_when_both_sides_have_let_go() -> None:
    outbox, inbox = Outbox(), Inbox()
    first = sent(outbox, 1)
    held = inbox.open(first)
    second = sent(outbox, 2)
    assert (held == 1).all()
    assert first.fd != second.fd
    assert (inbox.open(second) == 2).all()
    third = sent(outbox, 3)
    assert third == second
    assert (inbox.open(third) == 3).all()
    del held
    assert sent(outbox, 4) in (first, second)


def test_an_inbox_knows_memory_from_other_memory_with_the_same_number() -> None:
    inbox = Inbox()
    parcels = []
    for value in range(20):
        outbox = Outbox()
        parcels.append(sent(outbox, value))
        assert (inbox.open(parcels[-1]) == value).all()
        del outbox
    assert len({parcel.fd for parcel in parcels}) < len(parcels), "numbers come again"


def test_an_outbox_has_only_so_many_and_leaves_no_file_open() -> None:
    gc.collect()
    before = open_files()
    outbox = Outbox(3)
    arrays = [outbox.empty(SHAPE, np.uint8) for _ in range(5)]
    parcels = [outbox.post(array.ctypes.data, array.nbytes) for array in arrays]
    assert [parcel is None for parcel in parcels] == [False] * 3 + [True] * 2
    taken = [opened(parcel) for parcel in parcels if parcel is not None]
    assert {parcel.pid for parcel in parcels if parcel is not None} == {os.getpid()}
    del outbox, arrays, taken, parcels
    gc.collect()
    assert open_files() <= before
