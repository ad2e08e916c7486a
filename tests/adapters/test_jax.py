"""Batches of jax arrays: on one device, on several, and in several processes."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from torch.utils.dlpack import from_dlpack

import penstock
from penstock import Dataset, Shuffle, Tensor, Workers
from penstock.errors import InvalidInputError
from tests.adapters.ranks import Ranks, join_jax
from tests.adapters.tables import MIXED, ROWS, drawn, mixed_table, numbers, row

LIGHT = ["n", "x"]


@pytest.fixture(scope="module")
def ds() -> Dataset:
    return mixed_table()


def test_only_numeric_columns_become_jax_arrays(ds: Dataset) -> None:
    seen = []
    for batch in ds.jax(batch_size=20, **MIXED):
        for name in ("n", "x", "half", "flag", "tokens", "tokens_shape", "path", "grid", "maybe", "maybe_mask"):
            assert isinstance(batch[name], jax.Array), name
        assert batch["half"].dtype == jnp.bfloat16
        assert batch["when"].dtype == np.dtype("datetime64[s]")
        rows = np.asarray(batch["n"]).tolist()
        assert batch["text"] == [f"row {n}" for n in rows]
        assert batch["extra"] == [{"n": n} for n in rows]
        for index, n in enumerate(rows):
            inside = tuple(slice(length) for length in batch["path_shape"][index].tolist())
            assert np.array_equal(batch["path"][index][inside], row(n)["path"])
            assert np.array_equal(batch["half"][index], row(n)["half"])
        seen += rows
    assert sorted(seen) == list(range(ROWS))
    lists = next(iter(ds.jax(batch_size=4, collate_fn="list")))
    assert all(isinstance(tokens, jax.Array) for tokens in lists["tokens"])


def test_a_compiled_step_runs_over_an_epoch(ds: Dataset) -> None:
    @jax.jit
    def step(total: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
        return total + batch["x"].sum() + batch["n"].sum()

    total = jnp.zeros(())
    for batch in ds.select(LIGHT).jax(batch_size=50, **MIXED):
        total = step(total, batch)
    assert int(total) == 4 * sum(range(ROWS))


def test_batches_that_are_held_stay_unchanged() -> None:
    """On the CPU an array may share the memory of the buffer that it came in, which comes back to use afterwards."""
    ds = penstock.create("memory://", {"n": int, "x": Tensor("float32", (4096,))})
    ds.append({"n": np.arange(256), "x": np.repeat(np.arange(256, dtype=np.float32), 4096).reshape(256, 4096)})
    ds.commit()
    loader = ds.jax(batch_size=32, shuffle=True, num_workers=2)
    held = [batch for _ in range(3) for batch in loader]
    for batch in held:
        assert np.array_equal(np.asarray(batch["x"])[:, 7], np.asarray(batch["n"]))


def test_batches_export_dlpack(ds: Dataset) -> None:
    batch = next(iter(ds.jax(batch_size=20)))
    for name in ("n", "x", "flag", "tokens"):
        assert np.array_equal(np.from_dlpack(batch[name]), batch[name])
        assert np.array_equal(from_dlpack(batch[name]).numpy(), batch[name])


def test_states_of_pytorch_and_jax_resume_in_the_same_order(ds: Dataset) -> None:
    whole = numbers(ds.pytorch(batch_size=1, **MIXED))
    first = ds.pytorch(batch_size=16, **MIXED)
    before = numbers(islice(first, 4))
    second = ds.jax(batch_size=10, **MIXED)
    second.load_state_dict(first.state_dict())
    middle = numbers(islice(second, 3))
    third = ds.numpy(batch_size=7, **MIXED)
    third.load_state_dict(second.state_dict())
    assert before + middle + numbers(third) == whole


def test_transforms_get_numpy_arrays_also_in_worker_processes(ds: Dataset) -> None:
    sharding = SingleDeviceSharding(jax.devices()[0])  # which could not be sent there
    options: dict[str, Any] = {"batch_size": 50, "transform": drawn, "sharding": sharding, "num_workers": 1}
    threads = list(ds.jax(**options))
    with ds.jax(**options | {"num_workers": Workers(1, "process")}) as loader:
        for batch, same in zip(loader, threads, strict=True):
            assert isinstance(batch["draw"], jax.Array)
            assert np.array_equal(batch["draw"], same["draw"])
            assert np.array_equal(batch["n"], same["n"])


def test_integers_that_would_overflow_are_refused() -> None:
    ds = penstock.create("memory://", {"n": int, "u": Tensor("uint64"), "f": Tensor("float64")})
    ds.append({"n": [1, -(2**40)], "u": np.array([1, 2**63], np.uint64), "f": [0.1, 0.2]})
    ds.commit()
    first = next(iter(ds.jax(batch_size=1)))
    assert (first["n"].dtype, first["u"].dtype, first["f"].dtype) == (np.int32, np.uint32, np.float32)
    with pytest.raises(
        InvalidInputError, match=r"'n' contains -1099511627776, but jax converts int64 to int32.*enable_x64"
    ):
        list(ds.select(["n"]).jax())
    with pytest.raises(InvalidInputError, match=r"'u' contains 9223372036854775808, but jax converts uint64 to uint32"):
        list(ds.select(["u"]).jax())
    jax.config.update("jax_enable_x64", True)
    try:
        batch = next(iter(ds.jax()))
        assert batch["n"].tolist() == [1, -(2**40)]
        assert batch["u"].tolist() == [1, 2**63]
        assert batch["f"].dtype == np.float64
    finally:
        jax.config.update("jax_enable_x64", False)


def test_distributed_without_initialisation_is_refused(ds: Dataset) -> None:
    with pytest.raises(InvalidInputError, match=r"jax.distributed.initialize\(\) first, or pass distributed=\(rank"):
        ds.jax(distributed=True)
    halves = [numbers(ds.jax(batch_size=25, distributed=(rank, 2), **MIXED)) for rank in range(2)]
    assert sorted(halves[0] + halves[1]) == list(range(ROWS))


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(2, join_jax)
    yield group
    group.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("jax") / "table"
    mixed_table(str(place))
    return place


def _over(*shape: int) -> Sharding:
    mesh = Mesh(np.array(jax.devices()).reshape(shape), ("data", "model"))
    return NamedSharding(mesh, P("data"))


def _own_rows(array: jax.Array) -> list[int]:
    """What this process holds of an array, without the copies of it."""
    shards = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return [n for start in sorted(shards) for n in np.asarray(shards[start]).tolist()]


def _epochs(place: str) -> dict[str, Any]:
    ds = penstock.load(place)
    found: dict[str, Any] = {"process": jax.process_index()}
    loader = ds.select(LIGHT).jax(batch_size=8, **MIXED)
    steps = list(loader)
    found["plain"] = [n for batch in steps for n in np.asarray(batch["n"])[~np.asarray(batch["_pad"])].tolist()]
    found["steps"] = (len(steps), len(loader))
    found["alone"] = numbers(ds.select(LIGHT).jax(batch_size=8, distributed=False))
    total = jax.jit(lambda batch: (batch["x"][:, 0] * ~batch["_pad"]).sum())
    for name, shape in (("data", (4, 1)), ("model", (1, 4)), ("both", (2, 2))):
        steps = list(ds.select(LIGHT).jax(batch_size=8, sharding=_over(*shape), **MIXED))
        found[name] = [_own_rows(batch["n"]) for batch in steps]
        found[f"{name} rows"] = {batch["n"].shape[0] for batch in steps}
        if "_pad" in steps[0]:
            found[f"{name} total"] = sum(int(total(batch)) for batch in steps)
    return found


def _followed(place: str) -> tuple[list[int], str]:
    ds = penstock.load(place, version="main@1")
    with ds.select(["n"]).following().jax(batch_size=4, until=penstock.Epochs(2)) as loader:
        batches = iter(loader)
        next(batches)
        if jax.process_index() == 1:
            other = penstock.load(place)
            other.append({"n": [10, 11, 12]})
            other.commit()
        multihost_utils.sync_global_devices("committed")
        found = [np.asarray(batch["n"])[~np.asarray(batch["_pad"])].tolist() for batch in batches]
        return [n for step in found[1:] for n in step], loader.state_dict()["order"]["version"]


def test_processes_follow_a_branch_together(ranks: Ranks, tmp_path: Path) -> None:
    """An epoch of ten rows in two steps of eight, and one of thirteen rows in two."""
    ds = penstock.create(tmp_path / "t", {"n": int})
    ds.append({"n": range(10)})
    ds.commit()
    found = ranks.run(_followed, str(tmp_path / "t"))
    assert {version for _, version in found} == {"main@2"}
    assert sorted(n for second_epoch, _ in found for n in second_epoch) == list(range(13))


def test_processes_partition_an_epoch_by_their_sharding(ranks: Ranks, place: Path) -> None:
    found = ranks.run(_epochs, str(place))
    assert [rank["process"] for rank in found] == [0, 1]
    assert sorted(found[0]["plain"] + found[1]["plain"]) == list(range(ROWS))
    assert found[0]["steps"] == found[1]["steps"] == (10, 10)
    assert all(rank["alone"] == list(range(ROWS)) for rank in found)
    for name in ("data", "both"):
        assert found[0][f"{name} rows"] == {16}
        assert found[0][f"{name} total"] == found[1][f"{name} total"] == sum(range(ROWS))
        assert not set(found[0][name][0]) & set(found[1][name][0])
    assert found[0]["model rows"] == {8, 6}
    assert found[0]["model"] == found[1]["model"], "processes that hold the same part read the same rows"


def _refusals(place: str) -> list[str]:
    ds = penstock.load(place).select(["n", "tokens"])
    rank = jax.process_index()
    here = NamedSharding(Mesh(np.array(jax.local_devices()), ("data",)), P("data"))
    three = Mesh(np.array(jax.devices()[:3]), ("data",))
    square = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    chosen: list[dict[str, Any]] = [
        {"batch_size": 8, "shuffle": Shuffle(seed=rank)},
        {"batch_size": 8, "sharding": _over(4, 1)},
        {"batch_size": 7, "sharding": _over(4, 1)},
        {"batch_size": 8, "sharding": _over(4, 1), "collate_fn": "list"},
        {"batch_size": 4, "sharding": here, "distributed": False},
        {"batch_size": 148, "sharding": here, "distributed": False},
        {"batch_size": 8, "sharding": NamedSharding(three, P("data"))},
        {"batch_size": 8, "sharding": NamedSharding(square, P("data", "model"))},
        {"batch_size": 8, "sharding": "data"},
        {"batch_size": 8, "sharding": SingleDeviceSharding(jax.devices()[0])},
    ]
    said = []
    for options in chosen:
        try:
            list(ds.jax(**options))
            said.append("read")
        except InvalidInputError as error:
            said.append(str(error))
    return said


def test_invalid_shardings_are_refused(ranks: Ranks, place: Path) -> None:
    first, second = ranks.run(_refusals, str(place))
    for said in (first, second):
        assert "they differ in the seed: 1 there, 0 here" in said[0]
        assert "column 'tokens' has values of different shapes" in said[1]
        assert said[2].startswith("batch_size=7 cannot be divided among the 2 shards")
        assert 'collate_fn="pad"' in said[3]
        assert said[4:6] == ["read", "read"]
        assert "processes hold different numbers of shards" in said[6]
        assert "such as NamedSharding(mesh, PartitionSpec('data'))" in said[7]
        assert said[8].endswith("and not 'data'")
    assert first[9] == "read"
    assert second[9].startswith("sharding has no device of this process")


def _short_last_batches(place: str) -> list[str]:
    ds = penstock.load(place)[:149].select(LIGHT)
    here = NamedSharding(Mesh(np.array(jax.local_devices()), ("data",)), P("data"))
    options: dict[str, Any] = {"sharding": here, "distributed": False}
    with pytest.raises(InvalidInputError, match=r"the last batch has 9 rows, which cannot be divided among 2 shards"):
        ds.jax(batch_size=20, **options)
    assert len(list(ds.jax(batch_size=20, drop_last=True, **options))) == 7
    even = penstock.load(place).select(LIGHT).jax(batch_size=10, **options)
    first = penstock.load(place).select(LIGHT).numpy(batch_size=1)
    next(iter(first))
    even.load_state_dict(first.state_dict())
    with pytest.raises(
        InvalidInputError, match=r"'n' has 9 rows in this process, which cannot be laid out.*drop_last=True"
    ):
        list(even)
    return ["done"]


def test_a_last_batch_that_devices_cannot_share_is_refused(ranks: Ranks, place: Path) -> None:
    assert ranks.run(_short_last_batches, str(place)) == [["done"]] * 2
