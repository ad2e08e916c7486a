"""Arrays that cross between processes in pooled shared memory."""

import gc
import os

import numpy as np
import pytest

from penstock.device import MIN_SHARED_BYTES, SharedMemoryHandle, SharedMemoryPool, SharedMemoryReceiver
from tests.engine.watch import open_files

SHAPE = (MIN_SHARED_BYTES,)


def export(pool: SharedMemoryPool, value: int) -> SharedMemoryHandle:
    array = pool.allocate(SHAPE, np.uint8)
    array[:] = value
    handle = pool.export(array.ctypes.data, array.nbytes)
    assert handle is not None
    return handle


def test_a_segment_is_reused_after_both_processes_release_it() -> None:
    pool, receiver = SharedMemoryPool(), SharedMemoryReceiver()
    first = export(pool, 1)
    held = receiver.attach(first)
    second = export(pool, 2)
    assert (held == 1).all()
    assert first.fd != second.fd
    assert (receiver.attach(second) == 2).all()
    third = export(pool, 3)
    assert third == second
    assert (receiver.attach(third) == 3).all()
    del held
    assert export(pool, 4) in (first, second)


def test_a_segment_is_reused_only_after_the_last_view_is_gone() -> None:
    pool = SharedMemoryPool()
    first = pool.allocate((300, 1000), np.uint8)
    address = first.ctypes.data
    handle = pool.export(address, first.nbytes)
    assert handle is not None
    assert pool.export(address, first.nbytes) is None, "it is exported already"
    first[:] = 7
    attached = SharedMemoryReceiver().attach(handle)
    del first
    assert pool.allocate((300, 1000), np.uint8).ctypes.data != address
    view = attached[1000:2000]
    del attached
    assert pool.allocate((300, 1000), np.uint8).ctypes.data != address
    assert (view == 7).all()
    del view
    arrays = [pool.allocate((300, 1000), np.uint8) for _ in range(3)]
    assert address in [array.ctypes.data for array in arrays]
    assert pool.export(np.empty(300_000, np.uint8).ctypes.data, 300_000) is None, "it is not from the pool"


def test_a_receiver_tells_a_new_segment_from_an_old_one_with_the_same_descriptor() -> None:
    receiver = SharedMemoryReceiver()
    handles = []
    for value in range(20):
        pool = SharedMemoryPool()
        handles.append(export(pool, value))
        assert (receiver.attach(handles[-1]) == value).all()
        del pool
    assert len({handle.fd for handle in handles}) < len(handles), "descriptors are reused"


def test_a_pool_is_limited_and_closes_all_files() -> None:
    gc.collect()
    before = open_files()
    pool = SharedMemoryPool(3)
    arrays = [pool.allocate(SHAPE, np.uint8) for _ in range(5)]
    handles = [pool.export(array.ctypes.data, array.nbytes) for array in arrays]
    assert [handle is None for handle in handles] == [False] * 3 + [True] * 2
    attached = [SharedMemoryReceiver().attach(handle) for handle in handles if handle is not None]
    assert {handle.pid for handle in handles if handle is not None} == {os.getpid()}
    del pool, arrays, attached, handles
    gc.collect()
    assert open_files() <= before


def test_idle_segments_are_closed() -> None:
    pool = SharedMemoryPool()
    before = len(os.listdir("/proc/self/fd"))
    arrays = [pool.allocate((1 << 20,), np.uint8) for _ in range(100)]
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 64
    arrays.clear()
    for size in (1 << 20, 1 << 22, 1 << 20):
        pool.allocate((size,), np.uint8)
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 6


def test_a_forked_child_does_not_release_segments_of_its_parent() -> None:
    pool = SharedMemoryPool()
    array = pool.allocate((1 << 20,), np.uint8)
    address = array.ctypes.data
    handle = pool.export(address, array.nbytes)
    assert handle is not None
    held = [SharedMemoryReceiver().attach(handle)]
    del array
    child = os.fork()
    if child == 0:
        held.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.allocate((1 << 20,), np.uint8).ctypes.data != address


@pytest.mark.parametrize("held", ["by the receiver", "by the owner"])
def test_memory_that_a_fork_may_see_is_not_reused_but_freed(held: str) -> None:
    pool, receiver = SharedMemoryPool(), SharedMemoryReceiver()
    array = pool.allocate((1 << 20,), np.uint8)
    address = array.ctypes.data
    if held == "by the receiver":
        handle = pool.export(address, array.nbytes)
        assert handle is not None
        array = receiver.attach(handle)
    array[:] = 7
    before = len(os.listdir("/proc/self/fd"))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0 if (array == 7).all() else 1)
    del array
    for _ in range(3):
        other = pool.allocate((1 << 20,), np.uint8)
        other[:] = 9
        del other
    os.close(writing)
    os.close(reading)
    assert os.waitpid(child, 0)[1] == 0
    assert len(os.listdir("/proc/self/fd")) == before, "one segment was closed, and one is new"
