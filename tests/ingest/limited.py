"""Ingest a source with limited memory: `python -m tests.ingest.limited KIND SOURCE TABLE`.

The limit is RLIMIT_DATA, in addition to the memory used after the imports. Prints the number of rows, and the peak
anonymous memory in addition to that after the imports.
"""

import resource
import sys
import threading
import time

import torch  # noqa: F401  needed by some sources

import penstock

LIMIT_BYTES = 512 << 20
_SAMPLE_S = 0.01


def main(kind: str, source: str, table: str) -> None:
    threading.stack_size(1 << 20)
    data, imported = _bytes("VmData"), _bytes("RssAnon")
    resource.setrlimit(resource.RLIMIT_DATA, (data + LIMIT_BYTES, data + LIMIT_BYTES))
    peak = [imported]

    def sample_memory() -> None:
        while True:
            peak[0] = max(peak[0], _bytes("RssAnon"))
            time.sleep(_SAMPLE_S)

    threading.Thread(target=sample_memory, daemon=True).start()
    rows = penstock.ingest(source, table, kind=kind, num_workers=1, bad_samples="raise").rows
    print(rows, peak[0] - imported)


def _bytes(name: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
