"""Long texts in which many literals are looked for.

A scan takes about a nanosecond for each character, so a few thousand patterns take long to look for in 100 KiB.
After some scans for literals of one length, all pieces of that length are put into a set, which answers for
literals of this length. Longer ones are looked for only if all of their pieces are in the set of the longest pieces
that there is. So a text costs some sets, however many literals there are: a set
takes as long as a hundred scans.

Where the texts of a notification are too long for sets, a table of hashes takes their place. It may
contain what the text does not, and never the other way round.

After some scans more, and for a piece with wildcards that is frequent, places are found by numbers whose bits are the places of the text: bit i is set
where a literal begins at place i. Those of short literals are kept, and the places of a piece are what the
numbers of its literals have in common, each shifted by its offset. That takes some operations on numbers of as
many bits as the text has characters for each literal, however often they occur.
"""

from __future__ import annotations

from typing import Protocol

LONG = 2048  # characters of texts for which this is worth it
PIECE_MAX = 16  # characters of pieces
SCANS = 48  # for literals of one length, before there is a set of such pieces
EXACT_MAX = 2**18  # characters of all texts for which there are sets
MARKS_PER_CHARACTER = 4
MARKS_MAX = 2**23
GRAM = 8  # characters of literals whose places are kept
PLACES_PER_CHARACTER = 32  # bytes of the places that are kept: those of 256 literals
FEW = 8  # places that are looked at one by one
COUNTED = 4  # literals, until somebody counts how many places are left
CHARACTERS_MAX = 4 * 2**20  # of all texts that are remembered: those of one notification
# Characters that take about a microsecond
SCANNED, CUT, SHIFTED = 300, 5, 2**16


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


class Places:
    """Where literals begin in a text: bit i of a number is set if one does at place i."""

    __slots__ = ("_known", "_planes", "_room", "operations", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.operations = 0  # on numbers of as many bits as the text has characters
        self._known: dict[str, int] = {}
        # The bytes of each character, the first ones last: so that they become the bits of a number.
        data = text.encode("utf-32-le", "surrogatepass")
        self._planes = [data[plane::4][::-1] for plane in range(3)]
        self._room = PLACES_PER_CHARACTER * len(text)

    def find(self, literals: list[tuple[int, str]], length: int, at: int) -> int:
        """The first place from there on of a piece of this length, with these literals at their offsets; -1: none."""
        last = len(self.text) - length
        if at > last:
            return -1
        found = (1 << (last + 1 - at)) - 1
        count = 0
        for offset, literal in literals:
            for start in range(0, len(literal), GRAM):
                gram = literal[start : start + GRAM]
                found &= self._of(gram) >> (at + offset + start)
                self.operations += 2
                if not found:
                    return -1
                count += 1
                if not count % COUNTED and found.bit_count() <= FEW:
                    return self._first(found, literals, at)
        return at + _lowest(found)

    def _first(self, found: int, literals: list[tuple[int, str]], at: int) -> int:
        """The first of few places at which all literals are."""
        while found:
            lowest = _lowest(found)
            place = at + lowest
            if all(self.text.startswith(literal, place + offset) for offset, literal in literals):
                return place
            found &= ~(1 << lowest)
        return -1

    def _of(self, gram: str) -> int:
        found = self._known.get(gram)
        if found is not None:
            return found
        if len(gram) == 1:
            found = self._of_character(ord(gram))
        else:
            half = len(gram) // 2
            found = self._of(gram[:half]) & (self._of(gram[half:]) >> half)
        self.operations += 2
        if self._room > 0:
            self._known[gram] = found
            self._room -= len(self.text) // 8
        return found

    def _of_character(self, code: int) -> int:
        found = -1
        for plane, data in enumerate(self._planes):
            table = bytearray(b"0" * 256)
            table[code >> 8 * plane & 255] = ord("1")
            found &= int(data.translate(table), 2)
        return found


def _lowest(number: int) -> int:
    first = number & 0xFFFF_FFFF_FFFF_FFFF  # where it mostly is
    number = first or number
    return (number & -number).bit_length() - 1


class LongText:
    """A text, and which pieces it has."""

    __slots__ = (
        "_cut_units",
        "_exact",
        "_found",
        "_pieces",
        "_places",
        "_text",
        "fits",
        "scans",
        "searches",
    )

    def __init__(self, text: str, *, exact: bool) -> None:
        self._text = text
        self._exact = exact
        self._places: Places | None = None
        self._pieces: dict[int, _Pieces] = {}  # by their length, the longest first
        self._found: dict[str, bool] = {}  # whether it contains these literals
        self._cut_units = 0
        self.fits: dict[str, bool] = {}  # whether it matches these patterns
        self.searches = 0  # for pieces with wildcards, by scans
        self.scans: dict[int, int] = {}  # by the length of a literal, or of the longest pieces

    @property
    def places(self) -> Places:
        if self._places is None:
            self._places = Places(self._text)
        return self._places

    def units(self) -> int:
        """What was spent on this text so far, in units of about a microsecond."""
        size = len(self._text)
        scans = self.searches + sum(self.scans.values())
        shifts = 0 if self._places is None else self._places.operations
        return scans * size // SCANNED + shifts * size // SHIFTED + self._cut_units

    def pieces(self, length: int) -> _Pieces:
        """All its pieces of this length; if it is not exact, there may be others among them."""
        found = self._pieces.get(length)
        if found is None:
            found = self._pieces[length] = self._cut(length)
            self._pieces = dict(sorted(self._pieces.items(), reverse=True))
        return found

    def contains(self, literal: str, *, surely: bool = True) -> bool:
        """Unless it has to be sure, True may be wrong."""
        if not surely:
            return self._contains(literal, surely=False)
        found = self._found.get(literal)
        if found is None:
            found = self._found[literal] = self._contains(literal, surely=True)
        return found

    def _contains(self, literal: str, *, surely: bool) -> bool:
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
            self.pieces(length)
        if count > SCANS and not surely:
            return True
        if count > SCANS:
            return self.places.find([(0, literal)], size, 0) >= 0
        return literal in self._text

    def _cut(self, length: int) -> _Pieces:
        text = self._text
        self._cut_units += len(text) // CUT
        if not self._exact:
            return _Marks(text, length)
        return {text[i : i + length] for i in range(len(text) - length + 1)}


def _may_contain(pieces: _Pieces, literal: str, length: int) -> bool:
    return all(literal[i : i + length] in pieces for i in range(len(literal) - length + 1))


class LongTexts:
    """The long texts of a notification."""

    __slots__ = ("_characters", "_outer", "_pinned", "known")

    def __init__(self) -> None:
        self.known: dict[str, LongText] = {}
        self._outer: list[tuple[dict[str, LongText], int, bool]] = []  # before each `begin`
        self._characters = 0
        self._pinned = False

    def contains(self, text: str, literal: str) -> bool:
        """Whether the text contains the literal."""
        return self.of(text).contains(literal)

    def of(self, text: str) -> LongText:
        found = self.known.get(text)
        if found is None:
            if self._characters + len(text) > CHARACTERS_MAX:
                self.forget()
            self._characters += len(text)
            found = self.known[text] = LongText(text, exact=self._characters <= EXACT_MAX)
        return found

    def forget(self) -> None:
        if not self._pinned:
            self.known = {}
            self._characters = 0

    def begin(self, known: dict[str, LongText]) -> None:
        """Know this of some texts already, and remember it until the end; what was known before is, after it."""
        self._outer.append((self.known, self._characters, self._pinned))
        self.known, self._pinned = known, True
        self._characters = sum(map(len, known))

    def end(self) -> None:
        self.known, self._characters, self._pinned = self._outer.pop()
        self.forget()


LONG_TEXTS = LongTexts()
