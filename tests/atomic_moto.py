"""moto's server with conditional puts that are atomic, as S3's are.

moto checks whether an object exists and then writes it, each request in its own thread, so that sometimes two racing
requests succeed. Takes the arguments of `python -m moto.server`.
"""

import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_put_object = S3Response.put_object
_put_lock = threading.Lock()


def _atomic_put_object(self: S3Response) -> Any:
    with _put_lock:
        return _put_object(self)


if __name__ == "__main__":
    S3Response.put_object = _atomic_put_object  # type: ignore[method-assign]
    main()
