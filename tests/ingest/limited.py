"""Take a source in with little memory: `python -m tests.ingest.limited KIND SOURCE TABLE`; prints the rows taken in.

The limit is on the data of the process (RLIMIT_DATA), above what it has after the imports.
"""

import resource
import sys
import threading

import penstock

LIMIT_BYTES = 320 << 20


def main(kind: str, source: str, table: str) -> None:
    threading.stack_size(1 << 20)
    with open("/proc/self/status") as status:
        data = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + LIMIT_BYTES, data + LIMIT_BYTES))
    print(penstock.ingest(source, table, kind=kind, workers=1, on_bad="raise").rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
