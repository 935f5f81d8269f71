"""What a value of a configuration may be: each kind reads one, or says what to write instead.

A kind is a name, for the reference, and a function that raises ValueError with the rest of a sentence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from wayfare.core.broker import RELOCATIONS
from wayfare.core.places import EVERYWHERE
from wayfare.core.reduction import STRATEGIES
from wayfare.errors import UsageError
from wayfare.net.addresses import PORT, Address


class Kind(msgspec.Struct, frozen=True):
    name: str
    read: Callable[[Any], Any]


DURATIONS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
PERCENT = re.compile(r"([0-9]{1,3})%")
CGROUP_FILES = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
SIZES = {"B": 1, "kB": 1000, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}
NAME = re.compile(r"[\w.-]{1,256}")
NAMES = "names are made of letters, digits, '.', '-' and '_'"
WORDS_OF_STEPS = {"everywhere": EVERYWHERE, "by dwell": None}
QUANTITY = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)")


def _text(value: Any) -> str:
    if type(value) is not str or not value:
        raise ValueError("give a text")
    return value


def _name(value: Any) -> str:
    if type(value) is not str or not NAME.fullmatch(value):
        raise ValueError(f"give a name; {NAMES}")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value < 2**62:
        raise ValueError("give a whole number, at least 1")
    return value


def _count_or_none(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError("give a whole number, or 0 for none")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("give true or false")
    return value


def _port(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 65535:
        raise ValueError("give a port from 1 to 65535, or 0 for any that is free")
    return value


def _quantity(value: Any, units: Mapping[str, int], plain: int) -> int:
    """A number with a unit, or without: then it is in `plain` ones. At least 1 of what is counted."""
    if type(value) in (int, float) and 0 < value * plain < 2**62:
        return max(1, int(value * plain))
    if type(value) is str and (found := QUANTITY.fullmatch(value)) and found[2] in units:
        return _quantity(float(found[1]) if "." in found[1] else int(found[1]), {}, units[found[2]])
    raise ValueError


def _duration(value: Any) -> int:
    try:
        return _quantity(value, DURATIONS_NS, DURATIONS_NS["s"])
    except ValueError:
        raise ValueError('give seconds, like 30, or a text like "500ms", "10m", "7d"') from None


def _duration_or_none(value: Any) -> int:
    """Nanoseconds; 0: none."""
    if value in ("none", 0) and type(value) is not bool:
        return 0
    try:
        return _duration(value)
    except ValueError:
        raise ValueError('give seconds, like 10, a text like "500ms", or "none"') from None


def _size(value: Any) -> int:
    try:
        return _quantity(value, SIZES, 1)
    except ValueError:
        raise ValueError('give a number of bytes, or a text like "64kB", "16MiB"') from None


def _memory(value: Any) -> int:
    """Bytes; a share is one of what this machine, or the container, has; 0: no limit."""
    if value in ("none", 0) and type(value) is not bool:
        return 0
    if type(value) is str and (found := PERCENT.fullmatch(value)) and 0 < int(found[1]) <= 100:
        return available_bytes() * int(found[1]) // 100
    try:
        return _quantity(value, SIZES, 1)
    except ValueError:
        raise ValueError('give a size like "512MiB", a share like "50%", or "none"') from None


def _size_or_none(value: Any) -> int:
    """Bytes; 0: no limit."""
    if value in ("none", 0) and type(value) is not bool:
        return 0
    try:
        return _quantity(value, SIZES, 1)
    except ValueError:
        raise ValueError('give a size like "4GiB", or "none"') from None


def available_bytes() -> int:
    """Memory of this machine, or of the container that the process runs in, if that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in CGROUP_FILES:
        try:
            text = Path(path).read_text("ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            return min(machine, int(text))
    return machine


def _address(value: Any) -> Address:
    if type(value) is not str or not value:
        raise ValueError(f'give a text like "127.0.0.1:{PORT}"')
    try:
        address = Address.parse(value)
    except UsageError:
        raise ValueError(f'give a text like "127.0.0.1:{PORT}"') from None
    return address


def _neighbour(value: Any) -> Address | None:
    if value == "":
        return None
    address = _address(value)
    if address.port == 0:
        raise ValueError("nobody can call port 0, so give the port where it listens")
    return address


def _choice(names: Iterable[str]) -> Callable[[Any], str]:
    known = tuple(names)

    def read(value: Any) -> str:
        if value not in known:
            raise ValueError(f"choose one of {', '.join(known)}{meant(value, known)}")
        return str(value)

    return read


def _links(value: Any) -> tuple[Any, ...]:
    """Their pairs are looked at one by one: see `config`."""
    if type(value) is not list:
        raise ValueError('give a list of pairs, like [["porto", "lisbon"], ["lisbon", "faro"]]')
    return tuple(value)


def _share(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= 1:
        raise ValueError("give a share above 0, up to 1")
    return float(value)


def _steps(value: Any) -> int | None:
    """None: by hop, from how long clients stay."""
    if value in WORDS_OF_STEPS and type(value) is str:
        return WORDS_OF_STEPS[value]
    if type(value) is not int or not 0 <= value <= EVERYWHERE:
        words = " or ".join(f'"{word}"' for word in WORDS_OF_STEPS)
        raise ValueError(f"give a whole number of steps, {words}")
    return value


def _peer(value: Any) -> Address:
    address = _neighbour(value)
    if address is None:
        raise ValueError(f'give a text like "10.0.0.5:{PORT}"')
    return address


def meant(value: Any, known: Iterable[str]) -> str:
    near = get_close_matches(str(value), known, 1)
    return f" (did you mean {near[0]}?)" if near else ""


TEXT = Kind("text", _text)
NAMED = Kind("name", _name)
COUNT = Kind("number", _count)
COUNT_OR_NONE = Kind("number, or 0", _count_or_none)
FLAG = Kind("true or false", _flag)
NUMBERED = Kind("port", _port)
DURATION = Kind("duration", _duration)
DURATION_OR_NONE = Kind('duration, or "none"', _duration_or_none)
SIZE = Kind("size", _size)
SIZE_OR_NONE = Kind('size, or "none"', _size_or_none)
MEMORY = Kind('size, share like "50%", or "none"', _memory)
ADDRESS = Kind("address", _address)
PEER = Kind("address", _peer)
SHARE = Kind("share", _share)
STEPS = Kind('number, "everywhere" or "by dwell"', _steps)
NEXT = Kind("one of next, learnt, none, all", _choice(("next", "learnt", "none", "all")))
NEIGHBOUR = Kind('address, or ""', _neighbour)
ROUTING = Kind("one of " + ", ".join(STRATEGIES), _choice(STRATEGIES))
RELOCATION = Kind("one of " + ", ".join(RELOCATIONS), _choice(RELOCATIONS))
MODE = Kind("one of memory, os, disk", _choice(("memory", "os", "disk")))
LINKS = Kind("list of pairs", _links)


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def written(value: int, units: Mapping[str, int]) -> str:
    """In the largest unit that needs no fraction."""
    unit = max((one for one in units if value % units[one] == 0), key=lambda one: units[one])
    return f"{value // units[unit]}{unit}"
