"""Whole objects over plain HTTP, many at once, whatever the server does."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage._ahead import Ahead
from penstock.storage._plain_each import PlainEach, Whole
from penstock.storage._plain_http import PlainHttp

TIMEOUT_S = 1.5
GOOD = ("whole", "slowly", "last")
BAD = ("503", "404", "200", "longer", "cut", "closed", "noise")
BODY = bytes(range(256)) * 600


def body(number: int, size: int) -> bytes:
    return BODY[number : number + size]


@contextmanager
def serving() -> Iterator[tuple[PlainHttp, list[int]]]:
    """A server for `/way/number/size`, which answers in that way; and a list with a number for each connection."""
    connections: list[int] = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:

        def serve(client: socket.socket) -> None:
            with client, suppress(OSError):
                while asked := client.recv(4096):
                    way, number, size = asked.split()[1].decode().strip("/").split("/")
                    if not answer(client, way, body(int(number), int(size))):
                        return

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client = listener.accept()[0]
                    connections.append(len(connections))
                    threading.Thread(target=serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield PlainHttp(lambda path: f"{address}/{path}", timeout_s=TIMEOUT_S), connections


def answer(client: socket.socket, way: str, data: bytes) -> bool:
    """Answer a question for all of some data; whether the connection goes on."""
    size = len(data)
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Length: {size}\r\nContent-Range: bytes 0-{size - 1}/{size}\r\n"
    if way == "whole":
        client.sendall(f"{head}\r\n".encode() + data)
    elif way == "slowly":
        whole = f"{head}\r\n".encode() + data
        for cut in (whole[:7], whole[7:90], whole[90 : 90 + size // 2], whole[90 + size // 2 :]):
            client.sendall(cut)
            time.sleep(0.002)
    elif way == "last":
        client.sendall(f"{head}Connection: close\r\n\r\n".encode() + data)
    elif way in ("503", "404", "200"):
        client.sendall(f"HTTP/1.1 {way} Well\r\nContent-Length: {size}\r\n\r\n".encode() + data)
    elif way == "longer":
        client.sendall(f"{head}\r\n".replace(f"/{size}\r\n", f"/{size + 1}\r\n").encode() + data)
    elif way == "cut":
        client.sendall(f"{head}\r\n".encode() + data[: size // 2])
    elif way == "noise":
        client.sendall(b"what?\r\n\r\n")
    elif way == "never":
        time.sleep(3 * TIMEOUT_S)
    return way in ("whole", "slowly", "503")


def read(plain: PlainHttp, ways: Sequence[str], sizes: Sequence[int], ahead: Ahead) -> list[bytes | str]:
    """What comes, bytes or the way that was not as it should be."""
    asked = enumerate(zip(ways, sizes, strict=True))
    objects = [Whole(f"{way}/{number}/{size}", size, None) for number, (way, size) in asked]
    return [
        found if isinstance(found, str) else bytes(found)
        for found in PlainEach(plain).read(objects, lambda number: ways[number], ahead)
    ]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(GOOD + BAD), st.integers(1, 90_000)), max_size=40),
    st.integers(1, 12),
    st.sampled_from([1, 100_000, 1 << 30]),
)
def test_objects_come_in_order_and_what_does_not_come_is_asked_for_otherwise(
    asked: list[tuple[str, int]], at_once: int, max_bytes: int
) -> None:
    ways, sizes = [way for way, _ in asked], [size for _, size in asked]
    with serving() as (plain, _):
        found = read(plain, ways, sizes, Ahead(at_once, max_bytes))
    for number, (way, size, got) in enumerate(zip(ways, sizes, found, strict=True)):
        assert got in ((way,) if way in BAD else (way, body(number, size)))  # a server of which we know little is left
    if set(ways) <= {*GOOD, "503"}:
        assert found == [way if way == "503" else body(n, s) for n, (way, s) in enumerate(asked)]


def test_large_and_empty_objects_are_for_others() -> None:
    with serving() as (plain, connections):
        assert read(plain, ["whole"] * 3, [0, 1 << 20, 10], Ahead(2, 100)) == ["whole", "whole", body(2, 10)]
        assert len(connections) == 1


def test_connections_are_used_again_by_whoever_comes_next() -> None:
    objects = [Whole(f"whole/{number}/{number + 1}", number + 1, None) for number in range(200)]
    with serving() as (plain, connections):
        each = PlainEach(plain)
        for _ in range(3):
            found = [bytes(data) for data in each.read(objects, lambda _: b"", Ahead(8, 1 << 30))]
            assert found == [body(number, number + 1) for number in range(200)]
        assert len(connections) <= 8


def test_a_connection_that_was_closed_while_idle_costs_nothing_but_another_way() -> None:
    with serving() as (plain, connections):
        each = PlainEach(plain)
        objects = [Whole("whole/0/5", 5, None)]
        assert [bytes(data) for data in each.read(objects, lambda _: b"", Ahead(1, 1))] == [body(0, 5)]
        each._kept[0].socket.shutdown(socket.SHUT_RDWR)
        assert [bytes(data) for data in each.read(objects, lambda _: b"else", Ahead(1, 1))] == [b"else"]
        assert [bytes(data) for data in each.read(objects, lambda _: b"else", Ahead(1, 1))] == [body(0, 5)]
        assert len(connections) == 2


def test_an_answer_that_never_comes_is_given_up_in_time() -> None:
    with serving() as (plain, _):
        began = time.monotonic()
        assert read(plain, ["whole", "never", "whole"], [5, 5, 5], Ahead(3, 100)) == [body(0, 5), "never", body(2, 5)]
        assert TIMEOUT_S <= time.monotonic() - began < 2.5 * TIMEOUT_S


def test_where_nobody_listens_all_is_asked_for_otherwise() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"http://127.0.0.1:{gone.getsockname()[1]}"
    plain = PlainHttp(lambda path: f"{address}/{path}", timeout_s=1)
    assert read(plain, ["whole"] * 20, [5] * 20, Ahead(4, 100)) == ["whole"] * 20


@pytest.mark.parametrize("ahead", [Ahead(1, 1), Ahead(4, 50), Ahead(64, 1 << 30)])
def test_memory_is_bounded_by_what_may_be_ahead(ahead: Ahead) -> None:
    asked: list[int] = []
    with serving() as (plain, _):
        objects = [Whole(f"whole/{number}/10", 10, None) for number in range(300)]
        each = PlainEach(PlainHttp(lambda path: asked.append(1) or plain._address(path), timeout_s=5))  # type: ignore[func-returns-value]
        for number, _ in enumerate(each.read(objects, lambda _: b"", ahead)):
            ahead_by = len(asked) - number - 1
            assert ahead_by <= max(0, 4 * ahead.at_once - 1)
            assert ahead_by * 10 <= ahead.max_bytes + 10
