"""Batches as a `tf.data.Dataset`, with a specification that holds for all of them."""

import gc
import json
import threading
import time
from itertools import islice
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from torch.utils.dlpack import from_dlpack

import penstock
from penstock import Column, Dataset, Image, Tensor, Workers
from penstock.errors import InvalidInputError
from tests.adapters.tables import MIXED, ROWS, drawn, mixed_table, numbers, row

PLAIN = {
    "n": tf.TensorSpec((None,), tf.int64),
    "x": tf.TensorSpec((None, 3), tf.float32),
    "half": tf.TensorSpec((None, 2), tf.bfloat16),
    "flag": tf.TensorSpec((None,), tf.bool),
    "when": tf.TensorSpec((None,), tf.int64),
    "text": tf.TensorSpec((None,), tf.string),
    "extra": tf.TensorSpec((None,), tf.string),
    "maybe": tf.TensorSpec((None,), tf.int64),
    "maybe_mask": tf.TensorSpec((None,), tf.bool),
    "grid": tf.TensorSpec((None, None, None), tf.uint8),
    "grid_shape": tf.TensorSpec((None, 2), tf.int64),
}


@pytest.fixture(scope="module")
def ds() -> Dataset:
    return mixed_table()


def test_the_signature_is_static_and_matches_every_batch(ds: Dataset) -> None:
    ragged = ds.tensorflow(batch_size=20, **MIXED)
    assert isinstance(ragged, tf.data.Dataset)
    assert ragged.element_spec == {
        **PLAIN,
        "tokens": tf.RaggedTensorSpec((None, None), tf.int32, 1),
        "path": tf.RaggedTensorSpec((None, None, 2), tf.float32, 1),
    }
    seen = []
    for batch in ragged:
        for index, n in enumerate(batch["n"].numpy().tolist()):
            wanted = row(n)
            assert batch["text"][index].numpy().decode() == wanted["text"]
            assert json.loads(batch["extra"][index].numpy()) == wanted["extra"]
            assert batch["when"][index].numpy() == wanted["when"].astype(int)
            for name in ("x", "half", "flag", "tokens", "path"):
                assert np.array_equal(batch[name][index].numpy(), wanted[name]), name
            inside = tuple(slice(length) for length in batch["grid_shape"][index].numpy())
            assert np.array_equal(batch["grid"][index].numpy()[inside], wanted["grid"])
            seen.append(n)
    assert sorted(seen) == list(range(ROWS))


def test_ragged_pad_pads_all_and_drop_last_fixes_the_batch_size(ds: Dataset) -> None:
    padded = ds.tensorflow(batch_size=20, collate_fn="pad", drop_last=True)
    assert padded.element_spec["tokens"] == tf.TensorSpec((20, None), tf.int32)
    assert padded.element_spec["tokens_shape"] == tf.TensorSpec((20, 1), tf.int64)
    assert padded.element_spec["path"] == tf.TensorSpec((20, None, 2), tf.float32)
    for batch in padded:
        for index, n in enumerate(batch["n"].numpy().tolist()):
            assert np.array_equal(batch["tokens"][index, : n % 5], row(n)["tokens"])
    assert len(list(padded)) == len(padded.penstock) == ROWS // 20


def test_each_iteration_is_the_next_epoch(ds: Dataset) -> None:
    dataset, same = ds.tensorflow(**MIXED), ds.numpy(**MIXED)
    for _ in range(2):
        assert numbers(dataset) == numbers(same)
    assert numbers(dataset.repeat(2)) == [*numbers(same), *numbers(same)]
    dataset.penstock.set_epoch(7)
    same.set_epoch(7)
    assert numbers(dataset.map(lambda batch: {"n": batch["n"]})) == numbers(same)
    assert dataset.penstock.stats().rows == 5 * ROWS


def test_a_run_of_steps_and_a_weighted_one(ds: Dataset) -> None:
    options: dict[str, Any] = {"batch_size": 40, "until": penstock.Steps(2 * -(-ROWS // 40) + 1), **MIXED}
    found = numbers(ds.tensorflow(**options))
    assert found == numbers(ds.numpy(**options))
    assert len(found) == 2 * ROWS + 40
    weighted = ds.weighted(np.arange(ROWS) % 2, rows=30)
    assert numbers(weighted.tensorflow(**MIXED)) == numbers(weighted.numpy(**MIXED))
    assert numbers(ds.tensorflow(until=None, **MIXED).take(1)) == numbers(ds.numpy(**MIXED))[:64]


def test_states_resume_in_the_same_order(ds: Dataset) -> None:
    whole = numbers(ds.pytorch(batch_size=1, **MIXED))
    first = ds.pytorch(batch_size=16, **MIXED)
    before = numbers(islice(first, 4))
    second = ds.tensorflow(batch_size=10, **MIXED)
    second.penstock.load_state_dict(first.state_dict())
    middle = numbers(second.take(3))
    third = ds.numpy(batch_size=7, **MIXED)
    third.load_state_dict(second.penstock.state_dict())
    assert before + middle + numbers(third) == whole


def test_keras_trains_on_the_output_of_a_batch_transform(ds: Dataset) -> None:
    pairs = ds.tensorflow(batch_size=30, batch_transform=lambda batch: (batch["x"], batch["n"]), **MIXED)
    assert pairs.element_spec == (tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((None,), tf.int64))
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(loss="mse")
    steps = len(pairs.penstock)
    model.fit(pairs.repeat(), steps_per_epoch=steps, epochs=2, verbose=0, shuffle=False)
    assert pairs.penstock.stats().rows >= 2 * ROWS


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_transforms_determine_the_signature(ds: Dataset, worker_type: Any) -> None:
    options: dict[str, Any] = {"transform": drawn, "num_workers": Workers(1, worker_type), **MIXED}
    dataset = ds.tensorflow(**options)
    assert dataset.element_spec == {
        "n": tf.TensorSpec((None,), tf.int64),
        "draw": tf.TensorSpec((None, 3), tf.float64),
        "tokens": tf.RaggedTensorSpec((None, None), tf.int32, 1),
        "name": tf.TensorSpec((None,), tf.string),
    }
    for batch, same in zip(dataset, ds.numpy(**options), strict=True):
        assert np.array_equal(batch["draw"], same["draw"])
        assert batch["tokens"].to_list() == [tokens.tolist() for tokens in same["tokens"]]
    dataset.penstock.close()


def test_an_output_signature_can_be_passed(ds: Dataset) -> None:
    def grown(sample: dict[str, Any]) -> dict[str, Any]:
        return {"n": sample["n"], "grown": np.zeros(int(sample["n"])), "other": 1}

    signature = {"n": tf.TensorSpec((None,), tf.int64), "grown": tf.TensorSpec((None, None), tf.float64)}
    dataset = ds.tensorflow(batch_size=50, transform=grown, output_signature=signature)
    assert [batch["grown"].shape for batch in dataset] == [(50, 49), (50, 99), (50, 149)]
    with pytest.raises(InvalidInputError, match=r"no row is usable; pass output_signature"):
        ds[:0].tensorflow()
    assert list(ds[:0].tensorflow(output_signature=signature)) == []


def test_images_nulls_and_bad_rows() -> None:
    ds = penstock.create(
        "memory://",
        {
            "n": int,
            "p": Column(Image("png"), nullable=True),
            "t": Column(penstock.Text(), nullable=True),
            "b": penstock.Bytes(),
        },
    )
    images: list[Any] = [np.full((2 + n % 3, 4, 3), n, np.uint8) for n in range(20)]
    images[0], images[1] = b"\x89PNG\r\n\x1a\n and then nothing", None
    ds.append({"n": np.arange(20), "p": images, "t": [None, *"abcdefghijklmnopqrs"], "b": [b"\xff"] * 20})
    ds.commit()
    dataset = ds.tensorflow(batch_size=20, bad_samples="replace")
    assert dataset.element_spec["p"] == tf.TensorSpec((None, None, None, None), tf.uint8)
    assert dataset.element_spec["_pad"] == tf.TensorSpec((None,), tf.bool)
    (batch,) = dataset
    assert batch["_pad"].numpy().tolist() == [True] + [False] * 19
    assert batch["p"].shape == (20, 4, 4, 3)
    assert batch["p_shape"][1].numpy().tolist() == [0, 0, 0]
    assert batch["b"].numpy().tolist() == [b"\xff"] * 20
    sized = ds[2:].select(["p"]).tensorflow(image_size=(5, 6))
    assert sized.element_spec["p"] == tf.TensorSpec((None, 5, 6, 3), tf.uint8)
    assert next(iter(sized))["p"].shape == (18, 5, 6, 3)


def test_values_without_a_tensorflow_type_are_refused(ds: Dataset) -> None:
    with pytest.raises(InvalidInputError, match=r"no type for a set.*transform=…, or leave the column out"):
        ds.tensorflow(transform=lambda sample: {"s": {sample["text"]}})


def test_input_pipelines_partition_the_rows(ds: Dataset) -> None:
    seen: list[int] = []
    for rank in range(2):
        context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=rank)
        dataset = ds.tensorflow(batch_size=8, distributed=context, **MIXED)
        assert dataset.element_spec["_pad"] == tf.TensorSpec((None,), tf.bool)
        seen += [n for batch in dataset for n in batch["n"][~batch["_pad"]].numpy().tolist()]
    assert sorted(seen) == list(range(ROWS))


def test_batches_export_dlpack(ds: Dataset) -> None:
    batch = next(iter(ds.tensorflow(batch_size=20)))
    for name in ("n", "x"):
        assert np.array_equal(np.from_dlpack(batch[name]), batch[name].numpy())
        assert np.array_equal(from_dlpack(batch[name]).numpy(), batch[name].numpy())


def test_threads_end_with_the_dataset_and_live_with_its_iterators() -> None:
    ds = penstock.create("memory://", {"n": int, "x": Tensor("float32", (3,))})
    ds.append({"n": np.arange(40), "x": np.zeros((40, 3), np.float32)})
    ds.commit()

    def ours() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("penstock")}

    before = ours()
    dataset = ds.tensorflow(batch_size=10)
    assert numbers(dataset) == list(range(40))
    assert ours() - before
    derived = iter(dataset.map(lambda batch: batch["n"]).prefetch(1))
    del dataset
    gc.collect()
    assert [n for batch in derived for n in batch.numpy().tolist()] == list(range(40))
    del derived
    gc.collect()
    deadline = time.monotonic() + 60
    while ours() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not ours() - before
