"""Maps in files: of places, or mined from how clients moved. The name says which: .toml or .json."""

from __future__ import annotations

from pathlib import Path

from wayfare.core import places, prediction
from wayfare.core.places import Places
from wayfare.core.prediction import Movement
from wayfare.errors import ModelError, UsageError


def read(path: Path) -> Places:
    """A map; UsageError if the file cannot be read, ModelError if it holds none."""
    form = path.suffix.lower().removeprefix(".")
    if form not in ("json", "toml"):
        raise UsageError(f"{path} is no map by its name: call it .json or .toml")
    try:
        return places.decode(_bytes(path), form)
    except ModelError as error:
        raise ModelError(f"{path} cannot be used: {error}") from None


def read_movement(path: Path) -> Movement:
    """A mined model; the same errors."""
    try:
        return prediction.decode(_bytes(path))
    except ModelError as error:
        raise ModelError(f"{path} cannot be used: {error}") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
