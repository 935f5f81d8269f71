"""Every shipped scenario plays to its golden trace; a wrong one says where it is wrong, and why.

`pytest tests/test_scenarios.py --rewrite` writes the traces anew: read the diff.
"""

from importlib import resources
from pathlib import Path

import pytest

from wayfare.channel import PROFILES
from wayfare.core.filters import Filter
from wayfare.errors import ScenarioError, UsageError, WayfareError
from wayfare.sim import scenario

SHIPPED = scenario.shipped()
TRACE_MAX = 34  # lines; a longer one is two stories
# What happens without support is the point of these; every other one keeps every promise.
NAIVE = [
    name
    for name, story in SHIPPED.items()
    if "relocation naive" in [statement for _, statement in story.statements]
]

BASE = """
brokers porto - lisbon
attach ticker porto ; advertise ticker price > 0
attach anna lisbon ; subscribe anna price > 40
settle
"""


def played(text, seed=0):
    return scenario.play(scenario.read("test", text), seed)


def trace_of(outcome):
    return "".join(f"{line}\n" for line in outcome.lines)


def path_of(name):
    return Path(str(resources.files("wayfare.sim") / "scenarios" / f"{name}.txt"))


# The shipped ones


def test_there_are_enough_to_read_as_documentation():
    assert len(SHIPPED) >= 15
    assert list(SHIPPED) == sorted(SHIPPED)


def test_a_profile_comes_alone_on_top_and_with_settings():
    specs = [
        scenario._link_spec(text)
        for text in ("profile gprs", "5ms loss 0.1 profile gprs", "profile gprs most=3 error=0")
    ]
    assert [(one.latency_ns, one.loss) for one in specs] == [(0, 0), (5_000_000, 0.1), (0, 0)]
    assert specs[0].profile == specs[1].profile == PROFILES["gprs"]
    assert (specs[2].profile.up.most, specs[2].profile.up.error) == (3, 0)


@pytest.mark.parametrize("name", SHIPPED)
def test_it_gives_its_golden_trace(name, rewrite):
    story = SHIPPED[name]
    outcome = scenario.play(story)
    if rewrite:
        text = f"{story.script.rstrip()}\n{scenario.SEPARATOR}\n{trace_of(outcome)}"
        path_of(name).write_text(text, encoding="utf-8")
    else:
        assert trace_of(outcome) == story.trace, "look at it, then: pytest --rewrite"


@pytest.mark.parametrize("name", SHIPPED)
def test_it_explains_itself_and_keeps_every_promise(name):
    story = SHIPPED[name]
    outcome = scenario.play(story)
    if name in NAIVE:
        assert outcome.verdict.violations
        assert "NOT" in story.about, "say that it is not as promised"
    else:
        assert outcome.verdict.violations == ()
        assert outcome.lines[-1].endswith("complete, once, in order, tidy")
    assert len(outcome.lines) <= TRACE_MAX
    head, *body = story.script.splitlines()
    assert head.startswith("# ")
    assert len(story.about) > 100, "say what to look for"
    comments = [line for line in body if line.startswith("#")]
    assert body[: len(comments)] == comments, "the story is told in front, the rest in notes"
    assert all(len(line) <= 100 for line in story.script.splitlines())


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in NAIVE])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_chance_changes_no_promise(name, seed):
    assert scenario.play(SHIPPED[name], seed).verdict.violations == ()


def test_together_they_use_every_statement():
    used = {statement.split()[0] for one in SHIPPED.values() for _, statement in one.statements}
    assert used == set(scenario.STATEMENTS)


def test_together_they_show_every_routing():
    said = {statement for one in SHIPPED.values() for _, statement in one.statements}
    for name in ("flooding", "simple", "identity", "merging"):
        assert f"routing {name}" in said


def test_without_support_notifications_are_lost_and_doubled():
    """Figure 3 of the physical mobility paper, word for word; and the same with support."""
    assert NAIVE == ["moving-without-support"]
    story = scenario.play(SHIPPED["moving-without-support"])
    assert [str(one) for one in story.verdict.violations] == [
        "once: anna got ticker 1 twice",
        "complete: anna did not get ticker 2",
    ]
    naive, safe = (
        SHIPPED[f"moving-{how}"].statements for how in ("without-support", "with-handoff")
    )
    assert [one for _, one in naive if one != "relocation naive"] == [one for _, one in safe]


def test_every_scenario_that_is_chancy_changes_with_the_seed():
    story = SHIPPED["lossy-link"]
    traces = {trace_of(scenario.play(story, seed)) for seed in range(5)}
    assert len(traces) == 5


# What their headers promise, said once more in code: a trace may be rewritten, these may not


def received(name, client):
    host = scenario.play(SHIPPED[name]).world.clients[client]
    return [(one.notification.publisher, one.notification.number) for one in host.received]


@pytest.mark.parametrize(
    ("name", "client", "numbers"),
    [
        ("first-delivery", "anna", [2]),
        ("late-advertisement", "anna", [1, 2, 3]),
        ("uncovering", "bert", [1, 2]),
        ("covered-later", "bert", [1, 2]),
        ("one-copy", "anna", [1, 2]),
        ("away-and-back", "anna", [1, 2, 3, 4]),
        ("broken-connection", "anna", [1, 2, 3]),
        ("repeated-publication", "anna", [1]),
        ("publishing-while-away", "anna", [1, 2, 3]),
        ("backlog-count", "anna", [3, 4]),
        ("backlog-bytes", "anna", [3, 4]),
        ("backlog-age", "anna", [2]),
        ("unsubscribe-while-away", "anna", [3]),
        ("zombie", "anna", [1, 2]),
        ("cut-link", "anna", [1, 2, 3]),
        ("thin-link", "anna", [1, 2, 3]),
        ("slow-broker", "anna", [1, 2, 3]),
        ("crash", "carla", [1, 2, 3]),
        ("crash-with-publisher", "anna", [1, 2]),
        ("leaving", "bert", [1]),
        ("coming-back-after-leaving", "anna", [1, 3]),
        ("away-too-long", "anna", [3]),
        ("session-expires", "anna", [1, 3]),
        ("session-expires", "bert", [1, 2, 3]),
        ("lost-goodbye", "anna", []),
        ("handoff", "anna", [1, 2]),
        ("there-and-back", "anna", [1, 2, 3]),
        ("moving-on-at-once", "anna", [1, 2, 3]),
        ("moving-with-handoff", "anna", [1, 2, 3]),
        ("moving-without-support", "anna", [1, 1, 3]),
        ("left-behind-connection", "anna", [1, 2, 3]),
        ("uncovering-by-moving", "anna", [1, 2, 3]),
        ("uncovering-by-moving", "bert", [1, 2, 3]),
        ("interest-in-other-attributes", "anna", [1, 2]),
        ("interest-in-other-attributes", "bert", []),
        ("missing-attributes", "anna", [3]),
        ("missing-attributes", "bert", [2, 3]),
        ("missing-attributes", "carla", [1]),
    ],
)
def test_who_gets_what(name, client, numbers):
    assert [number for _, number in received(name, client)] == numbers


@pytest.mark.parametrize(
    ("name", "reason", "count"),
    [
        ("backlog-count", "backlog_count", 2),
        ("backlog-bytes", "backlog_bytes", 2),
        ("backlog-age", "backlog_age", 1),
    ],
)
def test_what_is_dropped_is_told_exactly(name, reason, count):
    events = scenario.play(SHIPPED[name]).world.events
    told = [(one.count, one.reason) for one in events if one.kind == "lost"]
    assert told == [(count, reason)]


def test_a_late_answer_is_used_as_far_as_order_permits():
    assert received("old-broker-down", "anna") == [("ticker", 2), ("gasworks", 1), ("ticker", 3)]
    events = scenario.play(SHIPPED["old-broker-down"]).world.events
    assert [one.count for one in events if one.kind == "lost"] == [0]
    assert [one.count for one in events if one.kind == "settled"] == [1]


def test_interest_in_other_attributes_is_no_early_answer_and_may_be_excluded():
    world = scenario.play(SHIPPED["interest-in-other-attributes"]).world
    advertised = [one.time_ns for one in world.events if one.kind == "advertised"]
    answers = [one for one in world.events if one.kind in ("wanted", "unwanted")]
    assert [one.kind for one in answers] == ["wanted", "unwanted", "wanted"]
    there_and_back_ns = 4 * 10_000_000  # two links to the broker of anna
    assert answers[0].time_ns - advertised[0] >= there_and_back_ns
    assert answers[1].time_ns - advertised[1] >= there_and_back_ns


def test_what_comes_late_is_marked_and_for_others_it_is_counted():
    assert received("late", "anna") == [("ticker", number) for number in (3, 1, 2, 4)]
    assert received("late", "bert") == [("ticker", 3), ("ticker", 4)]
    events = scenario.play(SHIPPED["late"]).world.events
    assert [one.number for one in events if one.reason == "late"] == [1, 2]
    told = [(one.client, one.count, one.entries) for one in events if one.kind == "settled"]
    assert told == [("anna", 0, {}), ("bert", 2, {"ticker": 2})]


def test_nothing_is_left_when_everybody_left():
    world = played(BASE + "leave anna ; leave ticker").world
    for host in world.brokers.values():
        routing = host.core.routing
        assert not list(host.core.border.all())
        assert not routing.destinations.counts()
        for tables in (routing.in_ads, routing.in_subs):
            assert not any(tables.values())
        for outs in (routing.out_ads, routing.out_subs):
            assert not any(table.entries for table in outs.values())


# Reading


def test_a_text_is_read_into_statements_with_their_lines():
    story = scenario.read(
        "x", "# About\n# this.\nbrokers porto\n\n  wait 1ms ; settle\n# and\nnote a;b\n----\nT\n"
    )
    assert story.name == "x"
    assert story.about == "About this. and"
    assert story.statements == (
        (3, "brokers porto"),
        (5, "wait 1ms"),
        (5, "settle"),
        (7, "note a;b"),
    )
    assert story.trace == "T\n"


@pytest.mark.parametrize(
    "line",
    [
        "wait 1ms ; settle ;",
        "; wait 1ms ; settle",
        " ; wait 1ms ; settle ; ",
        "wait 1ms ; ; settle",
    ],
)
def test_a_semicolon_with_nothing_to_separate_says_nothing(line):
    story = scenario.read("x", f"brokers porto\n{line}\n ; \nnote a; b ;c")
    assert story.statements == (
        (1, "brokers porto"),
        (2, "wait 1ms"),
        (2, "settle"),
        (4, "note a; b ;c"),
    )


def test_a_semicolon_in_quotes_separates_nothing():
    statement = "publish ticker {text: 'a ; b'}"
    assert scenario.read("x", f"{statement} ; settle").statements == ((1, statement), (1, "settle"))


@pytest.mark.parametrize("end", ["\n----", "\n----\n"])
def test_a_separator_without_a_trace_is_the_end(end):
    story = scenario.read("x", f"brokers porto{end}")
    assert (story.statements, story.trace) == (((1, "brokers porto"),), "")


def test_a_byte_order_mark_is_not_part_of_the_story(tmp_path):
    for text in ("# Mine.\nbrokers porto\n", "brokers porto\n# Mine.\n"):
        file = tmp_path / "mine.txt"
        file.write_text(text, encoding="utf-8-sig")
        assert scenario.find(str(file)) == scenario.read("mine", text)


def test_a_text_without_a_trace_can_be_played():
    story = scenario.read("x", "brokers porto")
    assert story.trace == ""
    assert scenario.play(story).lines == [
        "0 published, 0 delivered, 0 lost: complete, once, in order, tidy"
    ]


def test_help_has_every_statement_and_the_help_is_right():
    lines = scenario.help_text().splitlines()
    assert [line.split()[0] for line in lines] == list(scenario.STATEMENTS)
    examples = {line.split()[0]: line for line in lines}
    played(examples["brokers"])
    plain, _, optional = examples["attach"].replace("]", "").partition("[")
    optional = optional.replace("[", "")
    played(f"brokers porto - lisbon\n{plain}{optional}\n{plain}")
    for word in ("subscribe", "unsubscribe", "detach", "note", "wait", "settle"):
        statement = examples[word].partition("[")[0]
        played(f"brokers porto - lisbon\nattach anna porto\n{statement}")
    for word in ("cut", "heal", "slow", "crash", "show"):
        statement = examples[word].replace("[", "").replace("]", "")
        played(f"brokers porto - lisbon\n{statement}\nwait 3s\nheal porto - lisbon")


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("{}", {}),
        ("{ }", {}),
        ("{price: 41}", {"price": 41}),
        ("{price:41,road:'A5'}", {"price": 41, "road": "A5"}),
        ("{a: -1, b: +2, c: 1.5, d: 2e3}", {"a": -1, "b": 2, "c": 1.5, "d": 2000.0}),
        ("{open: true, shut: false}", {"open": True, "shut": False}),
        ("{text: 'it''s: a, {b}'}", {"text": "it's: a, {b}"}),
        ("{text: ''}", {"text": ""}),
        ("{geo.lat: 1}", {"geo.lat": 1}),
    ],
)
def test_attributes_are_read(text, attributes):
    read = scenario.read_attributes(text)
    assert read == attributes
    assert list(map(type, read.values())) == list(map(type, attributes.values()))


@pytest.mark.parametrize(
    "text",
    [
        "price: 41",
        "{price: 41",
        "{price}",
        "{price: }",
        "{price: cheap}",
        "{price: 'cheap}",
        "{price: 4 road: 5}",
        "{price: 1.2.3}",
        "{price: -}",
        "{: 4}",
        "{price: True}",
    ],
)
def test_what_is_no_list_of_attributes_is_refused(text):
    with pytest.raises(scenario.Misread):
        scenario.read_attributes(text)


def test_attributes_print_as_they_are_read():
    outcome = played(
        "brokers porto\nattach ticker porto ; advertise ticker exists a ; subscribe ticker exists a\n"
        "settle\npublish ticker {a: 'it''s', b: true, c: 1.5, d: -4}"
    )
    assert outcome.lines[0].endswith("ticker 1 {a: 'it''s', b: true, c: 1.5, d: -4}")


# Mistakes


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        # what there is to say at all
        ("brokers porto\njump anna", 2, "unknown statement 'jump': routing, relocation"),
        ("brokers porto\n\n# a remark\nSettle", 4, "unknown statement 'Settle'"),
        # before the brokers
        ("settle", 1, "name the brokers first: brokers porto - lisbon - faro"),
        ("attach anna porto", 1, "name the brokers first"),
        ("note hello", 1, "name the brokers first"),
        ("cut porto - lisbon", 1, "name the brokers first"),
        ("show porto", 1, "name the brokers first"),
        ("brokers porto\nrouting simple", 2, "before the brokers are named"),
        ("brokers porto\nrelocation naive", 2, "before the brokers are named"),
        ("brokers porto\nlink 5ms", 2, "before the brokers are named"),
        ("brokers porto\nclient_link 5ms", 2, "before the brokers are named"),
        ("brokers porto\nbacklog count 3", 2, "before the brokers are named"),
        ("brokers porto\ntrace all", 2, "before the brokers are named"),
        ("brokers porto\nbrokers lisbon", 2, "before the brokers are named"),
        # the tree
        ("brokers", 1, "this is written: brokers porto - lisbon - faro, lisbon - braga"),
        ("brokers porto-lisbon", 1, "this is written: brokers"),
        ("brokers porto - ", 1, "this is written: brokers"),
        ("brokers porto - lisbon - porto", 1, "a tree of 2 brokers has 1 links, not 2"),
        ("brokers porto - lisbon - faro - porto", 1, "a tree of 3 brokers has 2 links, not 3"),
        ("brokers a - b, c - d", 1, "a tree of 4 brokers has 3 links, not 2"),
        ("brokers a - b - c - a, d - e", 1, "is not connected to a"),
        ("brokers porto - porto", 1, "a tree of 1 brokers has 0 links, not 1"),
        (
            "routing shortest\nbrokers porto",
            1,
            "this is written: routing flooding",
        ),
        ("relocation home\nplaces a - b\nbrokers a - b", 3, "no broker can listen ahead"),
        ("relocation teleport\nbrokers porto", 1, "this is written: relocation handoff"),
        # settings
        ("link fast\nbrokers porto", 1, "this is written: link 10ms [+5ms jitter]"),
        ("link 10ms loss 1.5", 1, "this is written: link 10ms"),
        ("link 10ms 64", 1, "this is written: link 10ms"),
        ("client_link profile", 1, "this is written: client_link 2ms"),
        ("client_link profile umts", 1, "there is no profile 'umts': take one of gprs,"),
        ("client_link profile gprs error=2", 1, "error is a share from 0 to below 1"),
        ("brokers porto\nattach anna porto profile umts", 2, "there is no profile 'umts'"),
        (
            "brokers porto\nattach anna porto\nattach anna porto profile gprs",
            3,
            "this is written: attach anna porto [profile gprs]",
        ),
        ("client_link soon profile gprs", 1, "this is written: client_link 2ms"),
        ("client_link", 1, "this is written: client_link 2ms"),
        (
            "backlog 3",
            1,
            "this is written: backlog count 3 | bytes 1000 | age 10s | away 60s | window 64"
            " | window-bytes 1000 | answer 30s | held 100",
        ),
        ("backlog count many", 1, "this is written: backlog"),
        ("backlog age 10", 1, "this is written: backlog"),
        ("backlog weight 3", 1, "this is written: backlog"),
        ("trace some", 1, "this is written: trace all"),
        # clients
        ("brokers porto\nattach anna lisbon", 2, "there is no broker 'lisbon'"),
        ("brokers porto\nattach anna", 2, "this is written: attach anna porto"),
        ("brokers porto\nattach", 2, "this is written: attach anna porto"),
        ("brokers porto\nattach porto porto", 2, "porto is there already"),
        ("brokers porto\nattach anna porto\nattach anna faro", 3, "there is no broker 'faro'"),
        ("brokers porto\ndetach anna", 2, "there is no client 'anna': attach it first"),
        ("brokers porto\ndisconnect anna", 2, "there is no client 'anna'"),
        ("brokers porto\nleave anna", 2, "there is no client 'anna'"),
        ("brokers porto\nsubscribe anna price > 4", 2, "there is no client 'anna'"),
        ("brokers porto\nattach anna porto ; subscribe anna", 2, "this is written: subscribe anna"),
        ("brokers porto\nattach anna porto\nsubscribe anna price >", 3, "expected a value"),
        ("brokers porto\nattach anna porto\nadvertise anna price ~ 4", 3, "at column 7"),
        ("brokers porto\nattach anna porto\nunsubscribe anna (", 3, "at column"),
        ("brokers porto\nattach anna porto\nunadvertise anna", 3, "this is written: unadvertise"),
        # publications
        (BASE + "publish ticker", 6, "this is written: publish ticker {price: 41, road: 'A5'}"),
        (BASE + "publish ticker price: 41", 6, "this is written: publish"),
        (BASE + "publish ticker {price}", 6, "this is written: publish"),
        (BASE + "publish nobody {price: 41}", 6, "there is no client 'nobody'"),
        (BASE + "publish ticker {price: 0}", 6, "no advertisement of ticker matches {'price': 0}"),
        (BASE + "publish anna {price: 41}", 6, "no advertisement of anna matches"),
        (BASE + "publish ticker {price: 1e999}", 6, "NaN and infinities are not values"),
        (BASE + "publish ticker {price: 99999999999999999999}", 6, "an int has at most 64 bits"),
        # the network
        (BASE + "cut porto - faro", 6, "there is no link porto - faro"),
        (BASE + "cut porto lisbon", 6, "this is written: cut porto - lisbon"),
        (BASE + "heal porto - porto", 6, "there is no link porto - porto"),
        (BASE + "crash lisbon", 6, "this is written: crash lisbon 2s"),
        (BASE + "crash faro 2s", 6, "there is no broker 'faro'"),
        (BASE + "slow faro 5ms", 6, "there is no broker 'faro'"),
        (BASE + "slow porto", 6, "this is written: slow lisbon 5ms"),
        (BASE + "show faro", 6, "there is no broker 'faro'"),
        # time
        (BASE + "wait", 6, "this is written: wait 30ms"),
        (BASE + "wait 5", 6, "this is written: wait 30ms"),
        (BASE + "wait -5ms", 6, "this is written: wait 30ms"),
        (BASE + "wait 5 minutes", 6, "this is written: wait 30ms"),
        (BASE + "settle down", 6, "this is written: settle"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_to_do(text, line, reason):
    with pytest.raises(ScenarioError) as caught:
        played(text)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"line {line}: ")
    assert reason in caught.value.reason


def test_a_text_without_brokers_says_what_is_missing():
    with pytest.raises(WayfareError, match="name the brokers first"):
        played("# nothing at all")


# Finding


def test_a_scenario_is_found_by_name():
    assert scenario.find("uncovering") == scenario.shipped()["uncovering"]


def test_a_scenario_is_found_in_a_file(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("# Mine.\nbrokers porto\n", encoding="utf-8")
    story = scenario.find(str(file))
    assert (story.name, story.about) == ("mine", "Mine.")
    assert story.statements == ((2, "brokers porto"),)


@pytest.mark.parametrize("name", ["uncoverin", "", "no/such/file.txt", "/"])
def test_an_unknown_scenario_says_where_to_look(name):
    with pytest.raises(WayfareError, match="there is no scenario") as caught:
        scenario.find(name)
    assert "`wayfare sim` lists the scenarios" in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    file = tmp_path / "picture.txt"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not a text in UTF-8"):
        scenario.find(str(file))


# The oracle's words


def test_a_scenario_that_breaks_a_promise_says_which():
    outcome = played(BASE + "cut porto - lisbon ; publish ticker {price: 41}")
    assert outcome.lines[-3:] == [
        "1 published, 0 delivered, 0 lost: NOT AS PROMISED",
        "  complete: anna did not get ticker 1",
        "  tidy: 1 messages on their way from porto to lisbon",
    ]


def test_filters_are_printed_in_their_one_normal_form():
    outcome = played("brokers a - b\nattach p a ; advertise p not (x <= 1) and x <= 2")
    assert f"+ad {Filter.parse('x > 1 and x <= 2')}" in outcome.lines[0]
