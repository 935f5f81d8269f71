"""Long texts in which many literals are looked for.

A scan takes about a nanosecond for each character, so a few thousand patterns take long to look for in 100 KiB.
After some scans for literals of one length, all pieces of that length are put into a set, which answers for
literals of this length. Longer ones are scanned for only if their first, middle and last piece are in the
set of the longest pieces that there is. So a text costs some sets, however many literals there are: a set
takes as long as a hundred scans.

Where the texts of a notification are too long for sets, a table of hashes takes their place. It may
contain what the text does not, and never the other way round.
"""

from __future__ import annotations

from typing import Protocol

LONG = 2048  # characters of texts for which this is worth it
PIECE_MAX = 16  # characters of pieces
SCANS = 48  # for literals of one length, before there is a set of such pieces
EXACT_MAX = 2**18  # characters of all texts for which there are sets
MARKS_PER_CHARACTER = 4
MARKS_MAX = 2**23
CHARACTERS_MAX = 4 * 2**20  # of all texts that are remembered: those of one notification


class _Pieces(Protocol):
    def __contains__(self, piece: str, /) -> bool: ...


class _Marks:
    """The pieces of a text by their hashes."""

    __slots__ = ("_last", "_marks")

    def __init__(self, text: str, length: int) -> None:
        size = min(MARKS_MAX, 1 << (MARKS_PER_CHARACTER * len(text)).bit_length())
        self._marks, self._last = marks, last = bytearray(size), size - 1
        for i in range(len(text) - length + 1):
            marks[hash(text[i : i + length]) & last] = 1

    def __contains__(self, piece: str, /) -> bool:
        return bool(self._marks[hash(piece) & self._last])


class LongText:
    """A text, and which pieces it has."""

    __slots__ = ("_exact", "_pieces", "_text", "scans")

    def __init__(self, text: str, *, exact: bool) -> None:
        self._text = text
        self._exact = exact
        self._pieces: dict[int, _Pieces] = {}  # by their length, the longest first
        self.scans: dict[int, int] = {}  # by the length of a literal, or of the longest pieces

    def contains(self, literal: str) -> bool:
        size = len(literal)
        if not size:
            return True
        for length, pieces in self._pieces.items():
            if length <= size:
                if length == size and self._exact:
                    return literal in pieces
                if not _may_contain(pieces, literal, length):
                    return False
                break
        length = min(size, PIECE_MAX)
        count = self.scans[length] = self.scans.get(length, 0) + 1
        if count == SCANS:
            self._pieces[length] = self._cut(length)
            self._pieces = dict(sorted(self._pieces.items(), reverse=True))
        return literal in self._text

    def _cut(self, length: int) -> _Pieces:
        text = self._text
        if not self._exact:
            return _Marks(text, length)
        return {text[i : i + length] for i in range(len(text) - length + 1)}


def _may_contain(pieces: _Pieces, literal: str, length: int) -> bool:
    middle = (len(literal) - length) // 2
    return (
        literal[-length:] in pieces
        and literal[:length] in pieces
        and literal[middle : middle + length] in pieces
    )


class LongTexts:
    """The long texts of a notification."""

    __slots__ = ("_characters", "known")

    def __init__(self) -> None:
        self.known: dict[str, LongText] = {}
        self._characters = 0

    def contains(self, text: str, literal: str) -> bool:
        """Whether the text contains the literal."""
        found = self.known.get(text)
        if found is None:
            if self._characters + len(text) > CHARACTERS_MAX:
                self.forget()
            self._characters += len(text)
            found = self.known[text] = LongText(text, exact=self._characters <= EXACT_MAX)
        return found.contains(literal)

    def forget(self) -> None:
        self.known.clear()
        self._characters = 0


LONG_TEXTS = LongTexts()
