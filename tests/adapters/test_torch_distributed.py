"""Several ranks: rows are shared out, steps are the same everywhere, and nobody waits for nobody."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import penstock
from penstock import Column, Dataset, Image, Shuffle, Tensor, View
from penstock.errors import InvalidInputError, PenstockError
from tests.adapters.ranks import Ranks
from tests.adapters.transforms import BrokenError
from tests.servers import StoreLocation, new_location

COUNT = 4
ROWS = 501
MIXED: dict[str, Any] = {"shuffle": Shuffle(block_bytes=2048)}
LANES: dict[str, Any] = {"shuffle": Shuffle(block_bytes=2048, lanes=8)}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(COUNT)
    yield group
    group.stop()


@pytest.fixture(scope="module")
def place() -> StoreLocation:
    place = new_location("folder")
    ds = penstock.create(place.uri, {"n": Column(Tensor("int64"), page_bytes=512), "x": Tensor("float32", (4,))})
    ds.append({"n": np.arange(ROWS), "x": np.zeros((ROWS, 4), np.float32)})
    ds.commit()
    ds.append({"n": [ROWS], "x": np.zeros((1, 4), np.float32)})
    ds.commit()
    return place


def opened(uri: str, version: str = "main@1") -> Dataset:
    return penstock.load(uri, version=version)


def numbers(loader: Any) -> list[list[int]]:
    """The rows of each step, without those that only fill it up."""
    return [batch["n"][~batch["_pad"]].tolist() if "_pad" in batch else batch["n"].tolist() for batch in loader]


def _epochs(uri: str, options: dict[str, Any], epochs: int) -> list[tuple[list[list[int]], int]]:
    """Epochs with an all-reduce at each step, as in training."""
    with opened(uri).pytorch(**options) as loader:
        found = []
        for _ in range(epochs):
            steps = []
            for batch in loader:
                total = torch.tensor(float(len(batch["n"])))
                dist.all_reduce(total)
                steps.append(batch["n"][~batch["_pad"]].tolist() if "_pad" in batch else batch["n"].tolist())
            found.append((steps, len(loader)))
        return found


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 16},
        {"batch_size": 16, "drop_last": True, **MIXED},
        {"batch_size": 7, "num_workers": 2, **LANES},
        {"batch_size": 7, "distributed": True, "shuffle": Shuffle(block_bytes=2048, lanes=3)},
        {"num_workers": 8, "distributed": True},
    ],
    ids=str,
)
def test_ranks_partition_an_epoch(ranks: Ranks, place: StoreLocation, options: dict[str, Any]) -> None:
    found = ranks.run(_epochs, place.uri, options, 2)
    for epoch in range(2):
        steps = {(len(rank[epoch][0]), rank[epoch][1]) for rank in found}
        assert len(steps) == 1, "as many steps on every rank, and as many as the loader says"
        seen = [n for rank in found for step in rank[epoch][0] for n in step]
        assert len(seen) == len(set(seen))
        whole = ROWS // (COUNT * 16) * COUNT * 16 if options.get("drop_last") else ROWS
        assert len(seen) == whole
        assert set(seen) <= set(range(ROWS))


def _shared_or_not(uri: str) -> dict[str, Any]:
    ds = opened(uri)
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    alone = numbers(ds.pytorch(batch_size=50, distributed=False))
    given = numbers(ds.pytorch(batch_size=50, distributed=((rank + 1) % COUNT, COUNT)))
    pair = numbers(ds.pytorch(batch_size=50, distributed=pairs[rank // 2]))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    meshed = numbers(ds.pytorch(batch_size=50, distributed=mesh["dp"], **MIXED))
    found = {"alone": alone, "given": given, "pair": pair, "meshed": meshed, "dp": mesh["dp"].get_local_rank()}
    with pytest.raises(InvalidInputError, match=r"this mesh has 2 dimensions.*mesh\[\"dp\"\].*\('dp', 'tp'\)"):
        ds.pytorch(batch_size=50, distributed=mesh)
    with pytest.raises(InvalidInputError, match="not int"):
        ds.pytorch(batch_size=50, distributed=pairs[1 - rank // 2])  # a group that this rank is not in
    return found


def test_groups_meshes_and_explicit_ranks(ranks: Ranks, place: StoreLocation) -> None:
    found = ranks.run(_shared_or_not, place.uri)

    def flat(rank: int, name: str) -> list[int]:
        return [n for step in found[rank][name] for n in step]

    everything = list(range(ROWS))
    for rank in range(COUNT):
        assert flat(rank, "alone") == everything
    assert sorted(n for rank in range(COUNT) for n in flat(rank, "given")) == everything
    explicit = numbers(opened(place.uri).pytorch(batch_size=50, distributed=(1, COUNT)))
    assert found[0]["given"] == explicit, "rank 0 has said that it is rank 1"
    for first in (0, 2):
        assert sorted(flat(first, "pair") + flat(first + 1, "pair")) == everything
    assert [rank["dp"] for rank in found] == [0, 0, 1, 1]
    assert found[0]["meshed"] == found[1]["meshed"], "tensor-parallel peers read the same rows in the same order"
    assert found[2]["meshed"] == found[3]["meshed"]
    assert sorted(flat(0, "meshed") + flat(2, "meshed")) == everything


def _disagreeing(uri: str, options: list[dict[str, Any]], versions: list[str], epochs: list[int]) -> str:
    rank = dist.get_rank()
    view: View = opened(uri, versions[rank])
    if "rows" in options[rank]:
        view = view[: options[rank]["rows"]]
    loader = view.pytorch(**{name: value for name, value in options[rank].items() if name != "rows"})
    loader.set_epoch(epochs[rank])
    try:
        for _ in loader:
            dist.barrier()
    except InvalidInputError as error:
        return str(error)
    return "read"


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"version": "main@2"}, "they differ in the snapshot"),
        ({"batch_size": 8}, "batch_size: 8 there, 16 here"),
        ({"shuffle": Shuffle(seed=9)}, "the seed: 9 there, 0 here"),
        ({"shuffle": True}, "whether rows are shuffled"),
        ({"drop_last": True}, "drop_last: True there, False here"),
        ({"rows": 500}, "the selection of rows and columns"),
        ({"epoch": 3}, "the epoch: 3 there, 0 here"),
    ],
    ids=str,
)
def test_ranks_with_different_options_all_raise(
    ranks: Ranks, place: StoreLocation, change: dict[str, Any], difference: str
) -> None:
    change = dict(change)
    versions = ["main@1", "main@1", change.pop("version", "main@1"), "main@1"]
    epochs = [0, 0, change.pop("epoch", 0), 0]
    options = [{"batch_size": 16, **(change if rank == 2 else {})} for rank in range(COUNT)]
    found = ranks.run(_disagreeing, place.uri, options, versions, epochs)
    for said in found:
        assert said.startswith(f"ranks 0 and 2 would not read the same epoch, they differ in {difference}"[:60])
        assert difference in said
    if versions[2] == "main@2":
        assert "versions main@1 and main@2" in found[3]
    assert (
        ranks.run(_disagreeing, place.uri, [{"batch_size": 16}] * COUNT, ["main@1"] * COUNT, [0] * COUNT)
        == ["read"] * 4
    )


def _train_on_bad_rows(uri: str, bad_rank: int, options: dict[str, Any]) -> dict[str, Any]:
    """Steps with a collective each; rows whose number ends with 3 are bad for one rank's transform alone."""
    rank = dist.get_rank()

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        if rank == bad_rank and sample["n"] % 10 == 3:
            raise BrokenError("on this rank only")
        return sample

    with penstock.load(uri).pytorch(transform=transform, bad_samples="replace", **options) as loader:
        steps, real, flagged = 0, [], 0
        for batch in loader:
            total = torch.ones(())
            dist.all_reduce(total)
            assert total == COUNT
            steps += 1
            real += batch["n"][~batch["_pad"]].tolist()
            flagged += int(batch["_pad"].sum())
        stats = loader.stats()
        return {"steps": steps, "real": real, "flagged": flagged, "bad": [bad.row_id for bad in stats.bad_samples]}


def test_bad_rows_on_one_rank_block_no_rank(ranks: Ranks, place: StoreLocation) -> None:
    options = {"batch_size": 8, "num_workers": 2, **LANES}
    found = ranks.run(_train_on_bad_rows, place.uri, 2, options)
    assert {rank["steps"] for rank in found} == {-(-(ROWS + 1) // (COUNT * 8))}
    assert [bool(rank["bad"]) for rank in found] == [False, False, True, False]
    assert all(row % 10 == 3 for row in found[2]["bad"])
    assert len(found[2]["bad"]) > 3
    real = [n for rank in found for n in rank["real"]]
    assert sorted(real + list(set(found[2]["bad"]))) == list(range(ROWS + 1)), "each row once, or named in the report"


def test_damaged_images_on_one_rank_block_no_rank(ranks: Ranks) -> None:
    place = new_location("folder")
    ds = penstock.create(place.uri, {"n": Column(Tensor("int64"), page_bytes=128), "p": Image("png", (2, 2, 3))})
    share = [n for step in numbers(_numbered().pytorch(batch_size=5, distributed=(1, COUNT))) for n in step]
    bad = share[3:40:4]
    header = Image("png").to_array([np.zeros((2, 2, 3), np.uint8)])[0].as_py()[:45]
    images = [header if k in bad else np.full((2, 2, 3), k % 256, np.uint8) for k in range(200)]
    ds.append({"n": np.arange(200), "p": images})
    ds.commit()
    found = ranks.run(_train_on_bad_rows, place.uri, -1, {"batch_size": 5})
    assert {rank["steps"] for rank in found} == {10}
    assert [rank["bad"] for rank in found] == [[], bad, [], []]
    assert [rank["flagged"] for rank in found] == [0, len(bad), 0, 0]


def _numbered() -> Dataset:
    ds = penstock.create("memory://", {"n": Column(Tensor("int64"), page_bytes=128)})
    ds.append({"n": np.arange(200)})
    ds.commit()
    return ds


def _resumed(uri: str, state: dict[str, Any]) -> list[list[int]]:
    loader = opened(uri).pytorch(batch_size=6, **LANES)
    loader.load_state_dict(state)
    return numbers(loader)


def test_four_ranks_resume_a_run_of_three(ranks: Ranks, place: StoreLocation) -> None:
    before: list[int] = []
    states = []
    for rank in range(3):
        loader = opened(place.uri).pytorch(batch_size=11, distributed=(rank, 3), **LANES)
        for step, batch in enumerate(loader):
            before += batch["n"][~batch["_pad"]].tolist()
            if step == 6:
                break
        states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]
    after = [n for rank in ranks.run(_resumed, place.uri, states[0]) for step in rank for n in step]
    assert sorted(before + after) == list(range(ROWS))


def _loaded_later(uri: str, steps: list[int], where: str) -> str:
    """Ranks that agree in their first epoch; then each loads a state of its own, or selects an epoch of its own."""
    loader = opened(uri).pytorch(batch_size=8, **LANES)
    states = []
    for _ in loader:
        states.append(loader.state_dict())
    mine = steps[dist.get_rank()]
    if where == "set_epoch":
        loader.set_epoch(mine)
    elif where == "load":
        loader.load_state_dict(states[mine])
    elif where == "load after iter":
        batches = iter(loader)
        loader.load_state_dict(states[mine])
    try:
        for _ in batches if where == "load after iter" else loader:
            dist.barrier()
    except InvalidInputError as error:
        return str(error)
    return "read"


@pytest.mark.parametrize(
    ("where", "difference"),
    [
        ("load", "the rows read before: 128 there, 96 here"),
        ("load after iter", "the rows read before: 128 there, 96 here"),
        ("set_epoch", "the epoch: 3 there, 2 here"),
    ],
)
def test_ranks_are_compared_in_every_epoch(ranks: Ranks, place: StoreLocation, where: str, difference: str) -> None:
    for said in ranks.run(_loaded_later, place.uri, [2, 2, 3, 2], where):
        assert said.startswith("ranks 0 and 2 would not read the same epoch")
        assert difference in said
    assert ranks.run(_loaded_later, place.uri, [1, 1, 1, 1], where) == ["read"] * COUNT


def _warned(uri: str) -> list[str]:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            rows = opened(uri).pytorch()
    assert len(rows) == ROWS
    return [str(warning.message) for warning in caught]


def test_a_row_dataset_warns_once_that_every_rank_reads_all_rows(ranks: Ranks, place: StoreLocation) -> None:
    for said in ranks.run(_warned, place.uri):
        assert len(said) == 1
        assert "pass a DistributedSampler to DataLoader" in said[0]


def _follow(uri: str, steps: int, state: dict[str, Any] | None = None) -> tuple[list[list[int]], dict[str, Any], str]:
    """Some steps of a loader that follows main; rank 1 commits more rows after the first one."""
    ds = penstock.load(uri, version="main@1")
    with ds.following().pytorch(batch_size=8, until=None, **MIXED) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found = []
        for step, batch in enumerate(loader, 1):
            found.append(batch["n"][~batch["_pad"]].tolist())
            if step == 1 and state is None:
                if dist.get_rank() == 1:
                    other = penstock.load(uri)
                    other.append({"n": range(100, 140), "x": np.zeros((40, 4), np.float32)})
                    other.commit()
                dist.barrier()
            if step == steps:
                break
        return found, loader.state_dict(), loader.state_dict()["order"]["version"]


def _growing() -> str:
    place = new_location("folder")
    ds = penstock.create(place.uri, {"n": int, "x": Tensor("float32", (4,))})
    ds.append({"n": range(100), "x": np.zeros((100, 4), np.float32)})
    ds.commit()
    return place.uri


def test_ranks_follow_a_branch_together(ranks: Ranks) -> None:
    """An epoch of 100 rows in four steps of 32, and then epochs of 140 rows in five."""
    uri = _growing()
    found = ranks.run(_follow, uri, 6)
    assert {version for *_, version in found} == {"main@2"}
    assert all(state == found[0][1] for _, state, _ in found)
    first = [n for steps, *_ in found for step in steps[:4] for n in step]
    assert sorted(first) == list(range(100))
    rest = ranks.run(_follow, uri, 3, found[0][1])
    second = [n for steps, *_ in found for step in steps[4:] for n in step]
    second += [n for steps, *_ in rest for step in steps for n in step]
    assert sorted(second) == list(range(140))


def _follow_to_a_version_without_a_column(uri: str) -> tuple[str, str, int]:
    ds = penstock.load(uri, version="main@1")
    columns = ["n", "x"] if dist.get_rank() == 2 else ["n"]
    with ds.select(["n"]).following().pytorch(batch_size=8, until=penstock.Epochs(2)) as loader:
        if dist.get_rank() == 2:  # as if this rank could not read what the others can
            follow = loader._options.follow
            object.__setattr__(follow, "names", columns)
        if dist.get_rank() == 0:
            other = penstock.load(uri)
            other.drop_column("x")
            other.commit()
        dist.barrier()
        steps = 0
        try:
            for _ in loader:
                steps += 1
        except PenstockError as error:
            return str(error), loader.state_dict()["order"]["version"], steps
    return "", "", steps


def test_no_rank_moves_to_a_version_that_one_cannot_read(ranks: Ranks) -> None:
    for rank, (error, version, steps) in enumerate(ranks.run(_follow_to_a_version_without_a_column, _growing())):
        assert "column 'x' does not exist in main@2" in error
        assert error.startswith("rank 2 failed, and so all ranks stop") == (rank != 2)
        assert (version, steps) == ("main@1", 4)
