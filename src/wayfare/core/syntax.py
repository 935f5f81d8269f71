"""The text of filters: `parse` reads what users write, `text` prints the normal form.

    condition  = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation   = "not" negation | "(" condition ")" | predicate | "true" | "false"
    predicate  = name comparison value | value comparison name
               | name ["not"] "between" value "and" value
               | name ["not"] "in" ( "(" item { "," item } ")" | "myloc" )
               | name ["not"] "like" value ["escape" value]
               | name ["not"] ( "prefix" | "suffix" | "contains" ) value
               | name "is" ["not"] "null"
               | "exists" ( name | "(" name ")" )
               | "near" "(" ( value "," value | "myloc" ) "," value ")"
    value      = 'text' | number | "true" | "false" | my.name

One regular expression cuts the text into tokens and never steps back (its repetitions are
possessive), and the parser looks one token ahead, so the time is linear. What is no token becomes
a `stray` one: the parser meets it where it stands and knows what would have been right there.

Every filter can be printed and parsed again, so the limits hold for the text as it is written
and (in filters.py) for the filter multiplied out, which may be longer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeVar

from wayfare.core import conditions as cs
from wayfare.core import patterns
from wayfare.core import predicates as ps
from wayfare.core.conditions import DEPTH_MAX, TERMS_MAX, Condition, attr
from wayfare.core.markers import Clause, Given, Marked, Marker, My, Myloc, my, myloc, refusal
from wayfare.core.predicates import KINDS, Kind, Value
from wayfare.errors import FilterError, FilterSyntaxError

FILTER_TEXT_MAX = 8192  # characters of a filter, as it is written and as it is printed

T = TypeVar("T")

# Tokens

_TRUTHS = {"true": True, "false": False}
_WORDS = {"and", "or", "not", "between", "in", "like", "escape", "prefix", "suffix", "contains"}
_WORDS |= {"is", "null", "exists", "near", "myloc", *_TRUTHS}
_STATE = "my."

_TOKEN = re.compile(
    r"""\s*+(?:
      (?P<number> [+-]?+ (?: [0-9]++ (?: \.[0-9]*+ )?+ | \.[0-9]++ ) (?: [eE][+-]?+[0-9]++ )?+ )
    | (?P<bare>   [A-Za-z_$][A-Za-z0-9_.$]*+ )
    | (?P<quoted> "(?: [^"]++ | "" )*+" )
    | (?P<text>   '(?: [^']++ | '' )*+' )
    | (?P<mark>   <= | >= | <> | != | =(?!=) | [<>(),] )
    | (?P<end>    \Z )
    | (?P<stray>  == | && | \|\| | . )
    )""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_.$]*")

_VALUES = ("text", "number", "truth", "state")  # kinds of tokens that stand for a value
_EXPECTED = {"text": "a text in single quotes", "number": "a number", "truth": "true or false"}
_INSTEAD = {  # what people write who think of another language
    "=": "==",
    "and": "& &&",
    "or": "| ||",
    "not": "!",
    "like": "ilike matches regexp rlike",
    "prefix": "startswith",
    "suffix": "endswith",
    "is null or is not null": "null",
    "straight quotes": "‘ ’ “ ”",
}
_HINTS = {wrong: f"use {right}" for right, several in _INSTEAD.items() for wrong in several.split()}
_SET = "it is a set: use in myloc, or near(myloc, metres)"
_QUOTED = 'a name that begins with my. stands in double quotes, as in "my.x" = 5'
_HINTS |= {quote: f"there is no closing {quote}" for quote in "'\""}


class _Token(NamedTuple):
    kind: str  # name, text, number, truth, state (my.x), word, mark, stray, end
    spelling: str  # words in lower case; names and texts without their quotes
    position: int

    def __str__(self) -> str:
        spelling = repr(self.spelling[:24])  # a control character must not reach a terminal
        cut = "..." if len(self.spelling) > 24 else ""
        other = f"`{spelling[1:-1]}{cut}`"
        return {"end": "the end", "text": f"the text {spelling}{cut}"}.get(self.kind, other)


def _tokens(source: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(source):
        kind = str(found.lastgroup)
        spelling, position = found[kind], found.start(kind)
        if kind in ("quoted", "text"):
            quote = spelling[0]
            spelling = spelling[1:-1].replace(quote * 2, quote)
            kind = "name" if kind == "quoted" else kind
        elif kind == "bare":
            kind = _kind_of_bare(spelling)
            spelling = spelling if kind in ("name", "state") else spelling.lower()
        yield _Token(kind, spelling, position)


def _kind_of_bare(name: str) -> str:
    lower = name.lower()
    if lower in _WORDS:
        return "truth" if lower in _TRUTHS else "word"
    return "state" if lower.startswith(_STATE) else "name"


# Parsing


def parse(text: str, *, marked: bool = False) -> Condition:
    """The condition that a text describes, in which `myloc` and `my.<name>` may be allowed."""
    if not isinstance(text, str):
        raise FilterError(f"a filter is a text, not {type(text).__name__}")
    if len(text) > FILTER_TEXT_MAX:
        reason = f"a filter has at most {FILTER_TEXT_MAX} characters"
        raise FilterSyntaxError(text, FILTER_TEXT_MAX, reason)
    if half := ps.half_surrogate(text):
        raise FilterSyntaxError(text, half.start(), "half of a surrogate pair is not a character")
    return _Parser(text, marked).whole()


def made(text: str, make: Callable[[Condition], T], *, marked: bool = False) -> T:
    """What is made of the condition that a text describes."""
    condition = parse(text, marked=marked)
    try:
        return make(condition)
    except FilterError as error:  # no single place in the text is wrong: it is too much
        raise FilterSyntaxError(text, 0, str(error)) from None


class _Parser:
    """One parse of one text. A method that is named after a rule of the grammar reads it."""

    def __init__(self, source: str, marked: bool) -> None:
        self.source, self.marked = source, marked
        self.rest = _tokens(source)
        self.token = next(self.rest)
        self.depth = self.terms = 0

    # One token

    def advance(self) -> _Token:
        token, self.token = self.token, next(self.rest)  # the end is never passed
        return token

    def sees(self, spelling: str) -> bool:
        return self.token.spelling == spelling and self.token.kind in ("word", "mark")

    def accept(self, spelling: str) -> bool:
        seen = self.sees(spelling)
        if seen:
            self.advance()
        return seen

    def expect(self, spelling: str, expected: str | None = None) -> None:
        if not self.accept(spelling):
            self.expected(expected or f"`{spelling}`")

    def expected(self, what: str, hint: str | None = None) -> NoReturn:
        token = self.token
        if token.kind in ("word", "stray", "name"):
            hint = _HINTS.get(token.spelling.lower(), hint)
        self.fail(token, f"expected {what}, found {token}" + (f": {hint}" if hint else ""))

    def fail(self, token: _Token, reason: str) -> NoReturn:
        raise FilterSyntaxError(self.source, token.position, reason) from None

    def build(self, token: _Token, build: Callable[..., T], *args: Any) -> T:
        """What the builder makes; if it refuses, this is the token that it refuses."""
        try:
            return build(*args)
        except FilterError as error:
            self.fail(token, str(error))

    # Conditions

    def whole(self) -> Condition:
        if self.token.kind == "end":
            self.expected("a condition", "`true` matches everything")
        condition = self.condition()
        if self.token.kind != "end":
            self.expected("`and`, `or` or the end")
        return condition

    def condition(self) -> Condition:
        return self.chain("or", self.conjunction, cs.Some)

    def conjunction(self) -> Condition:
        return self.chain("and", self.negation, cs.All)

    def chain(self, word: str, part: Callable[[], Condition], build: type[Condition]) -> Condition:
        first = self.token
        parts = [part()]
        while self.accept(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else self.build(first, build, parts)

    def negation(self) -> Condition:
        token = self.token
        if self.accept("not"):
            return self.build(token, cs.Not, self.nested(token, self.negation))
        if self.accept("("):
            inner = self.nested(token, self.condition)
            self.expect(")", "`)`, `and` or `or`")
            return inner
        self.terms += 1
        if self.terms > TERMS_MAX:
            self.fail(token, f"a filter has at most {TERMS_MAX} predicates")
        return self.predicate()

    def nested(self, token: _Token, part: Callable[[], Condition]) -> Condition:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self.fail(token, f"a filter nests at most {DEPTH_MAX} deep")
        condition = part()
        self.depth -= 1
        return condition

    # Predicates

    def predicate(self) -> Condition:
        token = self.token
        if self.accept("exists"):
            return self.exists()
        if self.accept("near"):
            return self.near()
        if token.kind == "name":
            return self.about(attr(self.name()))
        if token.kind not in _VALUES:
            self.expected("a condition, such as price > 40", self.quoting())
        value = self.value()
        turned = _TURNED.get(self.token.spelling) if self.token.kind == "mark" else None
        if turned is None and token.kind == "truth":
            return cs.Constant(_TRUTHS[token.spelling])
        hint = _QUOTED if token.kind == "state" else None
        if turned is None:
            self.expected("one of = <> < <= > >=", hint)
        self.advance()
        return self.build(token, turned, attr(self.name(hint)), value)

    def about(self, attribute: attr) -> Condition:
        """The predicate whose attribute has been read."""
        negated = self.accept("not")
        choice = _NEGATABLE if negated else _OPERATORS
        if self.token.kind not in ("word", "mark") or self.token.spelling not in choice:
            alone = "a name alone is no condition, but `name = true` is"
            self.expected(f"one of {' '.join(choice)}", None if negated else alone)
        operator = self.advance().spelling
        condition = _OPERATORS[operator](self, attribute, operator)
        return ~condition if negated else condition

    def comparison(self, attribute: attr, operator: str) -> Condition:
        if operator in _MEMBERSHIP and self.sees("myloc"):
            inside = self.within(attribute, operator)
            return inside if _MEMBERSHIP[operator] else ~inside
        return self.build(self.token, _COMPARISONS[operator], attribute, self.value())

    def between(self, attribute: attr, _: str) -> Condition:
        first, low = self.token, self.value()
        self.expect("and")
        return self.build(first, attribute.between, low, self.value(KINDS.get(type(low))))

    def within(self, attribute: attr, _: str) -> Condition:
        if self.sees("myloc"):
            return attribute.one_of(self.myloc())
        self.expect("(", "`(` or `myloc`")
        first, values = self.token, [self.value()]
        kind = KINDS.get(type(values[0]))
        while self.accept(","):
            values.append(self.value(kind))
            kind = kind or KINDS.get(type(values[-1]))
        self.expect(")", "`,` or `)`")
        return self.build(first, attribute.one_of, *values)

    def like(self, attribute: attr, _: str) -> Condition:
        first, pattern = self.token, self.value("text")
        if self.accept("escape"):
            return self.build(self.token, attribute.like, pattern, self.value("text"))
        return self.build(first, attribute.like, pattern)

    def affix(self, attribute: attr, operator: str) -> Condition:
        return self.build(self.token, _AFFIXES[operator], attribute, self.value("text"))

    def null(self, attribute: attr, _: str) -> Condition:
        present = self.accept("not")
        self.expect("null", "`null`" if present else "`null` or `not null`")
        return attribute.exists() if present else attribute.is_null()

    def exists(self) -> Condition:
        parenthesis = self.accept("(")
        attribute = attr(self.name())
        if parenthesis:
            self.expect(")")
        return attribute.exists()

    def near(self) -> Condition:
        self.expect("(", "`(latitude, longitude, metres)`")
        numbers: list[Any] = [myloc, 0.0] if self.sees("myloc") else [0.0, 0.0, 0.0]
        for i in range(len(numbers)):
            if i > 0:
                self.expect(",", "`,` (near takes latitude, longitude, metres)")
            token = self.token
            numbers[i] = self.myloc() if numbers[i] is myloc else self.value("number")
            condition = self.build(token, cs.near, *numbers)
        self.expect(")")
        return condition

    # Names and values

    def name(self, hint: str | None = None) -> str:
        if self.token.kind != "name":
            self.expected("an attribute's name", self.quoting() or hint)
        return self.build(self.token, ps.checked_name, self.advance().spelling)

    def quoting(self) -> str | None:
        """What to say when a word of the language stands where a name should."""
        if self.token.kind == "state":
            return _QUOTED
        if self.token.kind != "word":
            return None
        return f'as a name it stands in double quotes: "{self.token.spelling}"'

    def value(self, kind: Kind | None = None) -> Any:
        """A value, of this kind if one is given, or a marker of the client's state."""
        token = self.token
        what = _EXPECTED[kind] if kind else "a value"
        if token.kind not in _VALUES:
            hint = "texts stand in single quotes" if token.kind == "name" else None
            self.expected(what, _SET if self.sees("myloc") else hint)
        value = self.build(token, self.meaning, self.advance())
        if type(value) is not My and kind not in (None, KINDS[type(value)]):
            self.fail(token, f"expected {what}, found {token}")
        return value

    def meaning(self, token: _Token) -> Value | My:
        spelling = token.spelling
        if token.kind == "number":
            return ps.checked_value(_number(spelling))
        if token.kind == "state":
            marker = my[spelling[len(_STATE) :]]
            if not self.marked:
                raise FilterError(refusal(marker))
            return marker
        return _TRUTHS[spelling] if token.kind == "truth" else ps.checked_value(spelling)

    def myloc(self) -> Myloc:
        token = self.advance()
        if not self.marked:
            self.fail(token, refusal(myloc))
        return myloc


def _number(spelling: str) -> int | float:
    try:
        return int(spelling) if spelling.lstrip("+-").isdigit() else float(spelling)
    except ValueError:  # Python refuses to read thousands of digits
        raise FilterError("an int has at most 64 bits") from None


_COMPARISONS: dict[str, Callable[[attr, Value], Condition]] = {
    "=": attr.__eq__,
    "<>": attr.__ne__,
    "!=": attr.__ne__,
    "<": attr.__lt__,
    "<=": attr.__le__,
    ">": attr.__gt__,
    ">=": attr.__ge__,
}
_TURNED = {  # `5 < x` is `x > 5`
    **_COMPARISONS,
    "<": attr.__gt__,
    "<=": attr.__ge__,
    ">": attr.__lt__,
    ">=": attr.__le__,
}
_MEMBERSHIP = {"=": True, "<>": False, "!=": False}
_AFFIXES = {"prefix": attr.prefix, "suffix": attr.suffix, "contains": attr.contains}
_OPERATORS: dict[str, Callable[[_Parser, attr, str], Condition]] = {
    **dict.fromkeys(_COMPARISONS, _Parser.comparison),
    "between": _Parser.between,
    "in": _Parser.within,
    "like": _Parser.like,
    **dict.fromkeys(_AFFIXES, _Parser.affix),
    "is": _Parser.null,
}
_NEGATABLE = ("between", "in", "like", *_AFFIXES)


# Printing


def text(clauses: tuple[Clause, ...]) -> str:
    """The text of a filter in normal form; parsing it gives an equal filter."""
    return " or ".join(map(_conjunction, clauses)) or "false"


def _conjunction(clause: Clause) -> str:
    return " and ".join(_PRINTERS[type(p)](p) for p in clause) or "true"


def _name(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name) and _kind_of_bare(name) == "name":
        return name
    return '"' + name.replace('"', '""') + '"'


def value_text(value: Given | None) -> str:
    """As it stands in a filter."""
    if isinstance(value, Marker):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


def _values(p: ps.OneOf | ps.NoneOf | Marked, single: str, several: str) -> str:
    if len(p.values) == 1:
        return f"{_name(p.name)} {single} {value_text(p.values[0])}"
    return f"{_name(p.name)} {several} ({', '.join(map(value_text, p.values))})"


def _between(p: ps.Between) -> str:
    name = _name(p.name)
    if None not in (p.low, p.high) and not p.low_open and not p.high_open:
        return f"{name} between {value_text(p.low)} and {value_text(p.high)}"
    bounds = ((p.low, ">" if p.low_open else ">="), (p.high, "<" if p.high_open else "<="))
    return " and ".join(f"{name} {sign} {value_text(at)}" for at, sign in bounds if at is not None)


def _like(p: ps.Like) -> str:
    word, part = patterns.shape(p.pattern)
    negation = "not " if p.negated else ""
    escape = " escape '\\'" if word == "like" and "\\" in part else ""
    return f"{_name(p.name)} {negation}{word} {value_text(part)}{escape}"


def _near(p: ps.Near) -> str:
    numbers = ", ".join(value_text(ps.checked_value(x)) for x in (p.lat, p.lon, p.metres))
    return f"{'not ' if p.negated else ''}near({numbers})"


def _marked(p: Marked) -> str:
    given = [*map(value_text, p.values)]
    if p.operator.endswith("near"):
        return f"{p.operator}({', '.join(given)})"
    if p.operator.endswith("in") and not p.follows_location:
        return _values(p, "=" if p.operator == "in" else "<>", p.operator)
    return f"{_name(p.name)} {p.operator} {' escape '.join(given)}"  # only `like` may have two


_PRINTERS: dict[type, Callable[[Any], str]] = {
    ps.OneOf: lambda p: _values(p, "=", "in"),
    ps.NoneOf: lambda p: _values(p, "<>", "not in"),
    ps.Between: _between,
    ps.Like: _like,
    ps.Exists: lambda p: f"exists {_name(p.name)}",
    ps.Missing: lambda p: f"{_name(p.name)} is null",
    ps.Near: _near,
    Marked: _marked,
}
