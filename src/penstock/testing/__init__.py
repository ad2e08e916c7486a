"""The kit for those who extend or depend on Penstock: exams of its contracts, and stores that misbehave on purpose."""

from penstock.testing._codecs import CodecTests
from penstock.testing._faults import CountingStore, Fault, FaultyStore
from penstock.testing._gcs import FakeGcs
from penstock.testing._model import ModelTable, assert_same
from penstock.testing._sources import SourceTests
from penstock.testing._stores import StoreTests

__all__ = [
    "CodecTests", "CountingStore", "FakeGcs", "Fault", "FaultyStore", "ModelTable", "SourceTests", "StoreTests",
    "assert_same",
]  # fmt: skip
