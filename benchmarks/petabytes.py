"""Open and plan a table of ten petabytes of which only the manifests exist, and count what that costs."""

import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice

import numpy as np

import penstock
from benchmarks.report import publish
from penstock.dataset import Dataset
from penstock.format import DataFile, Fragment, Manifest, Node, encode_manifest, new_id, new_int_id
from penstock.storage import ObjectInfo, Store, open_store
from penstock.types import Buffer, ByteRange, RowRange

FRAGMENTS = 10_000_000
FANOUT = 32
FILES, PAGES, PAGE_ROWS, ROW_BYTES = 64, 54, 2, 150_528
LATENCY_S = 0.03
STEPS = 2_000
LANES = 384
"""Of the large table; a step costs what its lanes cost."""


class Pretender(Store):
    """A table in memory whose leaves are one and the same, under as many names as there are; each read takes 30 ms."""

    def __init__(self) -> None:
        self.uri = "pretended"
        self.inner = open_store("memory://")
        self.leaf = memoryview(b"")
        self.reads = self.read_bytes = 0

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        time.sleep(LATENCY_S)
        data = self.leaf if key.startswith("manifests/leaf") else self.inner.get(key, byte_range=byte_range, etag=etag)
        self.reads += 1
        self.read_bytes += len(data)
        return data

    def head(self, key: str) -> ObjectInfo:
        return self.inner.head(key)

    def put(self, key: str, data: Buffer) -> None:
        self.inner.put(key, data)

    def create(self, key: str, data: Buffer) -> None:
        self.inner.create(key, data)

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        self.inner.put_stream(key, chunks)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self.inner.delete(keys)


def main() -> None:
    import_module("torch")  # its import is not part of the plan
    figures = [measure(1_000), measure(1_000, lanes=LANES), measure(FRAGMENTS)]
    publish("petabytes", figures, note=f"plan of {STEPS} steps of 256 rows, shuffled, one rank; each read takes 30 ms")


def measure(fragments: int, lanes: int | None = None) -> dict[str, object]:
    store = Pretender()
    build(store, fragments)
    before = resident()
    store.reads = store.read_bytes = 0
    start = time.perf_counter()
    ds = penstock.load(store)
    loader = ds.pytorch(batch_size=256, shuffle=penstock.Shuffle(lanes=lanes), num_workers=1)
    engine = loader._engine
    planner = engine._source.planner(engine.order.selections)
    spans = (span for planned in planner.planned_spans(0, 0) for span in planned.spans)
    first = next(spans)
    planned = time.perf_counter() - start
    reads, read_bytes = store.reads, store.read_bytes
    step = time.process_time()
    rest = sum(len(span.steps.batch_rows) for span in islice(spans, STEPS))
    per_step = (time.process_time() - step) / rest
    return {
        "what": f"{fragments:,} fragments, {len(ds) * ROW_BYTES / 1e15:.3f} PB",
        "shuffle": str(engine.order.tables[0].order.shuffle),
        "seconds to open and plan": planned,
        "reads": reads,
        "read bytes": read_bytes,
        "resident MB": (resident() - before) / 1e6,
        "µs a step": per_step * 1e6,
        "blocks in the first batch": first.blocks_drawn,
    }


def build(store: Pretender, fragments: int) -> None:
    ds = penstock.create(store, {"x": penstock.Tensor("uint8", (224, 224, 3))})
    [field] = ds.schema
    leaf = Manifest(0, tuple(fragment(field.id, n) for n in range(FANOUT)))
    described, store.leaf = encode_manifest("leaf", leaf)
    nodes = [renamed(described, f"leaf{n}") for n in range(-(-fragments // FANOUT))]
    level = 0
    while len(nodes) > FANOUT:
        level += 1
        nodes = [inner(store, level, nodes[n : n + FANOUT]) for n in range(0, len(nodes), FANOUT)]
    publish_nodes(ds, tuple(nodes))


def publish_nodes(ds: Dataset, nodes: tuple[Node, ...]) -> None:
    session = ds._session
    session.update_snapshot(nodes, session.snapshot.schema, {})
    session.changes.record("append")
    ds.commit()


def inner(store: Pretender, level: int, below: list[Node]) -> Node:
    node, data = encode_manifest(new_id(), Manifest(level, nodes=tuple(below)))
    store.put(node.key, data)
    return node


def renamed(node: Node, id: str) -> Node:
    return Node(id, *(getattr(node, name) for name in Node.__slots__[1:]))


def fragment(field_id: int, number: int) -> Fragment:
    rows = FILES * PAGES * PAGE_ROWS
    return Fragment(
        new_int_id(),
        rows,
        (RowRange(number * rows, (number + 1) * rows),),
        tuple(file(field_id, n * PAGES * PAGE_ROWS) for n in range(FILES)),
    )


def file(field_id: int, row_start: int) -> DataFile:
    page_bytes = 176 + PAGE_ROWS * ROW_BYTES
    return DataFile(
        id=new_id(),
        length=PAGES * page_bytes + 1024,
        frame_crc=0,
        fields=(field_id,),
        row_start=row_start,
        rows=PAGES * PAGE_ROWS,
        page_rows=np.full(PAGES, PAGE_ROWS, np.int32),
        page_offsets=512 + page_bytes * np.arange(PAGES + 1, dtype=np.int64),
        page_crcs=np.random.default_rng(row_start).integers(1 << 32, size=PAGES, dtype=np.uint32),
        value_starts=np.full((PAGES, 1), 176, np.int32),
    )


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
