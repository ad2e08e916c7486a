"""`penstock create TABLE from-SOURCE` and `penstock sync`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

import penstock
from penstock.cli import main
from tests.servers import StoreLocation, new_location

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_STORAGE", raising=False)
    return tmp_path / "home"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run_command(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return run_command


def image(seed: int, height: int = 24, width: int = 32) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    data: bytes = simplejpeg.encode_jpeg(pixels, quality=90)
    return data


def fill(place: StoreLocation, count: int = 12) -> None:
    store = place.open()
    for number in range(count):
        store.put(f"{('cat', 'dog')[number % 2]}/{number:03}.jpg", image(number))


def options(place: StoreLocation) -> list[str]:
    return [word for key, value in place.options.items() for word in ("--option", f"{key}={value}")]


@pytest.mark.parametrize("kind", ["s3", "gs", "az", "folder"])
def test_create_from_a_bucket_at_an_address(kind: str, cli: Cli) -> None:
    place = new_location(kind)
    fill(place)
    before = {item.key: item.etag for item in place.open().list()}
    code, out, err = cli("create", "penstock://org/training-corpus", f"from-{place.uri}", *options(place))
    assert code == 0, err
    assert "12 rows" in out
    assert "label" in out
    ds = penstock.load("penstock://org/training-corpus")
    assert len(ds) == 12
    stored = ds.select(["image"]).to_arrow().column("image").to_pylist()
    assert sorted(stored) == sorted(map(image, range(12)))  # byte for byte
    assert {item.key: item.etag for item in place.open().list()} == before
    code, out, _ = cli("create", "penstock://org/training-corpus", f"from-{place.uri}", *options(place))
    assert (code, "Nothing new." in out, len(penstock.load("penstock://org/training-corpus"))) == (0, True, 12)


def test_a_dry_run_shows_the_columns_and_writes_nothing(tmp_path: Path, cli: Cli, home: Path) -> None:
    place = new_location("folder")
    fill(place)
    code, out, _ = cli("create", str(tmp_path / "t"), f"from-{place.uri}", "--dry-run")
    assert code == 0
    assert "image(jpeg, (24, 32, 3) inferred)" in out
    assert "With --decode" in out
    assert "nothing was written" in out
    assert not (tmp_path / "t").exists()
    code, _, _ = cli("create", "penstock://org/new", f"from-{place.uri}", "--dry-run")
    assert code == 0
    assert not penstock.exists("penstock://org/new")


def test_images_are_stored_unchanged_decoded_or_resized(tmp_path: Path, cli: Cli) -> None:
    place = new_location("folder")
    fill(place)
    source = f"from-{place.uri}"
    assert cli("create", str(tmp_path / "same"), source)[0] == 0
    assert penstock.load(tmp_path / "same").to_arrow().column("image")[0].as_py() == image(0)
    assert cli("create", str(tmp_path / "tensors"), source, "--decode")[0] == 0
    tensors = penstock.load(tmp_path / "tensors")
    assert str(tensors.schema["image"].kind) == str(penstock.Tensor("uint8", (24, 32, 3)))
    assert np.array_equal(tensors["image"][0], simplejpeg.decode_jpeg(image(0)))
    assert cli("create", str(tmp_path / "small"), source, "--image-size", "8x10", "--codec", "image=png")[0] == 0
    small = penstock.load(tmp_path / "small")
    assert small["image"][:].shape == (12, 8, 10, 3)
    assert small.schema["image"].kind == penstock.Image("png", (8, 10, 3))


def test_links_copy_nothing_and_stream(tmp_path: Path, cli: Cli) -> None:
    place = new_location("s3")
    fill(place)
    code, out, err = cli("create", str(tmp_path / "t"), f"from-{place.uri}", "--link", *options(place))
    assert code == 0, err
    assert "nothing copied" in out
    ds = penstock.load(tmp_path / "t", links={"s3://bucket": place.options})
    assert np.array_equal(ds["image"][0], simplejpeg.decode_jpeg(image(0)))
    batches = list(ds.pytorch(batch_size=5, shuffle=True, num_workers=2))
    assert sum(len(batch["image"]) for batch in batches) == 12


def test_sync_ingests_new_files_with_the_same_options(tmp_path: Path, cli: Cli) -> None:
    place = new_location("s3")
    fill(place, 6)
    table = str(tmp_path / "t")
    assert cli("create", table, f"from-{place.uri}", "--image-size", "8x8", *options(place))[0] == 0
    assert "Nothing new." in cli("sync", table, *options(place))[1]
    fill(place, 9)
    code, out, err = cli("sync", table, "--json", *options(place))
    assert code == 0, err
    [result] = json.loads(out)["sources"]
    assert (result["rows"], result["files"]["taken"], result["version"]) == (3, 3, "main@2")
    assert any(json.loads(line)["event"] == "progress" for line in err.splitlines() if line.startswith("{"))
    assert penstock.load(table)["image"][:].shape == (9, 8, 8, 3)
    code, _, err = cli("sync", table, "from-/nowhere/else")
    assert (code, "is not a source of" in err) == (1, True)


def test_a_new_class_gets_the_next_index(tmp_path: Path, cli: Cli) -> None:
    place = new_location("folder")
    fill(place)
    table = str(tmp_path / "t")
    assert cli("create", table, f"from-{place.uri}")[0] == 0
    place.open().put("bird/000.jpg", image(99))
    code, out, err = cli("sync", table)
    assert code == 0, err
    assert "1 row" in out
    ds = penstock.load(table)
    assert ds.schema["label"].kind == penstock.Label(("cat", "dog", "bird"))
    assert ds["label"][:].tolist() == [0] * 6 + [1] * 6 + [2]


def test_a_missing_source_creates_no_table(tmp_path: Path, cli: Cli) -> None:
    assert cli("create", "penstock://org/oops", f"from-{tmp_path / 'nowhere'}")[0] == 1
    assert not penstock.exists("penstock://org/oops")
    assert cli("create", str(tmp_path / "t"), f"from-{tmp_path / 'nowhere'}")[0] == 1
    assert not (tmp_path / "t").exists()


def test_columns_are_shown_before_rows_are_written(tmp_path: Path, cli: Cli) -> None:
    place = new_location("folder")
    fill(place)
    _, out, _ = cli("create", str(tmp_path / "t"), f"from-{place.uri}")
    assert out.index("image(jpeg, (24, 32, 3)") < out.index("12 rows")
    _, _, err = cli("create", str(tmp_path / "u"), f"from-{place.uri}", "--json")
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert events[0] == "plan"
    assert events[-1] == "progress"


def test_secrets_of_the_source_are_redacted(tmp_path: Path, cli: Cli) -> None:
    words = ["create", str(tmp_path / "t"), "from-s3://bucket/x", "--source-option", "secret_access_key=hunter22"]
    words += ["--source-option", "endpoint=http://127.0.0.1:1", "--source-option", "profile_hunter22=x", "--debug"]
    code, out, err = cli(*words)
    assert code != 0
    assert "hunter22" not in out
    assert "=hunter22" not in err


def test_a_transform_is_imported_from_the_current_folder(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_location("folder")
    fill(place, 4)
    (tmp_path / "helper_of_rows.py").write_text("PREFIX = 'cat/'")
    (tmp_path / "rows_of_pets.py").write_text(
        "from helper_of_rows import PREFIX\n\n"
        "def cats(row):\n    return row if row['path'].startswith(PREFIX) else None\n"
    )
    words = ["create", str(tmp_path / "t"), f"from-{place.uri}", "--transform", "rows_of_pets:cats"]
    before = list(sys.path)
    assert "cannot be imported" in cli(*words)[2]
    assert sys.path == before
    monkeypatch.chdir(tmp_path)
    code, _, err = cli(*words)
    assert code == 0, err
    assert len(penstock.load(tmp_path / "t")) == 2
    assert sys.path == before
    for name in ("helper_of_rows", "rows_of_pets"):
        monkeypatch.delitem(sys.modules, name)


def test_bad_files_are_listed_up_to_the_limit(tmp_path: Path, cli: Cli) -> None:
    place = new_location("folder")
    fill(place)
    store = place.open()
    store.put("cat/900.jpg", image(1)[:200])
    store.put("dog/901.jpg", b"this is no image")
    code, out, _ = cli("create", str(tmp_path / "t"), f"from-{place.uri}", "--json")
    result: dict[str, Any] = json.loads(out)
    assert (code, result["rows"]) == (0, 12)
    assert {reject["name"] for reject in result["rejects"]} == {"cat/900.jpg", "dog/901.jpg"}
    code, _, err = cli("create", str(tmp_path / "u"), f"from-{place.uri}", "--bad-samples", "raise")
    assert (code, "900.jpg" in err or "901.jpg" in err) == (1, True)
    code, _, err = cli("create", str(tmp_path / "v"), f"from-{place.uri}", "--bad-sample-limit", "1")
    assert (code, "more than 1" in err) == (1, True)
    code, _, err = cli("create", str(tmp_path / "v"), f"from-{place.uri}", "--bad-sample-limit", "0.1")
    assert (code, "more than 10" in err) == (1, True)
    assert cli("create", str(tmp_path / "v"), f"from-{place.uri}", "--bad-sample-limit", "2")[0] == 0


def test_an_unrelated_table_is_unchanged(tmp_path: Path, cli: Cli) -> None:
    place = new_location("folder")
    fill(place)
    ds = penstock.create(tmp_path / "t", {"x": int})
    ds.append({"x": [1]})
    ds.commit()
    code, _, err = cli("create", str(tmp_path / "t"), f"from-{place.uri}")
    assert (code, "is not its source" in err) == (1, True)
    code, _, err = cli("create", str(tmp_path / "new"), f"from-{tmp_path / 't'}")
    assert (code, "is a Penstock table already" in err) == (2, True)


def test_a_table_inside_its_source_is_ignored(tmp_path: Path, cli: Cli) -> None:
    root = tmp_path / "bucket"
    fill(StoreLocation(str(root)))
    table = str(root / "tables" / "pets")
    assert cli("create", table, f"from-{root}")[0] == 0
    assert "Nothing new." in cli("create", table, f"from-{root}")[1]
    assert len(penstock.load(table)) == 12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["from-"], "from-SOURCE"),
        (["s3://bucket"], "from-SOURCE"),
        (["from-/nowhere/at/all"], "there are no files in"),
        (["from-{place}", "--as", "nonsense"], "there is no kind of source called 'nonsense'"),
        (["from-{place}", "--codec", "image"], "--codec is written COLUMN=CODEC"),
        (["from-{place}", "--codec", "image=jpg2000"], "jpg2000"),
        (["from-{place}", "--image-size", "big"], "--image-size is HEIGHTxWIDTH"),
        (["from-{place}", "--columns", "nope"], "there is no column 'nope'"),
        (["from-{place}", "--transform", "nope"], "module:function"),
        (["from-{place}", "--link", "--decode"], "a linked image is stored unchanged"),
        (["from-{place}", "--bad-samples", "maybe"], "--bad-samples is skip or raise"),
        (["from-{place}", "--column", "nothing:text"], "there is no column 'nothing'"),
    ],
)
def test_wrong_usage_is_one_sentence(words: list[str], message: str, tmp_path: Path, cli: Cli) -> None:
    place = new_location("folder")
    fill(place, 2)
    code, out, err = cli("create", str(tmp_path / "t"), *(word.replace("{place}", place.uri) for word in words))
    assert code in (1, 2)
    assert message in err
    assert len(err.splitlines()) == 1
    assert not out
