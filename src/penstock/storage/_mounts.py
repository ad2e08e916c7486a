"""Which file systems are on this machine's own disks or memory."""

import os
from pathlib import Path

_LOCAL = frozenset(
    {"apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "overlay", "tmpfs", "xfs", "zfs"}
)
_MOUNTS = Path("/proc/self/mountinfo")


def is_local(folder: Path) -> bool:
    """Whether a folder is surely on a local file system; False where that cannot be told."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        device = os.stat(folder).st_dev
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kinds = {line.partition(" - ")[2].split(" ")[0] for line in lines if line.split(" ")[2] == wanted}
    return bool(kinds) and kinds <= _LOCAL
