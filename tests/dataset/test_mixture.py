"""`penstock.mix`: what it gives, and what it refuses."""

from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Dataset, Label, Mixture, Shuffle, Tensor, Text
from penstock.errors import InvalidInputError, NotFoundError
from tests.servers import new_location


def make(rows: int, first: int = 0, **more: Any) -> Dataset:
    ds = penstock.create(new_location("memory").uri, {"n": Tensor("int64"), "t": Text(), **more})
    values: dict[str, Any] = {"n": np.arange(rows) + first, "t": [f"row {n + first}" for n in range(rows)]}
    if rows:
        ds.append(values | {name: np.zeros(rows, np.int64) for name in more})
    return ds


@pytest.fixture
def web() -> Dataset:
    return make(12)


@pytest.fixture
def code() -> Dataset:
    return make(5, 100)


@pytest.fixture
def mix(web: Dataset, code: Dataset) -> Mixture:
    return penstock.mix({"web": web, "code": code}, weights={"web": 0.7, "code": 0.3})


def test_a_mixture_is_a_view(mix: Mixture) -> None:
    assert mix.sources == ("web", "code")
    assert len(mix) == 16  # 0.3 of them are five rows of code
    assert list(mix.schema.names) == ["n", "t", "_source"]
    assert mix.schema["_source"].kind == Label(("web", "code"))
    rows = [mix[index] for index in range(len(mix))]
    assert mix[-1] == rows[-1]
    assert sorted(row["n"] for row in rows if row["_source"] == 1) == list(range(100, 105))
    assert repr(mix) == "Mixture(16 rows of web 0.7, code 0.3: n, t)"
    with pytest.raises(IndexError):
        mix[16]
    [batch] = mix.numpy(batch_size=100)
    assert batch["n"].tolist() == [row["n"] for row in rows]
    assert batch["_source"].tolist() == [row["_source"] for row in rows]


def test_columns_of_a_mixture_can_be_selected(mix: Mixture) -> None:
    assert list(mix.select("t").schema.names) == ["t", "_source"]
    assert set(mix.select(["_row_id", "n"])[0]) == {"_row_id", "n", "_source"}
    assert list(next(iter(mix.select(["n"]).numpy()))) == ["n", "_source"]
    with pytest.raises(NotFoundError, match="no column 'x'"):
        mix.select("x")
    with pytest.raises(NotFoundError, match="no column 'x'"):
        mix.select(["x"]).numpy()


def test_by_default_sources_are_in_proportion_to_their_rows(web: Dataset, code: Dataset) -> None:
    mix = penstock.mix({"web": web, "code": code})
    assert len(mix) == 17
    numbers = np.concatenate([batch["n"] for batch in mix.numpy(batch_size=4, shuffle=True)])
    assert sorted(numbers.tolist()) == [*range(12), *range(100, 105)]


def test_sources_are_views(web: Dataset, code: Dataset) -> None:
    mix = penstock.mix({"even": web[::2], "few": code[1:3], "ids": code.rows(row_ids=[0])}, stop="all")
    numbers = np.concatenate([batch["n"] for batch in mix.numpy(batch_size=4)])
    assert set(numbers.tolist()) == {0, 2, 4, 6, 8, 10, 101, 102, 100}


def test_rows_with_an_order_of_their_own_keep_it(web: Dataset, code: Dataset) -> None:
    mix = penstock.mix(
        {"back": code[::-1], "some": web.rows(row_ids=[7, 2, 7])}, weights={"back": 1, "some": 1}, stop=16
    )
    for ranks in (1, 2):
        found: list[dict[str, Any]] = []
        for rank in range(ranks):
            found += mix.numpy(batch_size=8 // ranks, distributed=(rank, ranks), drop_last=True)
        numbers = np.concatenate([batch["n"] for batch in found])
        back, some = numbers[numbers >= 100], numbers[numbers < 100]
        if ranks == 1:
            assert back.tolist() == [104, 103, 102, 101, 100, 104, 103, 102]
            assert some.tolist() == [7, 2, 7, 7, 2, 7, 7, 2]
        assert sorted(numbers.tolist()) == [2, 2, 2, 7, 7, 7, 7, 7, 100, 101, 102, 102, 103, 103, 104, 104]


def test_a_source_may_have_a_shuffle_of_its_own(web: Dataset, code: Dataset) -> None:
    sources = {"web": web, "code": code}
    plain = penstock.mix(sources, shuffle={"code": False})
    own = penstock.mix(sources, shuffle={"code": Shuffle(seed=7)})

    def numbers(mix: Mixture, seed: int) -> tuple[list[int], list[int]]:
        found = np.concatenate([batch["n"] for batch in mix.numpy(batch_size=4, shuffle=Shuffle(seed=seed))])
        return found[found < 100].tolist(), found[found >= 100].tolist()

    assert numbers(plain, 0)[1] == [100, 101, 102, 103, 104]
    assert numbers(own, 0)[1] == numbers(own, 1)[1]
    assert numbers(own, 0)[0] == numbers(plain, 0)[0] != numbers(own, 1)[0]


def test_weights_change_by_schedule(web: Dataset, code: Dataset) -> None:
    schedule = [(0, {"web": 1, "code": 0}), (6, {"web": 1, "code": 1})]
    mix = penstock.mix({"web": web, "code": code}, weights=schedule, stop=12)
    [batch] = mix.numpy(batch_size=12)
    assert batch["_source"].tolist()[:6] == [0] * 6
    assert sorted(batch["_source"].tolist()[6:]) == [0] * 3 + [1] * 3


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}])
def test_rows_and_batches_of_tensors(mix: Mixture, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    found = list(mix.pytorch(**options))
    sources = torch.cat([each["_source"].reshape(-1) for each in found]).tolist()
    numbers = torch.cat([each["n"].reshape(-1) for each in found]).tolist()
    assert numbers == [mix[index]["n"] for index in range(len(mix))]
    assert sources == [int(number >= 100) for number in numbers]


def test_every_framework_reads_a_mixture(mix: Mixture) -> None:
    wanted = [mix[index]["n"] for index in range(len(mix))]
    pytest.importorskip("jax")
    assert [int(n) for batch in mix.jax(batch_size=4) for n in batch["n"]] == wanted
    pytest.importorskip("tensorflow")
    dataset = mix.tensorflow(batch_size=4)
    assert [int(n) for batch in dataset for n in batch["n"]] == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"web": 1, "books": 1}}, "weights names source 'books'; the sources are web, code"),
        ({"weights": {"web": 1}}, "weight of source 'code' is a number from 0 on, not None"),
        ({"weights": {"web": 1, "code": -0.5}}, "weight of source 'code' is a number from 0 on, not -0.5"),
        ({"weights": {"web": 1, "code": float("nan")}}, "not nan"),
        ({"weights": {"web": 0, "code": 0}}, "sum to 0"),
        ({"weights": [(5, {"web": 1, "code": 1})]}, "rising rows from 0 on"),
        ({"weights": []}, "rising rows from 0 on"),
        ({"weights": {"web": 1, "code": 0}, "stop": "all"}, "source 'code' has weight 0"),
        ({"stop": "last"}, "stop is"),
        ({"stop": 0}, "stop is"),
        ({"per_batch": "one"}, "per_batch is"),
        ({"columns": "all"}, "columns is"),
        ({"shuffle": {"books": True}}, "shuffle names source 'books'"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    web: Dataset, code: Dataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        penstock.mix({"web": web, "code": code}, **options)


def test_sources_that_cannot_be_mixed_are_refused(web: Dataset, mix: Mixture) -> None:
    refused: list[tuple[Any, str]] = [
        ({}, "a mixture needs sources by name"),
        ({"web": 3}, "not 'web' with int"),
        ({"web": web, "both": mix}, "source 'both' is a mixture"),
        ({"web": web, "other": make(3).select([])}, "no column in common"),
    ]
    for sources, message in refused:
        with pytest.raises(InvalidInputError, match=message):
            penstock.mix(sources)
    with pytest.raises(InvalidInputError, match="source 'none' has no rows"):
        penstock.mix({"web": web, "none": make(0)}, weights={"web": 1, "none": 1})
    with pytest.raises(NotFoundError, match="no column 'x'; the sources have n, t"):
        penstock.mix({"web": web}, columns=["x"])
    labels = make(3, label=Label(("cat", "dog")))
    others = make(3, label=Label(("dog", "cat")))
    with pytest.raises(InvalidInputError, match=r"column 'label' is .* in source 'a' and .* in 'b'"):
        penstock.mix({"a": labels, "b": others})
    with pytest.raises(InvalidInputError, match="slice and filter the sources before mixing"):
        mix[2:5]  # type: ignore[index]


def test_a_state_belongs_to_its_sources(mix: Mixture, web: Dataset, code: Dataset) -> None:
    with mix.numpy(batch_size=3) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with web.numpy() as loader, pytest.raises(InvalidInputError, match="state of a mixture"):
        loader.load_state_dict(state)
    with mix.numpy() as loader, pytest.raises(InvalidInputError, match="not the state of a mixture"):
        loader.load_state_dict(web.numpy().state_dict())
    with mix.numpy() as loader, pytest.raises(InvalidInputError, match="damaged"):
        loader.load_state_dict({**state, "row": -1})
    other = penstock.mix({"web": web[:8], "code": code}, weights={"web": 0.7, "code": 0.3})
    with (
        other.numpy() as loader,
        pytest.raises(InvalidInputError, match=r"source 'web' differs .* the selection of rows"),
    ):
        loader.load_state_dict(state)
    with mix.numpy(shuffle=True) as loader, pytest.raises(InvalidInputError, match=r"'web' differs .* shuffled"):
        loader.load_state_dict(state)
