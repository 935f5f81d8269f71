r"""The patterns of `like`: `%` stands for any characters, `_` for exactly one.

A pattern is kept as one canonical string, in which `\` makes the next character literal and every
run of wildcards is written with its `_` first and at most one `%` behind (`%_%` is `_%`). So
`prefix 'A5'` is `A5%`, `suffix` is `%A5`, `contains` is `%A5%`, and any text at all is `%`.

Matching and inclusion are the same walk: a pattern includes another one if it matches its tokens,
where a `_` of the wider one takes any single token and only its `%` takes a `%`. That relation
is sound, reflexive and transitive (maps of tokens compose), though it does not find every inclusion:
`_%` includes `%a` as a set of texts, but no token of the second stands for the `_`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from wayfare.core.long_texts import LONG_TEXTS, SCANS

ANY = "%"

# Wildcards among the characters of a pattern: halves of surrogate pairs, which no text contains.
ONE = "\udc01"
MANY = "\udc02"
_WILD = re.compile(f"[{ONE}{MANY}]")
_LITERAL = re.compile(f"[^{ONE}{MANY}]+")


def literal(text: str) -> str:
    """The pattern that matches exactly this text."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def canonical(pattern: str, escape: str | None = None) -> str:
    """The canonical spelling of a pattern as users write it."""
    out: list[str] = []
    ones, many = 0, False
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            character = next(characters, escape)
        elif character == "_":
            ones += 1
            continue
        elif character == "%":
            many = True
            continue
        out.append("_" * ones + "%" * many)
        ones, many = 0, False
        out.append(literal(character))
    return "".join(out) + "_" * ones + "%" * many


@lru_cache(maxsize=4096)
def tokens(pattern: str) -> str:
    """The pattern with a character for each thing that it says."""
    out: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            out.append(next(characters, "\\"))
        else:
            out.append(ONE if character == "_" else MANY if character == "%" else character)
    return "".join(out)


@lru_cache(maxsize=4096)
def expression(pattern: str) -> Callable[[str], object]:
    """A function that gives None for what the pattern does not match: a text, or tokens of another.

    Each piece between two `%` has a fixed length, so its first place is the best one, and nothing is
    ever looked for twice. The last piece is looked at once, from the end. A `_` does not take another
    pattern's `%`.
    """
    first, *others = tokens(pattern).split(MANY)
    if others and ONE not in tokens(pattern):
        return _in_order(first, others[:-1], others[-1])
    return _regular(first, others)


def _in_order(first: str, middle: list[str], last: str) -> Callable[[str], object]:
    """The expression of a pattern without `_`, which needs not be compiled."""

    def fits(text: str) -> object:
        if not text.startswith(first):
            return None
        at = len(first)
        for piece in middle:
            at = text.find(piece, at)
            if at < 0:
                return None
            at += len(piece)
        return True if at + len(last) <= len(text) and text.endswith(last) else None

    return fits


def _regular(first: str, others: list[str]) -> Callable[[str], object]:
    """The expression as a regular one, where each piece is an atomic group."""
    begin, *pieces = [
        "".join(f"[^{MANY}]" if one == ONE else re.escape(one) for one in piece)
        for piece in (first, *others)
    ]
    if not pieces:
        return re.compile(begin).fullmatch
    *middle, last = pieces
    between = "".join(f"(?>.*?{piece})" for piece in middle)
    length = len(others[-1])
    end = f"(?=.{{{length}}}).*+(?<={last})" if length else ".*+"
    return re.compile(f"{begin}{between}{end}", re.DOTALL).fullmatch


PLACES = 4  # of a piece that are tried one by one


def fits_long(pattern: str, text: str) -> bool:
    """Whether a long text matches; nothing is compiled, and no piece is looked for twice."""
    known = LONG_TEXTS.of(text)
    found = known.fits.get(pattern)
    if found is None:  # most texts lack a part of it, and need no search to say so
        parts = literals(pattern)
        may_fit = all(known.contains(part, surely=False) for part in parts)
        found = known.fits[pattern] = may_fit and _fits(pattern, text)
    return found


def _fits(pattern: str, text: str) -> bool:
    first, *others = tokens(pattern).split(MANY)
    if not _is_at(first, text, 0):
        return False
    at = len(first)
    if not others:
        return at == len(text)
    for piece in others[:-1]:
        at = _find(piece, text, at)
        if at < 0:
            return False
    end = len(text) - len(others[-1])
    return at <= end and _is_at(others[-1], text, end)


def _is_at(piece: str, text: str, start: int) -> bool:
    """Whether a piece, in which `_` stands for any character, is at this place of the text."""
    for part in piece.split(ONE):
        if not text.startswith(part, start):
            return False
        start += len(part) + 1
    return start - 1 <= len(text)


def _find(piece: str, text: str, at: int) -> int:
    """The end of the first place of the piece from there on; -1 if there is none."""
    longest = max(piece.split(ONE), key=len)
    offset = piece.index(longest)
    found = at + offset - 1
    known = LONG_TEXTS.of(text)
    tries = PLACES if known.searches < SCANS else 0
    known.searches += 1
    for _ in range(tries):
        found = text.find(longest, found + 1)
        if found < 0:
            return -1
        if _is_at(piece, text, found - offset):
            return found - offset + len(piece)
    literals = [(part.start(), part[0]) for part in _LITERAL.finditer(piece)]
    found = known.places.find(literals, len(piece), at)
    return -1 if found < 0 else found + len(piece)


def literals(pattern: str) -> list[str]:
    """The parts of a pattern without wildcards."""
    return [part for part in _WILD.split(tokens(pattern)) if part] or [""]


def includes(wide: str, narrow: str) -> bool:
    """Whether every text that `narrow` matches is matched by `wide` (see the module's text)."""
    return wide in (narrow, ANY) or expression(wide)(tokens(narrow)) is not None


@lru_cache(maxsize=4096)
def literal_prefix(pattern: str) -> str:
    """What every text that matches begins with."""
    return _WILD.split(tokens(pattern), maxsplit=1)[0]


@lru_cache(maxsize=4096)
def literal_suffix(pattern: str) -> str:
    """What every text that matches ends with."""
    return _WILD.split(tokens(pattern))[-1]


def disjoint(a: str, b: str) -> bool:
    """True only if no text matches both: their fixed beginnings or ends contradict each other."""
    p, q = literal_prefix(a), literal_prefix(b)
    if not (p.startswith(q) or q.startswith(p)):
        return True
    p, q = literal_suffix(a), literal_suffix(b)
    return not (p.endswith(q) or q.endswith(p))


def shape(pattern: str) -> tuple[str, str]:
    """How the pattern is best written: (`=` | prefix | suffix | contains | like, its text)."""
    said = tokens(pattern)
    if _WILD.search(said) is None:
        return "=", said
    inner = said.strip(MANY)
    if inner and _WILD.search(inner) is None:
        ends = said.startswith(MANY), said.endswith(MANY)
        return _SHAPES[ends], inner
    return "like", pattern


_SHAPES = {(False, True): "prefix", (True, False): "suffix", (True, True): "contains"}


@lru_cache(maxsize=4096)
def matcher(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether a text matches."""
    word, text = shape(pattern)
    if word == "=":
        return lambda value: value == text
    if word == "prefix":
        return lambda value: value.startswith(text)
    if word == "suffix":
        return lambda value: value.endswith(text)
    if word == "contains":
        return lambda value: text in value
    fits = expression(pattern)
    return lambda value: fits(value) is not None
