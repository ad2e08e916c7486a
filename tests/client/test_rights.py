"""What a key knows and may: its workspace, and whether it can write."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Client, Dataset
from penstock.catalog import Access
from penstock.cli import main
from penstock.errors import AccessDeniedError
from tests.client.counting import CountingProxy
from tests.server.running import RunningServer, running
from tests.servers import sts_server


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server on S3 with a workspace `robots`."""
    folder, store = tmp_path_factory.mktemp("server"), sts_server()
    options = [word for pair in store.options.items() for word in ("--option", "=".join(pair))]
    storage = ("--storage", f"s3://{store.bucket}/rights", "--role-arn", store.role_arn)
    with running(folder, "--database", str(folder / "database"), *storage, *options) as started:
        started.post("/v1/namespace/robots/create")
        yield started


def test_a_key_knows_its_workspace(
    lake: RunningServer, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with CountingProxy(lake.port) as api:
        monkeypatch.setenv("PENSTOCK_API_URL", api.url)
        monkeypatch.setenv("PENSTOCK_API_KEY", lake.new_key("robots", "ana", "admin"))
        client = Client()
        assert not api.requests, "a client that is only made asks nothing"
        client.create_table("arm", {"angle": "float32"})
        api.reset()
        assert len(client.open_table("arm")) == 0
        assert [info.name for info in Client().list_tables()] == ["arm"]
        assert not [request for request in api.requests if "whoami" in request], "it is asked once"
        assert Client().workspace == "robots"
        assert main(["members", "list"]) == 0
        assert "ana" in capsys.readouterr().out
        monkeypatch.setenv("PENSTOCK_WORKSPACE", "default")
        assert Client().workspace == "default", "what is set explicitly wins"
        with pytest.raises(AccessDeniedError, match="this key is for the workspace robots"):
            Client().open_table("arm")
        monkeypatch.delenv("PENSTOCK_WORKSPACE")
        assert Client(api_key=lake.admin_key).workspace == "default"


def add_row(ds: Dataset) -> None:
    ds.append({"angle": [3.0]})
    ds.commit()


@pytest.mark.parametrize(
    ("role", "access", "reason"),
    [("reader", None, "this key may read, not write; ask"), ("writer", "read", 'opened with access="read"')],
)
def test_a_write_without_the_right_is_refused_in_words(
    lake: RunningServer, home: Path, role: str, access: Access | None, reason: str
) -> None:
    writer = Client(api_key=lake.new_key("robots", "bo", "writer"), api_url=lake.url)
    table = f"for-a-{role}"
    with writer.create_table(table, {"angle": "float32"}) as ds:
        ds.append({"angle": [1.0, 2.0]})
    ds = Client(api_key=lake.new_key("robots", f"a-{role}", role), api_url=lake.url).open_table(table, access=access)
    assert ds["angle"][:].tolist() == [1.0, 2.0]
    for copied in (ds, pickle.loads(pickle.dumps(ds))):
        with pytest.raises(AccessDeniedError) as caught:
            add_row(copied)
        assert reason in str(caught.value)
        assert "<" not in str(caught.value)
        copied.rollback()
    with pytest.raises(AccessDeniedError, match=r"may read|access="):
        ds.tags.create("first")
