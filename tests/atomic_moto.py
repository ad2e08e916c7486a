"""moto's server with conditional puts that are atomic, as S3's are.

moto looks whether an object is there and then writes it, each request in a thread of its own, so that once in a while
a race has two winners. Takes the arguments of `python -m moto.server`.
"""

import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_put_object = S3Response.put_object
_one_at_a_time = threading.Lock()


def _atomic_put_object(self: S3Response) -> Any:
    with _one_at_a_time:
        return _put_object(self)


if __name__ == "__main__":
    S3Response.put_object = _atomic_put_object  # type: ignore[method-assign]
    main()
