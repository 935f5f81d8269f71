"""Models of movement in files."""

from __future__ import annotations

from pathlib import Path

from wayfare.core.prediction import Movement, decode, encode
from wayfare.errors import ModelError, UsageError


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


def read(path: Path) -> Movement:
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ModelError as error:
        raise ModelError(f"{path} cannot be used: {error}") from None
