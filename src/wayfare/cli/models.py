"""Models of movement, written to files; `net.maps` reads them."""

from __future__ import annotations

from pathlib import Path

from wayfare.core.prediction import Movement, encode
from wayfare.errors import UsageError


def write(path: Path, model: Movement) -> None:
    """Whole, or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(encode(model))
        part.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
