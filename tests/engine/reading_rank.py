"""One rank that reads a table with worker processes: `python -m tests.engine.reading_rank URI RANK RANKS WORKERS FILE`.

It appends the rows of each batch, and the state after it, to a file, as one line; after a kill it goes on from there.
"""

import json
import sys
import time
from pathlib import Path

import penstock
from penstock import Shuffle, Workers


def main(uri: str, rank: int, ranks: int, workers: int, path: Path) -> None:
    loader = (
        penstock.load(uri)
        .select(["_row_id", "x"])
        .numpy(
            batch_size=5,
            shuffle=Shuffle(block_bytes=2000, spread=1, lanes=16),
            num_workers=Workers(2 * workers, "process"),
            distributed=(rank, ranks),
            memory_budget=1 << 20,
        )
    )
    lines = path.read_text().splitlines() if path.exists() else []
    if lines:
        loader.load_state_dict(json.loads(lines[-1])["state"])
    with path.open("a") as file:
        for batch in loader:
            rows = batch["_row_id"][~batch["_pad"]].tolist()
            file.write(json.dumps({"rows": rows, "state": loader.state_dict()}) + "\n")
            file.flush()
            time.sleep(0.03)
        file.write(json.dumps({"rows": [], "state": loader.state_dict()}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
