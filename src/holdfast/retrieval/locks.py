"""A file that one process holds; the system lets go of it when the process ends, however it ends."""

from __future__ import annotations

from typing import IO, Any


def locked(file: IO[Any]) -> bool:
    """Take the file, unless another process has it. On systems without such locks (Windows) it is always had."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: Lustre, some NFS
        return True
    return True
