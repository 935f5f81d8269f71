"""Configuration: what files mean, and every mistake with its line, all at once."""

import re
import tomllib
from pathlib import Path

import pytest

from test_doctor import issue
from wayfare import cli
from wayfare.core.codec import NAME_MAX, PASSWORD_MAX, encode
from wayfare.core.history import Limits
from wayfare.core.messages import Login
from wayfare.core.places import EVERYWHERE
from wayfare.core.prediction import Movement, Moves
from wayfare.core.prediction import encode as encode_model
from wayfare.errors import ConfigError, UsageError, WayfareError
from wayfare.net import checks, config, config_keys, configured, kinds, network
from wayfare.net.addresses import Address
from wayfare.net.heartbeat import HEARTBEAT_S
from wayfare.net.kinds import DURATION, SIZE
from wayfare.net.limits import NetLimits
from wayfare.net.security import Tls

DOCS = Path(__file__).resolve().parent.parent / "docs"
EXAMPLES = DOCS / "examples"
HALF = kinds.available_bytes() // 2


def mistakes(text):
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "x.toml")
    return str(caught.value).splitlines()


# What files mean


def test_a_name_is_all_that_a_broker_needs():
    site = config.parse('name = "lisbon"')
    assert site == configured.Broker(
        "lisbon",
        Address("127.0.0.1", 7410),
        {},
        configured.Settings(
            routing="covering",
            relocation="handoff",
            heartbeat_s=HEARTBEAT_S,
            limits=Limits(memory_bytes=HALF),
            durability=configured.Durability("memory", ""),
        ),
    )


def test_every_key_of_a_broker():
    site = config.parse(
        """
        name = "lisbon"
        listen = "0.0.0.0:7000"
        routing = "merging"
        relocation = "handoff"
        heartbeat = 0.5
        neighbours = { porto = "porto.example", faro = "" }
        [limits]
        backlog_count = 1
        backlog_bytes = "2kB"
        backlog_age = "3m"
        away = "4h"
        filters = 5
        window = 6
        held_count = 7
        answer = "800ms"
        marks_age = "9d"
        tombstone = 1.5
        [durability]
        mode = "disk"
        directory = "lisbon"
        """,
        "etc/site.toml",
    )
    second = 1_000_000_000
    assert (site.name, site.listen) == ("lisbon", Address("0.0.0.0", 7000))
    assert site.neighbours == {"porto": Address("porto.example", 7410), "faro": None}
    settings = site.settings
    assert (settings.routing, settings.relocation) == ("merging", "handoff")
    assert settings.heartbeat_s == 0.5
    assert settings.durability == configured.Durability("disk", "etc/lisbon")
    assert settings.limits == Limits(
        backlog_count=1,
        backlog_bytes=2000,
        backlog_age_ns=180 * second,
        away_ns=4 * 3600 * second,
        filters=5,
        window=6,
        held_count=7,
        answer_ns=800_000_000,
        marks_age_ns=9 * 86400 * second,
        tombstone_ns=1_500_000_000,
        memory_bytes=HALF,
    )


def test_every_limit_of_the_core_has_a_key():
    only_simulated = {"delay_ns", "prepared_ns"}
    of_the_host = {"greeting_ns"}  # as `limits.greeting` says
    fixed = {"slice_units", "long_text"}  # how long one event works: operators need not choose
    others = only_simulated | of_the_host | fixed
    assert {*config_keys.LIMITS} == {*Limits.__struct_fields__} - others


def test_defaults_mean_what_the_core_has():
    for field, key in config_keys.LIMITS.items():
        if field not in config_keys.IN_SUM:
            assert key.kind.read(key.default) == getattr(Limits(), field)


@pytest.mark.parametrize(
    ("text", "bytes"),
    [("512MiB", 512 * 2**20), ("none", 0), (0, 0), (1000, 1000), ("100%", kinds.available_bytes())],
)
def test_memory_is_limited_by_size_or_share(text, bytes):
    assert config_keys.LIMITS["memory_bytes"].kind.read(text) == bytes


@pytest.mark.parametrize("text", ["0%", "101%", "half", "-1MiB", True])
def test_a_limit_of_memory_that_makes_no_sense_is_refused(text):
    with pytest.raises(ValueError, match='a size like "512MiB", a share like "50%", or "none"'):
        config_keys.LIMITS["memory_bytes"].kind.read(text)


def test_by_default_a_broker_keeps_half_of_the_memory_and_an_account_any():
    limits = config.parse('name = "x"').settings.limits
    assert limits.memory_bytes == kinds.available_bytes() // 2
    assert limits.account_memory_bytes == 0


def test_every_limit_of_the_live_host_has_a_key_with_its_default():
    assert {*config_keys.NET_LIMITS} == {*NetLimits.__struct_fields__}
    assert config.parse('name = "x"').settings.net_limits == NetLimits()
    text = 'name = "x"\n[limits]\nstrangers = 7\ngreeting = "500ms"\nwrite_bytes = "1MiB"'
    assert config.parse(text).settings.net_limits == NetLimits(
        strangers=7, greeting_s=0.5, write_bytes=2**20
    )


def test_files_are_relative_to_the_configuration():
    text = """
        name = "lisbon"
        listen = "wayfares://0.0.0.0"
        secret_file = "secret"
        accounts = "/var/accounts.toml"
        neighbours = { porto = "wayfares://porto.example" }
        [tls]
        cert = "lisbon.pem"
        key = "lisbon.key"
        ca = "ca.pem"
        require = true
    """
    site = config.parse(text, "etc/site.toml")
    assert (site.listen.tls, site.neighbours["porto"].tls) == (True, True)
    assert site.settings.security == configured.Security(
        Tls("etc/lisbon.pem", "etc/lisbon.key", "etc/ca.pem", require=True),
        "etc/secret",
        "/var/accounts.toml",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('tls.cert = "c"', "tls.key is missing: a certificate has a key"),
        ('tls.key = "k"', "tls.cert is missing: a certificate has a key"),
        ("tls.require = true", "tls.require is true: say in tls.ca who signs for clients"),
        ("tls.require = 1", "tls.require is 1: give true or false"),
    ],
)
def test_mistakes_of_certificates(text, says):
    (told,) = mistakes(f'name = "a"\n{text}')
    assert says in told


@pytest.mark.parametrize("key", ["secret_file", "accounts"])
def test_a_broker_does_not_start_without_a_file_that_it_needs(tmp_path, key):
    file = tmp_path / "site.toml"
    file.write_text(f'name = "a"\n{key} = "nowhere"', "utf-8")
    site = config.read(file)
    with pytest.raises(UsageError, match=r"cannot read the .*nowhere"):
        network.host(site.name, site.neighbours, site.settings)


def test_a_secret_is_the_first_line_of_its_file(tmp_path):
    (tmp_path / "secret").write_text("correct horse battery\nmore\n", "utf-8")
    file = tmp_path / "site.toml"
    file.write_text('name = "a"\nsecret_file = "secret"', "utf-8")
    site = config.read(file)
    host = network.host(site.name, site.neighbours, site.settings)
    assert host._door._secret == "correct horse battery"
    (tmp_path / "secret").write_text("short\n", "utf-8")
    with pytest.raises(UsageError, match="a shared secret has at least 16 characters"):
        network.host(site.name, site.neighbours, site.settings)


def test_a_network_is_links():
    city = config.parse('links = [["a", "b"], ["c", "b"]]\nrouting = "simple"')
    assert isinstance(city, configured.Network)
    assert city.brokers == {"a": 0, "b": 0, "c": 0}
    assert city.links == (("a", "b"), ("c", "b"))
    assert (city.host, city.settings.routing) == ("127.0.0.1", "simple")


def test_a_network_may_be_one_broker():
    city = config.parse("[brokers]\nalone = 7410")
    assert (city.brokers, city.links) == ({"alone": 7410}, ())


@pytest.mark.parametrize(
    ("kind", "written", "meaning"),
    [
        (DURATION, 2, 2_000_000_000),
        (DURATION, 0.25, 250_000_000),
        (DURATION, "1.5 s", 1_500_000_000),
        (DURATION, "10m", 600_000_000_000),
        (SIZE, 100, 100),
        (SIZE, "64 KiB", 65536),
        (SIZE, "1.5MB", 1_500_000),
    ],
)
def test_quantities(kind, written, meaning):
    assert kind.read(written) == meaning


# Mistakes


def test_all_mistakes_of_a_file_are_told_at_once_in_their_order():
    assert mistakes(
        """\
nam = "lisbon"
listen = 7410
routing = "covring"

[neighbours]
"a b" = "x"
porto = "porto:0"

[limits]
# none of these
away = "7 weeks"
window = 0
"""
    ) == [
        "x.toml: name is missing: what this broker is called; no other in the tree is",
        "x.toml:1: nam is no key (did you mean name?)",
        'x.toml:2: listen is 7410: give a text like "127.0.0.1:7410"',
        'x.toml:3: routing is "covring": choose one of flooding, simple, identity, covering, merging'
        " (did you mean covering?)",
        "x.toml:6: neighbours.a b is no name of a broker:"
        " names are made of letters, digits, '.', '-' and '_'",
        'x.toml:7: neighbours.porto is "porto:0": nobody can call port 0,'
        " so give the port where it listens",
        'x.toml:11: limits.away is "7 weeks": give seconds, like 30, or a text like "500ms", "10m", "7d"',
        "x.toml:12: limits.window is 0: give a whole number, at least 1",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('name = "a"\nname = "b"', ":2: this is no TOML: Cannot overwrite a value at the end"),
        ('name = "a"\n= 3\n', ":2: this is no TOML at column 1: Invalid statement"),
        ("name = ", ":1: this is no TOML: Invalid value at the end"),
        ('name = ""', ':1: name is "": give a name; names are made of'),
        ('name = "a"\nlisten = ""', ':2: listen is "": give a text like'),
        ('name = "a"\nlisten = "b:99999"', ':2: listen is "b:99999": give a text like'),
        (
            'name = "a"\nlisten = "wayfares://b"',
            ':2: listen is "wayfares://b:7410": say tls.cert and tls.key',
        ),
        ('name = "a"\nheartbeat = true', ":2: heartbeat is true: give seconds"),
        ('name = "a"\nheartbeat = -1', ":2: heartbeat is -1: give seconds"),
        ('name = "a"\nheartbeat = inf', ":2: heartbeat is Infinity: give seconds"),
        ('name = "a"\nheartbeat = 1e300', ":2: heartbeat is 1e+300: give seconds"),
        ('name = "a"\nheartbeat = "1ms"', ':2: heartbeat is "1ms": no peer answers as soon as'),
        (
            'name = "a"\n[limits]\nframe_bytes = 10',
            ":3: limits.frame_bytes is 10: messages that everybody sends do not fit, so give at"
            " least 64KiB",
        ),
        ('name = "a"\nlimits.stranger_bytes = 99', ":2: limits.stranger_bytes is 99: a login with"),
        ('name = "a"\nlimits.greeting = "1ms"', ':2: limits.greeting is "1ms": no peer says'),
        ('name = "a"\nlimits.backlog_bytes = "1 TB"', ':2: limits.backlog_bytes is "1 TB": give'),
        ('name = "a"\nlimits.window = true', ":2: limits.window is true: give a whole number"),
        ('name = "a"\nlimits = 3', ":2: limits is a table: write [limits]"),
        ('name = "a"\nneighbours = 3', ":2: neighbours is a table: write [neighbours]"),
        ('name = "a"\nneighbours.a = ""', ":2: neighbours.a is this broker itself"),
        ('name = "a"\n[neighbours.b]\nx = 1', ':2: neighbours.b is {"x": 1}: give a text'),
        (
            'name = "a"\n[limits]\nwindw = 3',
            ":3: limits.windw is no key (did you mean limits.window?)",
        ),
        ('name = "a"\n[nonsense]\nb = 3', ":2: nonsense is no key: docs/configuration.md"),
        (
            'name = "a"\nhost = "b"',
            ":2: host is for the file of a network, and this is one of a bro",
        ),
        (
            'name = "a"\nrouting = "flooding"\nrelocation = "junction"',
            ':3: relocation is "junction": junction follows subscriptions, and flooding has none',
        ),
        (
            'name = "a"\n[durability]\nmode = "disk"',
            ':3: durability.mode is "disk": say where, like directory = "store"',
        ),
        (
            'name = "a"\nrelocation = "home"\n[durability]\nmode = "os"\ndirectory = "b"',
            ':4: durability.mode is "os": home keeps what it does in memory only',
        ),
        (
            'name = "a"\nrelocation = "home"\n[ahead]\nplaces = "map.json"',
            ':2: relocation is "home": sessions stay at home, so no broker can listen ahead',
        ),
        ('name = "a"\n[durability]\nmode = "tape"', ':3: durability.mode is "tape": choose one of'),
        ('links = [["a", "b"]]\nhost = ""', ':2: host is "": give a text'),
        ("brokers = {}", ": a network without brokers: give links"),
        ("links = 3", ":1: links is 3: give a list of pairs"),
        ('links = [["a", "b"]]\nname = "c"', ":2: name is for the file of a broker"),
        ('links = [["a"]]', ':1: links has ["a"]: give pairs of names'),
        ('links = ["a-b"]', ':1: links has "a-b": give pairs of names'),
        ('links = [["a", "b c"]]', ':1: links has ["a", "b c"]: names are made of'),
        ('links = [["a", "a"]]', ':1: links has ["a", "a"]: a broker has no link to itself'),
        ('links = [["a", "b"],\n["c", "d"]]', ":1: links leave c without a way to a"),
        ('links = [["a", "b"],\n["b", "a"]]', ':2: links has ["b", "a"], which are linked already'),
        (
            'links = [\n["a", "b"],\n\n["b", "c"], # yes\n["c", "a"],\n]',
            ':5: links has ["c", "a"], which are linked already: a tree has no circle',
        ),
        (
            'links = [["lisbon", "prto"]]\n[brokers]\nlisbon = 0\nporto = 0',
            ':1: links has ["lisbon", "prto"]: there is no prto in [brokers] (did you mean porto?)',
        ),
        ('links=[["a","b"]]\n[brokers]\na = 70000\nb = 0', ":3: brokers.a is 70000: give a port"),
        ('links=[["a","b"]]\n[brokers]\na = 7\nb = 7', ":4: brokers.b is 7, which is a's port"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(text, says):
    (told,) = mistakes(text)
    assert told.startswith(f"x.toml{says}")


def test_lines_are_found_whatever_stands_between():
    """Texts of several lines, comments, inline tables, dotted and quoted keys, CRLF."""
    text = '''name = """
a = [
"""
# routing = "x"
listen\t= \'\'\'
[limits]\'\'\'
limits . "away" = -1
limits.window = [
  1, # ]
]
[neighbours]   # here
"x.y" = 3
[durability]
mode = 1
'''
    for ends in ("\n", "\r\n"):
        found = mistakes(text.replace("\n", ends))
        lines = [
            (one.split(": ")[0].partition(":")[2], one.split(": ")[1].split()[0]) for one in found
        ]
        assert lines == [
            ("1", "name"),
            ("5", "listen"),
            ("7", "limits.away"),
            ("8", "limits.window"),
            ("12", "neighbours.x.y"),
            ("14", "durability.mode"),
        ]


def test_the_least_of_a_key_is_below_its_default():
    keys = {key.name: key for key in config_keys.KEYS}
    for name, (least, _) in config_keys.LEAST.items():
        assert keys[name].kind.read(least) < keys[name].kind.read(keys[name].default)
    longest = Login("\U0001f600" * NAME_MAX, "\U0001f600" * PASSWORD_MAX)
    assert len(encode(longest)) <= SIZE.read(config_keys.LEAST["limits.stranger_bytes"][0])


def test_elements_of_a_list_are_found_by_their_first_line():
    text = 'links = [["a",\n"b"], # [\n  ["b", "]"\n], [\n"c", "b"\n]\n]\nroutin = 1'
    assert [one.partition(" ")[0] for one in mistakes(text)] == ["x.toml:3:", "x.toml:8:"]


def test_lines_are_found_in_linear_time():
    """Not by a clock: every character is looked at a few times, however many there are."""
    looked = []

    class Loads:
        TOMLDecodeError = tomllib.TOMLDecodeError

        def loads(self, text):
            looked.append(len(text))
            return tomllib.loads(text)

    text = "links = [\n" + "".join(f'["a{i}", "b"],\n' for i in range(1000)) + '["b", "b"],\n]\n'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "tomllib", Loads())
        (told,) = mistakes(text)
    assert told.startswith("x.toml:1002: links has")
    assert sum(looked) <= 3 * len(text)


# Files that a configuration names


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            'secret_file = "no"',
            "2: secret_file names no good file: cannot read the secret in {}/no: No",
        ),
        (
            'accounts = "no"',
            "2: accounts names no good file: cannot read the accounts in {}/no: No su",
        ),
        ('accounts = "site.toml"', "2: accounts names no good file: {}/site.toml, account 'name'"),
        (
            'tls.cert = "porto.pem"\ntls.key = "no"',
            "3: tls.key names no good file: cannot read {}/no: No such file",
        ),
        (
            'tls.cert = "no"\ntls.key = "porto.key"',
            "2: tls.cert names no good file: cannot read {}/no: No such file",
        ),
        (
            'tls.cert = "ca.pem"\ntls.key = "porto.key"',
            "2: tls.cert names no good file: {}/ca.pem is not what TLS needs, in PEM: ",
        ),
        (
            'tls.cert = "porto.pem"\ntls.key = "porto.key"\ntls.ca = "no"',
            "4: tls.ca names no good file: cannot read {}/no: No such file",
        ),
        (
            'tls.cert = "old.pem"\ntls.key = "old.key"',
            "2: tls.cert names {}/old.pem: its certificate has expired (",
        ),
        (
            "[limits]\nwindow = 20\nbacklog_count = 10",
            "3: limits.window is 20, and limits.backlog_count only 10: what",
        ),
        (
            'limits.write_bytes = "1MB"',
            "2: limits.write_bytes is 1000000, and one message may have 8388608",
        ),
        (
            'limits.backlog_bytes = "64MiB"',
            "2: limits.write_bytes is 33554432, and limits.backlog_bytes 67108864: a reader that",
        ),
    ],
)
def test_what_only_shows_beside_the_file_is_told_with_its_line(tmp_path, capsys, more, says):
    issue(tmp_path, "porto", 90)
    issue(tmp_path, "old", -1)
    file = tmp_path / "site.toml"
    file.write_text(f'name = "a"\n{more}\n', "utf-8")
    config.read(file)
    assert cli.main(["config", "check", str(file)]) == 2
    (told,) = capsys.readouterr().out.splitlines()
    assert told.startswith(f"{file}:{says.format(tmp_path)}")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*nowhere.toml: No such file"):
        config.read(tmp_path / "nowhere.toml")
    file = tmp_path / "latin.toml"
    file.write_bytes('# São João\nname = "São"\n'.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin.toml:1: this line is no TOML: it is not UTF-8"):
        config.read(file)


# The pages


def test_examples_are_fine_and_show_the_defaults_that_they_claim():
    site = config.read(EXAMPLES / "site.toml")
    assert site.settings == config.parse('name = "x"').settings
    city = config.read(EXAMPLES / "city.toml")
    assert list(city.brokers) == ["porto", "lisbon", "faro", "evora"]
    limits = Limits(away_ns=3600 * 10**9, backlog_count=1000, memory_bytes=HALF)
    assert city.settings.limits == limits


def test_the_reference_is_up_to_date(rewrite):
    page = DOCS / "configuration.md"
    text = page.read_text("utf-8")
    above, heading, _ = text.partition("## One broker\n")
    assert heading
    if rewrite:
        page.write_text(above + config_keys.reference(), "utf-8")
    else:
        assert text == above + config_keys.reference(), "pytest --rewrite tests/test_config.py"


def test_defaults_of_the_reference_can_be_written_in_a_file():
    for kind, needed in (("broker", 'name = "x"'), ("network", 'links = [["a", "b"]]')):
        here = [
            f"{row['key']} = {row['default']}"
            for row in config_keys.rows()
            if row["file"] in ("both", kind) and row["default"] not in ("", "(needed)")
        ]
        text = "\n".join([needed, *here])
        assert config.parse(text).settings == config.parse(needed).settings
        assert len(tomllib.loads(text)) > 4


# Listening ahead


MAP = '{"places": {"R1": {"next": ["R2"], "broker": "a"}, "R2": {"broker": "b"}}}'


def in_file(tmp_path, text, **files):
    for name, content in files.items():
        (tmp_path / name.replace("_", ".")).write_text(content, "utf-8")
    (tmp_path / "site.toml").write_text(f'name = "a"\n{text}', "utf-8")
    return config.read(tmp_path / "site.toml")


def ahead_of(site):
    host = network.host(site.name, site.neighbours, site.settings, site.peers)
    return host.core.replicator.ahead


def test_a_broker_has_a_map(tmp_path):
    text = '[ahead]\nplaces = "map.json"\nsteps = "by dwell"\ndwell = "10s"\nhop = "5s"'
    ahead = ahead_of(in_file(tmp_path, text, map_json=MAP))
    assert ahead.places.locations("b") == ("R2",)
    assert (ahead.nlb("a"), ahead.nlb("b")) == (("b",), ())
    assert [ahead.steps_at(hops) for hops in (1, 2, 3)] == [1, 2, 3]


def test_a_broker_has_a_mined_model(tmp_path):
    moves = [Moves("", "", "a", "b", 7), Moves("", "", "a", "c", 3)]
    (tmp_path / "model.json").write_bytes(encode_model(Movement(moves)))
    for coverage, there in (("1", ("b", "c")), ("0.5", ("b",))):
        text = f'[ahead]\nmovement = "model.json"\ncoverage = {coverage}'
        assert ahead_of(in_file(tmp_path, text)).nlb("a") == there


@pytest.mark.parametrize(
    ("nlb", "there"),
    [("next", ("b",)), ("learnt", ("b",)), ("none", ()), ("all", ["b", "c", "d"])],
)
def test_which_brokers_listen(tmp_path, nlb, there):
    text = f"""
        neighbours = {{ b = "127.0.0.1:1", d = "127.0.0.1:3", e = "" }}
        peers = {{ c = "127.0.0.1:2" }}
        ahead = {{ places = "map.json", nlb = "{nlb}" }}
    """
    found = ahead_of(in_file(tmp_path, text, map_json=MAP)).nlb("a")
    assert (sorted(found) if nlb == "all" else found) == there


def test_what_brokers_learn_begins_with_a_map_or_a_mined_model(tmp_path):
    moves = [Moves("", "", "a", "b", 70), Moves("", "x", "a", "c", 30)]
    (tmp_path / "model.json").write_bytes(encode_model(Movement(moves)))
    text = 'ahead = { movement = "model.json", nlb = "learnt", coverage = 0.8 }'
    site = in_file(tmp_path, text)
    learner = network.host(site.name, site.neighbours, site.settings).core.replicator.learner
    assert (learner.expected("", "car"), learner.expected("x", "car")) == (["b"], ["c"])
    assert ahead_of(site).learning.coverage == 0.8
    mapped = in_file(tmp_path, 'ahead = { places = "map.json", nlb = "learnt" }', map_json=MAP)
    learner = network.host(mapped.name, mapped.neighbours, mapped.settings).core.replicator.learner
    assert learner.expected("", "car") == ["b"]
    with pytest.raises(ConfigError, match="stay at home"):
        in_file(tmp_path, 'relocation = "home"\nahead = { nlb = "learnt" }')


def test_the_next_brokers_of_a_mined_model_are_those_of_its_contexts(tmp_path):
    moves = [Moves("", "", "a", "b", 70), Moves("", "x", "a", "c", 30)]
    (tmp_path / "model.json").write_bytes(encode_model(Movement(moves)))
    site = in_file(tmp_path, 'ahead = { movement = "model.json", coverage = 0.8 }')
    known = network.host(site.name, site.neighbours, site.settings).core.replicator.learner
    for _ in range(100):
        known.went("x", "car", "d", False)
    assert (known.expected("", "car"), known.expected("x", "car")) == (["b"], ["c"])
    mapped = in_file(tmp_path, 'ahead = { places = "map.json" }', map_json=MAP)
    assert ahead_of(mapped).learning is None


@pytest.mark.parametrize(
    ("written", "meaning"), [(0, 0), (3, 3), ('"everywhere"', EVERYWHERE), ('"by dwell"', None)]
)
def test_steps(written, meaning):
    site = config.parse(f'name = "a"\nahead.steps = {written}')
    assert site.settings.ahead == configured.Ahead(steps=meaning)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ahead.steps = -1", 'ahead.steps is -1: give a whole number of steps, "everywhere" or "by'),
        ('ahead.steps = "far"', 'ahead.steps is "far": give a whole number of steps'),
        ("ahead.steps = true", "ahead.steps is true: give a whole number of steps"),
        ("ahead.coverage = 0", "ahead.coverage is 0: give a share above 0, up to 1"),
        ('ahead.nlb = "near"', "ahead.nlb is \"near\": choose one of next, learnt, none, all"),
        ('ahead = { places = "p", movement = "m" }', "ahead.movement is a map by itself: leave out"),
        ('peers.b = ""', 'peers.b is "": give a text like "10.0.0.5:7410"'),
        ('peers.b = "h:0"', 'peers.b is "h:0": nobody can call port 0'),
        ('peers.a = "h:5"', "peers.a is this broker itself: leave it out"),
    ],
)  # fmt: skip
def test_mistakes_of_listening_ahead(text, says):
    (told,) = mistakes(f'name = "a"\n{text}')
    assert says in told


@pytest.mark.parametrize(
    ("text", "content", "says"),
    [
        ('places = "none.json"', "", "cannot read .*none.json: No such file or directory"),
        ('places = "map.json"', "{", "map.json cannot be used: it is no map"),
        ('places = "map.csv"', "", "map.csv is no map by its name: call it .json or .toml"),
        ('movement = "map.json"', MAP, "map.json cannot be used: it is no movement model"),
    ],
)
def test_a_map_that_cannot_be_used(tmp_path, text, content, says):
    """`wayfare config check` says so, with the line, and so does a broker that is started."""
    site = in_file(tmp_path, f"[ahead]\n{text}", map_json=content)
    (told,) = checks.mistakes(tmp_path / "site.toml", site.settings)
    assert (told.line, told.key) == (3, f"ahead.{text.split()[0]}")
    assert re.match(f"names no good file: .*{says}", told.reason)
    with pytest.raises(WayfareError, match=says):
        ahead_of(site)


def test_a_broker_that_is_announced_says_where_it_is():
    site = config.parse('name = "x"\n[announce]\nnetwork = "city"\n')
    assert site.settings.announce == configured.Announce("city")
    everywhere = 'name = "x"\nlisten = "0.0.0.0"\nannounce.network = "city"\n'
    site = config.parse(everywhere + 'announce.host = "10.0.0.5"\n')
    assert site.settings.announce == configured.Announce("city", "10.0.0.5")
    for text, sentence in (
        (everywhere, "announce.host is missing: it listens at every address of this machine"),
        (
            everywhere + 'announce.host = "::"\n',
            "announce.host has to say where clients on the LAN",
        ),
        (
            'links = [["a", "b"]]\nhost = "0.0.0.0"\nannounce.network = "x"\n',
            "announce.host is missing",
        ),
        (
            'name = "x"\nannounce.host = "10.0.0.5"\n',
            "announce.network is missing: name the network",
        ),
        ('name = "x"\nannounce.network = "a b"\n', 'announce.network is "a b": give a name'),
    ):
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            config.parse(text)


def test_announced_accounts_without_tls_are_a_warning(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text('name = "x"\naccounts = "a.toml"\nannounce.network = "city"\n')
    (warning,) = checks.warnings(file, config.read(file).settings)
    assert "no client sends a password to an announced broker without TLS" in str(warning)
