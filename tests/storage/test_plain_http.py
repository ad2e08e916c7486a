"""Ranges read straight from the network, and what is left to obstore."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from penstock.errors import SourceChanged, StorageTimeout
from penstock.storage import RetryPolicy, open_store
from penstock.storage._clouds import plain_urls
from penstock.storage._plain_http import PlainHttp
from penstock.types import ByteRange
from tests.servers import moto_port, new_place, s3_options
from tests.storage.proxy import Action, FaultProxy

BODY = bytes(range(256)) * 4000
START = 100
WANTED = BODY[START : START + 700_000]
HEAD = f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(WANTED)}\r\n"
RANGE = f"Content-Range: bytes {START}-{START + len(WANTED) - 1}/{len(BODY)}\r\n"
WHOLE = f"{HEAD}{RANGE}\r\n".encode() + WANTED

Answer = Sequence[bytes | float | None]
"""What is sent, in parts; a number is a pause, and None closes the connection."""


@contextmanager
def serving(*answers: Answer) -> Iterator[tuple[PlainHttp, list[int]]]:
    """A server that gives these answers, one after the other; and the numbers of the connections that got them."""
    asked: list[int] = []
    left = list(answers)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(client: socket.socket, number: int) -> None:
            with client, suppress(OSError):
                while client.recv(4096):
                    asked.append(number)
                    for part in left.pop(0):
                        if part is None:
                            return
                        if isinstance(part, float):
                            time.sleep(part)
                        else:
                            client.sendall(part)

        def accept() -> None:
            with suppress(OSError):
                for number in range(100):
                    threading.Thread(target=serve, args=(listener.accept()[0], number), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/bucket"
        yield PlainHttp(lambda path: f"{address}/{path}", timeout_s=5), asked


def read(plain: PlainHttp, late_s: float | None = None, cuts: Sequence[int] = ()) -> bytes | None:
    """What is read into buffers of these lengths and one for the rest."""
    buffers = [memoryview(bytearray(size)) for size in (*cuts, len(WANTED) - sum(cuts))]
    return b"".join(buffers) if plain.read("key", START, buffers, late_s=late_s) else None


@pytest.mark.parametrize("cuts", [(), (1,), (0, 300, 0, 5000), (3,) * 3000, (699_999,)])
@pytest.mark.parametrize("cut", [1, 20, len(WHOLE) - len(WANTED), len(WHOLE) - len(WANTED) + 1, 300_000])
def test_a_range_fills_buffers_however_it_comes(cuts: Sequence[int], cut: int) -> None:
    with serving([WHOLE[:cut], 0.01, WHOLE[cut:]], [WHOLE]) as (plain, asked):
        assert read(plain, cuts=cuts) == WANTED
        assert read(plain, cuts=cuts) == WANTED
        assert asked == [0, 0]  # by the same connection


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        WHOLE.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n", 1),
        WHOLE.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n", 1),
        WHOLE.replace(RANGE.encode(), b""),
        WHOLE.replace(b"bytes 100-", b"bytes 101-"),
        WHOLE.replace(b"Content-Length: 700000", b"Content-Length: 699999"),
        b"what?\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\n" + b"x: y\r\n" * 10_000,
    ],
)
def test_what_is_not_known_is_left_to_others_and_not_asked_for_again_and_again(answer: bytes) -> None:
    with serving(*[[answer]] * 3) as (plain, asked):
        for number in range(3):
            assert plain.serves
            assert read(plain) is None
            assert len(set(asked)) == number + 1  # what else may come over that connection is not known either
        assert not plain.serves


@pytest.mark.parametrize(
    "answer", [[b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"], [WHOLE[:9000], None], [None]]
)
def test_a_store_in_trouble_is_asked_again_later(answer: Answer) -> None:
    with serving(*[answer] * 5, [WHOLE]) as (plain, _):
        for _ in range(5):
            assert read(plain) is None
        assert read(plain) == WANTED


def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    with serving([WHOLE, None], [WHOLE], [WHOLE[:5000], None], [WHOLE]) as (plain, asked):
        assert [read(plain) for _ in range(3)] == [WANTED] * 3
        assert asked == [0, 1, 1, 2]


def test_a_connection_that_the_store_will_close_is_not_kept() -> None:
    with serving(*[[WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)]] * 2) as (plain, asked):
        assert [read(plain) for _ in range(2)] == [WANTED] * 2
        assert asked == [0, 1]


@pytest.mark.parametrize("answer", [[1.0, WHOLE], [WHOLE[:9000], 1.0, WHOLE[9000:]]])
def test_what_is_late_is_given_up_and_can_be_asked_for_again(answer: Answer) -> None:
    with serving(answer, [WHOLE]) as (plain, asked):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            read(plain, late_s=0.1)
        assert time.monotonic() - began < 0.8
        assert read(plain, late_s=5.0) == WANTED
        assert asked == [0, 1]


@pytest.mark.parametrize(
    ("script", "straight"),
    [(["pass"], True), (["403", "pass"] * 3, False)],
)
def test_a_store_reads_straight_where_it_can_and_by_obstore_where_not(script: Sequence[Action], straight: bool) -> None:
    place, key = new_place("s3"), "a b/ü+%.bin"
    place.open().put(key, BODY)
    with FaultProxy(moto_port(), script) as proxy:
        store = open_store(place.uri, options=s3_options(proxy.endpoint))
        assert store.straight
        for _ in range(3):
            into = memoryview(bytearray(len(WANTED)))
            store.read_into(key, START, [into])
            assert into == WANTED
        assert store.straight == straight
        assert store.retries == (0 if straight else 3)


def test_only_the_object_with_the_etag_is_read() -> None:
    place = new_place("s3")
    store = place.open()
    store.put("k", BODY)
    wanted, etag = ByteRange(START, START + len(WANTED)), store.head("k").etag
    assert store.get("k", byte_range=wanted, etag=etag) == WANTED
    store.put("k", BODY[::-1])
    with pytest.raises(SourceChanged, match=r"no longer has etag"):
        store.get("k", byte_range=wanted, etag=etag)
    assert store.straight


def test_a_late_answer_is_a_timeout_of_the_store() -> None:
    with FaultProxy(moto_port(), ["hang"]) as proxy:
        store = open_store("s3://bucket/x", options=s3_options(proxy.endpoint), retry=RetryPolicy(deadline_s=30))
        with pytest.raises(StorageTimeout, match=r"cannot read s3://bucket/x/k"):
            store.read_into("k", 0, [memoryview(bytearray(10))], late_s=0.2)


def _urls(options: dict[str, str], scheme: str = "s3") -> Callable[[str], str | None] | None:
    def client() -> None:
        raise AssertionError("nobody signs")

    return plain_urls(scheme, "bucket", options, client)  # type: ignore[arg-type]


def test_only_plain_http_without_a_proxy_is_read_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    plain = {"endpoint": "http://store.local:9000/", "skip_signature": "true"}
    urls = _urls(plain)
    assert urls is not None
    assert urls("a b/ü+%.bin") == "http://store.local:9000/bucket/a%20b/%C3%BC%2B%25.bin"
    assert _urls({"endpoint": "https://store.local", "skip_signature": "true"}) is None
    assert _urls({}) is None
    assert _urls(plain, "gs") is None
    assert _urls(plain | {"virtual_hosted_style_request": "true"}) is None
    assert _urls(plain | {"proxy_url": "http://proxy:1"}) is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere:1")
    assert _urls(plain) is None  # who knows which of them counts
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    assert _urls(plain) is None
    monkeypatch.setenv("no_proxy", "store.local")
    assert _urls(plain) is not None
