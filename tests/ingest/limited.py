"""Take a source in with little memory: `python -m tests.ingest.limited KIND SOURCE TABLE`.

The limit is on the data of the process (RLIMIT_DATA), above what it has after the imports. Prints the rows taken in,
and the most memory of its own that the process had at once, above what it had after the imports.
"""

import resource
import sys
import threading
import time

import torch  # noqa: F401  which some sources need

import penstock

LIMIT_BYTES = 512 << 20
_LOOK_S = 0.01


def main(kind: str, source: str, table: str) -> None:
    threading.stack_size(1 << 20)
    data, imported = _bytes("VmData"), _bytes("RssAnon")
    resource.setrlimit(resource.RLIMIT_DATA, (data + LIMIT_BYTES, data + LIMIT_BYTES))
    peak = [imported]

    def watch() -> None:
        while True:
            peak[0] = max(peak[0], _bytes("RssAnon"))
            time.sleep(_LOOK_S)

    threading.Thread(target=watch, daemon=True).start()
    rows = penstock.ingest(source, table, kind=kind, workers=1, on_bad="raise").rows
    print(rows, peak[0] - imported)


def _bytes(name: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
