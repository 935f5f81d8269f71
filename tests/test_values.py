"""What applications may publish, and how they learn what they may not."""

import datetime
import enum
import gc
import pathlib
import uuid
import warnings
from array import array
from decimal import Decimal
from fractions import Fraction

import pytest

import wayfare
from live import tree
from test_client_api import LINE, live
from wayfare import attr
from wayfare.cli.notation import attributes_of, of_json
from wayfare.core.filters import NOTHING, Filter
from wayfare.core.values import plain_attributes, plain_payload
from wayfare.errors import FilterError, FilterNeverMatches, InvalidNotification, UsageError
from wayfare.net.wanted import offered_as, wanted_as


class Scalar:
    """As numpy has them: a value without dimensions, or an array."""

    def __init__(self, value, ndim=0):
        self.value, self.ndim = value, ndim

    def __repr__(self):
        return f"Scalar({self.value!r})"

    def item(self):
        return self.value


class Colour(enum.Enum):
    RED = "red"
    NONE = None
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Whole:
    def __index__(self):
        return 7


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (5, 5),
        (Scalar(5), 5),
        (Scalar(0.5), 0.5),
        (Scalar(True), True),
        (Scalar("a"), "a"),
        (Colour.RED, "red"),
        (Level.LOW, 1),
        (Word.YES, "yes"),
        (Whole(), 7),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_converted(given, value):
    found = plain_attributes({"x": given})["x"]
    assert (type(found), found) == (type(value), value)
    assert Filter.where(attr("x") == given).matches({"x": value})


def test_scalars_of_numpy_are_converted():
    np = pytest.importorskip("numpy")
    given = (np.int64(5), np.uint8(5), np.float64(0.5), np.float32(0.5), np.str_("a"), np.array(5))
    found = plain_attributes({str(i): one for i, one in enumerate((*given, np.bool_(True)))})
    assert [*map(repr, found.values())] == ["5", "5", "0.5", "0.5", "'a'", "5", "True"]
    with pytest.raises(InvalidNotification, match=r"x is a ndarray; .*: publish one notification"):
        plain_attributes({"x": np.array([1])})


def test_what_is_plain_is_not_copied():
    attributes = {"a": 1, "b": "x", "c": 0.5, "d": True}
    assert plain_attributes(attributes) is attributes


def test_none_is_an_attribute_that_is_not_there():
    assert plain_attributes({"x": None, "y": 1}) == {"y": 1}
    assert Filter.parse("x is null").matches(plain_attributes({"x": None, "y": 1}))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([1], "free is a list; .*: publish one notification for each element, or an attribute"),
        ((1,), "free is a tuple; .*: publish one notification for each"),
        ({1: 2}, "free is a dict; .*: publish one notification for each"),
        (Scalar(1, ndim=1), "free is a Scalar; attributes are"),
        (b"x", "free is a bytes; .*: use the payload, or decode it"),
        (datetime.datetime(2026, 1, 1), r"free is a datetime; .*: use its isoformat\(\) or"),
        (Scalar(datetime.date(2026, 1, 1)), "free is a Scalar; attributes are"),
        (Decimal("0.1"), r"free is a Decimal; .*: use float"),
        (Fraction(1, 3), r"free is a Fraction; .*: use float"),
        (uuid.UUID(int=1), r"free is a UUID; .*: use str\("),
        (pathlib.Path("a"), r"free is a PosixPath; .*: use str\("),
        (1j, "free is a complex; .*: use an attribute for the real part"),
        (Colour.NONE, "free is a Colour with the value None; attributes are"),
        (
            Colour.PAIR,
            r"free is a Colour with the value \(1, 2\); .*: publish one notification for each",
        ),
        (object(), "free is a object; attributes are str, int, float or bool$"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_names_the_attribute_and_says_what_to_do(given, why):
    with pytest.raises(InvalidNotification, match=why):
        plain_attributes({"ok": 1, "free": given})


@pytest.mark.parametrize(
    ("given", "payload"),
    [
        (b"a", b"a"),
        (bytearray(b"a"), b"a"),
        (memoryview(b"abcd")[::2], b"ac"),
        ("Praça", "Praça".encode()),
        (enum.Enum("Place", {"A": "Praça"}).A, "Praça".encode()),
        (enum.Enum("Raw", {"A": b"a"}).A, b"a"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_payloads_are_converted(given, payload):
    assert plain_payload(given) == payload


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "a payload is bytes or a text, not NoneType: encode it, for instance as JSON"),
        ({}, "a payload is bytes or a text, not dict"),
        (array("d", [1.0]), "a payload is bytes or a text, not array: use its tobytes()"),
        (enum.Enum("Level", {"A": 1}).A, "a payload is bytes or a text, not int"),
        ("\ud800", "half of a surrogate pair"),
    ],
)
def test_what_is_no_payload_is_refused(given, why):
    with pytest.raises(InvalidNotification, match=why):
        plain_payload(given)


@live
async def test_a_client_publishes_what_it_was_given():
    seen = []
    async with (
        tree(*LINE) as net,
        wayfare.connect(net.url("porto"), client_id="anna") as anna,
        wayfare.connect(net.url("faro"), client_id="tom", events=seen.append) as tom,
    ):
        await tom.advertise(attr("x") == Level.LOW)
        async with anna.subscribe(attr("x") < Scalar(2)) as some:
            given = {"x": Scalar(1), "colour": Colour.RED, "none": None}
            await tom.publish(given, payload="text")
            one = await some.get(5)
        anna.state["need"] = Scalar(3)
        assert type(anna.state["need"]) is int
        anna.state["need"] = anna.state["other"] = None
        assert dict(anna.state) == {}
        anna.location = (Scalar(1.5), Scalar(2))
        assert anna.location == (1.5, 2.0)
    assert dict(one) == {"x": 1, "colour": "red"}
    assert one.payload == b"text"
    assert [one.attributes for one in seen if one.kind == "published"] == [dict(one)]


def test_a_filter_is_not_compared_with_none():
    for condition in (lambda: attr("x") == None, lambda: attr("x") != None):  # noqa: E711
        with pytest.raises(FilterError, match=r"use attr\('x'\).is_null\(\)"):
            condition()
    with pytest.raises(FilterError, match=r"not UUID: use str\("):
        _ = attr("x") > uuid.UUID(int=1)


# Filters that nothing can match


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x > 5 and x < 3", "x > 5 and x < 3: that contradicts itself"),
        ("a = 1 and b > 2 and a = 2 and c = 3", "a = 1 and a = 2: that contradicts itself"),
        ("x is null and x > 3", "x is null and x > 3: that contradicts itself"),
        ("x = 1 and x = 'a'", "x = 1 and x = 'a': that contradicts itself"),
        ("near(0, 0, 5) and near(50, 0, 5)", "near(0, 0, 5) and near(50, 0, 5): that"),
        ("x > 5 and x < 3 and location in myloc", "x > 5 and x < 3: that"),
        ("a = 1 and a = 2 or b = 1 and b = 2", "a = 1 and a = 2; b = 1 and b = 2: that"),
        ("x between 5 and 3", "x >= 5 and x <= 3: that contradicts itself"),
        ("x not between 5 and 3 and x = 1 and x = 2", "x = 1 and x = 2: that"),
        ("false", "no value satisfies false"),
        (" not true", "no value satisfies not true"),
        ("false and location in myloc", "no value satisfies false and location in myloc"),
    ],
)
def test_a_filter_that_can_never_match_is_refused_with_its_contradiction(text, why):
    with pytest.raises(FilterNeverMatches) as caught:
        wanted_as(text)
    assert f"the filter can never match: {why}" in str(caught.value)


def test_so_is_one_that_is_built_or_advertised():
    x = attr("x")
    with pytest.raises(FilterNeverMatches, match="x > 5 and x < 3"):
        wanted_as((x > 5) & (x < 3))
    with pytest.raises(FilterNeverMatches, match="x > 5 and x < 3"):
        offered_as("x > 5 and x < 3")
    with pytest.raises(FilterNeverMatches, match="no value satisfies"):
        wanted_as(NOTHING)


def test_what_may_match_is_taken_as_it_is():
    for text in ("x > 5", "x > 5 and x < 3 or y = 1", "x in myloc and y > my.need", "true"):
        assert str(wanted_as(text)) == str(wanted_as(wanted_as(text)))


def test_sub_refuses_it_before_it_connects(capsys):
    from wayfare.cli import main

    assert main(["sub", "127.0.0.1:1", "x > 5 and x < 3"]) == 2
    assert "the filter can never match: x > 5 and x < 3" in capsys.readouterr().err


# Values in a shell


@pytest.mark.parametrize("word", ["NaN", "nan", "inf", "-inf", "+Infinity", "INF"])
def test_what_is_no_finite_number_is_no_text_either(word):
    with pytest.raises(UsageError, match="is not a number that can be published; for the text"):
        attributes_of(f"service=parking free={word}")
    assert attributes_of(f"free='{word}'") == {"free": word}


@pytest.mark.parametrize("word", ["1e999", "-1e999"])
def test_a_number_that_is_too_large_is_refused_by_name(word):
    with pytest.raises(UsageError, match=f"free={word} is too large for a number; for the text"):
        attributes_of(f"service=parking free={word}")
    assert attributes_of(f"free='{word}'") == {"free": word}


def test_words_that_only_begin_like_one_are_texts():
    assert attributes_of("a=nanny b=info c=nan5") == {"a": "nanny", "b": "info", "c": "nan5"}


def test_null_in_json_is_an_attribute_that_is_not_there():
    assert of_json(b'{"x": null, "y": 1}', 1) == ({"y": 1}, b"")
    assert of_json(b'{"attributes": {"x": null, "y": 1}, "payload": "a"}', 1) == ({"y": 1}, b"a")
    with pytest.raises(UsageError, match="all its attributes are null"):
        of_json(b'{"x": null}', 1)


# Subscriptions that nobody uses


def warned(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
        gc.collect()
    return [str(one.message) for one in caught if one.category is RuntimeWarning]


def test_a_subscription_that_nobody_uses_warns():
    client = wayfare.connect("127.0.0.1:1")
    assert warned(lambda: client.subscribe("x > 0")) == [
        "the subscription to x > 0 was never used: await it, iterate over it, or use it with `async with`"
    ]


def test_an_offer_that_nobody_uses_warns():
    client = wayfare.connect("127.0.0.1:1")
    assert warned(lambda: client.offer("x > 0")) == [
        "the offer of x > 0 was never used: await it, iterate over it, or use it with `async with`"
    ]


@live
async def test_an_offer_that_is_used_does_not_warn():
    async with tree(*LINE) as net, wayfare.connect(net.url("porto")) as anna:
        used = [await anna.offer("x > 0"), anna.offer("x > 1"), anna.offer("x > 2")]
        await used[1].ready(5)
        await used[2].close()
        assert warned(used.clear) == []


@live
async def test_a_subscription_that_is_used_does_not_warn():
    async with tree(*LINE) as net, wayfare.connect(net.url("porto")) as anna:
        used = [await anna.subscribe("x > 0"), anna.subscribe("x > 1"), anna.subscribe("x > 2")]
        with pytest.raises(TimeoutError):
            await used[1].get(0)
        await used[2].close()
        assert warned(used.clear) == []
    with pytest.raises(wayfare.Closed):
        await anna.subscribe("x > 0")
