"""`penstock create TABLE from-SOURCE` and `penstock sync`, from the words to the table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

import penstock
from penstock.cli import main
from tests.servers import Place, new_place

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_STORAGE", raising=False)
    return tmp_path / "home"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def picture(number: int, height: int = 24, width: int = 32) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3), np.uint8)
    data: bytes = simplejpeg.encode_jpeg(pixels, quality=90)
    return data


def fill(place: Place, count: int = 12) -> None:
    store = place.open()
    for number in range(count):
        store.put(f"{('cat', 'dog')[number % 2]}/{number:03}.jpg", picture(number))


def options(place: Place) -> list[str]:
    return [word for key, value in place.options.items() for word in ("--option", f"{key}={value}")]


@pytest.mark.parametrize("kind", ["s3", "gs", "az", "folder"])
def test_the_command_of_the_mission(kind: str, say: Say) -> None:
    place = new_place(kind)
    fill(place)
    before = {item.key: item.etag for item in place.open().list()}
    code, out, err = say("create", "penstock://org/training-corpus", f"from-{place.uri}", *options(place))
    assert code == 0, err
    assert "12 rows" in out
    assert "label" in out
    ds = penstock.load("penstock://org/training-corpus")
    assert len(ds) == 12
    stored = ds.select(["image"]).to_arrow().column("image").to_pylist()
    assert sorted(stored) == sorted(map(picture, range(12)))  # byte for byte
    assert {item.key: item.etag for item in place.open().list()} == before
    code, out, _ = say("create", "penstock://org/training-corpus", f"from-{place.uri}", *options(place))
    assert (code, "Nothing new." in out, len(penstock.load("penstock://org/training-corpus"))) == (0, True, 12)


def test_a_dry_run_shows_the_columns_and_writes_nothing(tmp_path: Path, say: Say, home: Path) -> None:
    place = new_place("folder")
    fill(place)
    code, out, _ = say("create", str(tmp_path / "t"), f"from-{place.uri}", "--dry-run")
    assert code == 0
    assert "image(jpeg)" in out
    assert "With --decode" in out
    assert "Nothing was written" in out
    assert not (tmp_path / "t").exists()
    code, _, _ = say("create", "penstock://org/new", f"from-{place.uri}", "--dry-run")
    assert code == 0
    assert not penstock.exists("penstock://org/new")


def test_pictures_stay_as_they_came_or_change_as_asked(tmp_path: Path, say: Say) -> None:
    place = new_place("folder")
    fill(place)
    source = f"from-{place.uri}"
    assert say("create", str(tmp_path / "same"), source)[0] == 0
    assert penstock.load(tmp_path / "same").to_arrow().column("image")[0].as_py() == picture(0)
    assert say("create", str(tmp_path / "tensors"), source, "--decode")[0] == 0
    tensors = penstock.load(tmp_path / "tensors")
    assert str(tensors.schema["image"].kind) == str(penstock.Tensor("uint8", (24, 32, 3)))
    assert np.array_equal(tensors["image"][0], simplejpeg.decode_jpeg(picture(0)))
    assert say("create", str(tmp_path / "small"), source, "--resize", "8x10", "--codec", "image=png")[0] == 0
    small = penstock.load(tmp_path / "small")
    assert small["image"][:].shape == (12, 8, 10, 3)
    assert small.schema["image"].kind == penstock.Image("png", (8, 10, 3))


def test_links_copy_nothing_and_stream(tmp_path: Path, say: Say) -> None:
    place = new_place("s3")
    fill(place)
    code, out, err = say("create", str(tmp_path / "t"), f"from-{place.uri}", "--link", *options(place))
    assert code == 0, err
    assert "nothing copied" in out
    ds = penstock.load(tmp_path / "t", links={"s3://bucket": place.options})
    assert np.array_equal(ds["image"][0], simplejpeg.decode_jpeg(picture(0)))
    batches = list(ds.pytorch(batch_size=5, shuffle=True, num_workers=2))
    assert sum(len(batch["image"]) for batch in batches) == 12


def test_sync_takes_what_is_new_with_the_same_settings(tmp_path: Path, say: Say) -> None:
    place = new_place("s3")
    fill(place, 6)
    table = str(tmp_path / "t")
    assert say("create", table, f"from-{place.uri}", "--resize", "8x8", *options(place))[0] == 0
    assert "Nothing new." in say("sync", table, *options(place))[1]
    fill(place, 9)
    code, out, err = say("sync", table, "--json", *options(place))
    assert code == 0, err
    [told] = json.loads(out)["sources"]
    assert (told["rows"], told["files"], told["version"]) == (3, 3, "main@2")
    assert any(json.loads(line)["event"] == "progress" for line in err.splitlines() if line.startswith("{"))
    assert penstock.load(table)["image"][:].shape == (9, 8, 8, 3)
    code, _, err = say("sync", table, "from-/nowhere/else")
    assert (code, "was not made from" in err) == (1, True)


def test_a_class_that_arrives_later_gets_the_next_number(tmp_path: Path, say: Say) -> None:
    place = new_place("folder")
    fill(place)
    table = str(tmp_path / "t")
    assert say("create", table, f"from-{place.uri}")[0] == 0
    place.open().put("bird/000.jpg", picture(99))
    code, out, err = say("sync", table)
    assert code == 0, err
    assert "1 row" in out
    ds = penstock.load(table)
    assert ds.schema["label"].kind == penstock.Label(("cat", "dog", "bird"))
    assert ds["label"][:].tolist() == [0] * 6 + [1] * 6 + [2]


def test_a_source_that_is_not_there_leaves_no_table(tmp_path: Path, say: Say) -> None:
    assert say("create", "penstock://org/oops", f"from-{tmp_path / 'nowhere'}")[0] == 1
    assert not penstock.exists("penstock://org/oops")
    assert say("create", str(tmp_path / "t"), f"from-{tmp_path / 'nowhere'}")[0] == 1
    assert not (tmp_path / "t").exists()


def test_columns_are_shown_before_the_work_starts(tmp_path: Path, say: Say) -> None:
    place = new_place("folder")
    fill(place)
    _, out, _ = say("create", str(tmp_path / "t"), f"from-{place.uri}")
    assert out.index("image(jpeg)") < out.index("12 rows")
    _, _, err = say("create", str(tmp_path / "u"), f"from-{place.uri}", "--json")
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert events[0] == "plan"
    assert events[-1] == "progress"


def test_secrets_of_the_source_are_not_repeated(tmp_path: Path, say: Say) -> None:
    words = ["create", str(tmp_path / "t"), "from-s3://bucket/x", "--source-option", "secret_access_key=hunter22"]
    words += ["--source-option", "endpoint=http://127.0.0.1:1", "--source-option", "profile_hunter22=x", "--debug"]
    code, out, err = say(*words)
    assert code != 0
    assert "hunter22" not in out
    assert "=hunter22" not in err


def test_broken_files_are_listed(tmp_path: Path, say: Say) -> None:
    place = new_place("folder")
    fill(place)
    store = place.open()
    store.put("cat/900.jpg", picture(1)[:200])
    store.put("dog/901.jpg", b"this is no picture")
    code, out, _ = say("create", str(tmp_path / "t"), f"from-{place.uri}", "--json")
    told: dict[str, Any] = json.loads(out)
    assert (code, told["rows"]) == (0, 12)
    assert {reject["name"] for reject in told["rejects"]} == {"cat/900.jpg", "dog/901.jpg"}
    code, _, err = say("create", str(tmp_path / "u"), f"from-{place.uri}", "--on-bad", "raise")
    assert (code, "900.jpg" in err or "901.jpg" in err) == (1, True)
    code, _, err = say("create", str(tmp_path / "v"), f"from-{place.uri}", "--max-bad", "1")
    assert (code, "more than 1" in err) == (1, True)
    assert say("create", str(tmp_path / "v"), f"from-{place.uri}", "--max-bad", "2")[0] == 0


def test_a_table_that_is_something_else_is_left_alone(tmp_path: Path, say: Say) -> None:
    place = new_place("folder")
    fill(place)
    ds = penstock.create(tmp_path / "t", {"x": int})
    ds.append({"x": [1]})
    ds.commit()
    code, _, err = say("create", str(tmp_path / "t"), f"from-{place.uri}")
    assert (code, "was not made from" in err) == (1, True)
    code, _, err = say("create", str(tmp_path / "new"), f"from-{tmp_path / 't'}")
    assert (code, "is a table of Penstock already" in err) == (2, True)


def test_a_table_beside_its_source_is_no_data(tmp_path: Path, say: Say) -> None:
    root = tmp_path / "bucket"
    fill(Place(str(root)))
    table = str(root / "tables" / "pets")
    assert say("create", table, f"from-{root}")[0] == 0
    assert "Nothing new." in say("create", table, f"from-{root}")[1]
    assert len(penstock.load(table)) == 12


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["from-"], "from-SOURCE"),
        (["s3://bucket"], "from-SOURCE"),
        (["from-/nowhere/at/all"], "there is nothing in"),
        (["from-{place}", "--as", "nonsense"], "there is no kind of source called 'nonsense'"),
        (["from-{place}", "--codec", "image"], "--codec is written COLUMN=CODEC"),
        (["from-{place}", "--codec", "image=jpg2000"], "jpg2000"),
        (["from-{place}", "--resize", "big"], "--resize is HEIGHTxWIDTH"),
        (["from-{place}", "--columns", "nope"], "there is no column 'nope'"),
        (["from-{place}", "--transform", "nope"], "module:function"),
        (["from-{place}", "--link", "--decode"], "a linked picture stays as it is"),
        (["from-{place}", "--on-bad", "maybe"], "--on-bad is skip or raise"),
        (["from-{place}", "--column", "a:text"], "columns of a source are found in it"),
    ],
)
def test_bad_words_get_a_sentence(words: list[str], said: str, tmp_path: Path, say: Say) -> None:
    place = new_place("folder")
    fill(place, 2)
    code, out, err = say("create", str(tmp_path / "t"), *(word.replace("{place}", place.uri) for word in words))
    assert code in (1, 2)
    assert said in err
    assert len(err.splitlines()) == 1
    assert not out
