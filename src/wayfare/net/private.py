"""Files, directories and sockets that only their owner may use, whatever the umask is.

They are created with their mode: between a `chmod` and the creation before it, others could open them.
What exists already keeps the mode that its owner gave it.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def create_private(path: Path) -> int:
    """Open a file for reading and writing, and create it with mode 0600 if it does not exist."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def create_private_directory(path: Path) -> None:
    """Create a directory with mode 0700, and those of its parents that do not exist."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


def bind_private(path: str) -> socket.socket:
    """A listening Unix socket with mode 0600."""
    out = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)  # no await until it is restored: it counts for the whole process
    try:
        out.bind(path)
    except BaseException:
        out.close()
        raise
    finally:
        os.umask(before)
    return out
