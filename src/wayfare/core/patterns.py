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

from collections.abc import Callable, Sequence
from functools import lru_cache

ANY = "%"

# Wildcard tokens are longer than one character, so that no literal character equals them.
_ONE = "one"
_MANY = "many"


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


def is_canonical(pattern: str) -> bool:
    return canonical(pattern, escape="\\") == pattern


@lru_cache(maxsize=4096)
def tokens(pattern: str) -> tuple[str, ...]:
    out: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            out.append(next(characters))
        else:
            out.append(_ONE if character == "_" else _MANY if character == "%" else character)
    return tuple(out)


def _takes(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Whether `wide` matches `narrow`, a text or the tokens of another pattern.

    Steps back only to the last `%`, so the time is bounded by the product of the lengths.
    """
    at = here = 0
    restart, resume = -1, 0
    while here < len(narrow):
        token = wide[at] if at < len(wide) else None
        if token == _MANY:
            restart, resume = at, here
            at += 1
        elif token is not None and (
            narrow[here] != _MANY if token == _ONE else token == narrow[here]
        ):
            at += 1
            here += 1
        elif restart >= 0:
            resume += 1
            at, here = restart + 1, resume
        else:
            return False
    return all(token == _MANY for token in wide[at:])


def includes(wide: str, narrow: str) -> bool:
    """Whether every text that `narrow` matches is matched by `wide` (see the module's text)."""
    return wide in (narrow, ANY) or _takes(tokens(wide), tokens(narrow))


@lru_cache(maxsize=4096)
def literal_prefix(pattern: str) -> str:
    """What every text that matches begins with."""
    parts = tokens(pattern)
    end = next((i for i, token in enumerate(parts) if len(token) > 1), len(parts))
    return "".join(parts[:end])


@lru_cache(maxsize=4096)
def literal_suffix(pattern: str) -> str:
    """What every text that matches ends with."""
    parts = tokens(pattern)
    start = next((i for i in range(len(parts), 0, -1) if len(parts[i - 1]) > 1), 0)
    return "".join(parts[start:])


def disjoint(a: str, b: str) -> bool:
    """True only if no text matches both: their fixed beginnings or ends contradict each other."""
    p, q = literal_prefix(a), literal_prefix(b)
    if not (p.startswith(q) or q.startswith(p)):
        return True
    p, q = literal_suffix(a), literal_suffix(b)
    return not (p.endswith(q) or q.endswith(p))


def shape(pattern: str) -> tuple[str, str]:
    """How the pattern is best written: (`=` | prefix | suffix | contains | like, its text)."""
    parts = tokens(pattern)
    wild = [i for i, token in enumerate(parts) if len(token) > 1]
    if not wild:
        return "=", "".join(parts)
    if all(parts[i] == _MANY for i in wild) and len(parts) > len(wild):
        last = len(parts) - 1
        if wild == [last]:
            return "prefix", "".join(parts[:-1])
        if wild == [0]:
            return "suffix", "".join(parts[1:])
        if wild == [0, last]:
            return "contains", "".join(parts[1:-1])
    return "like", pattern


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
    parts = tokens(pattern)
    return lambda value: _takes(parts, value)
