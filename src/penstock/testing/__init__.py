"""Conformance suites for stores, codecs and sources, a model table, and fault injection."""

from penstock.testing._codecs import CodecTests
from penstock.testing._faults import CountingStore, Fault, FaultyStore, HookedStore
from penstock.testing._gcs import FakeGcs
from penstock.testing._model import ModelTable, assert_same
from penstock.testing._sources import SourceTests
from penstock.testing._stores import StoreTests

__all__ = [
    "CodecTests", "CountingStore", "FakeGcs", "Fault", "FaultyStore", "HookedStore", "ModelTable", "SourceTests",
    "StoreTests", "assert_same",
]  # fmt: skip
