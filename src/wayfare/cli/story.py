"""`wayfare demo --simulated`: a small network in virtual time, readable at a glance."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from wayfare.core.messages import Notification, Update
from wayfare.core.predicates import Value
from wayfare.core.reduction import STRATEGIES
from wayfare.sim.oracle import check
from wayfare.sim.trace import attributes_text
from wayfare.sim.verdict import Verdict
from wayfare.sim.world import World

EDGES = [
    ("lisbon", "porto"),
    ("lisbon", "faro"),
    ("porto", "braga"),
    ("porto", "viseu"),
    ("faro", "lagos"),
    ("faro", "evora"),
]
PUBLISHERS = [
    ("garage", "lagos", "service = 'parking'"),
    ("radar", "evora", "service = 'speed' and road prefix 'A'"),
]
SUBSCRIBERS = [
    ("anna", "braga", "service = 'parking' and free > 0"),
    ("bert", "viseu", "service = 'parking' and free > 5"),
    ("carl", "viseu", "service = 'parking' and free > 0"),
    ("dora", "braga", "service = 'speed' and road = 'A1'"),
    ("erik", "viseu", "service = 'speed' and road = 'A22'"),
    ("fran", "evora", "near(37.1, -8.7, 2000) or kmh > 180"),
]
PUBLICATIONS: list[tuple[str, dict[str, Value]]] = [
    ("garage", {"service": "parking", "free": 3}),
    ("garage", {"service": "parking", "free": 9}),
    ("garage", {"service": "parking", "free": 0, "lat": 37.1, "lon": -8.69}),
    ("radar", {"service": "speed", "road": "A22", "kmh": 134}),
    ("radar", {"service": "speed", "road": "A1", "kmh": 190}),
]
WHILE_AWAY: list[tuple[str, dict[str, Value]]] = [
    ("garage", {"service": "parking", "free": n}) for n in (4, 2, 7)
]


class Story:
    """The same story under one routing strategy, with everything counted."""

    def __init__(self, routing: str) -> None:
        self.world = world = World(seed=1, routing=routing)
        self.notifications = self.changes = 0  # on links between brokers
        world.watchers.append(self._count)
        world.add_brokers(EDGES)
        for name, broker, filter in PUBLISHERS:
            world.add_client(name, broker).advertise(filter)
        for name, broker, filter in SUBSCRIBERS:
            world.add_client(name, broker).subscribe(filter)
        world.settle()
        self.publish(PUBLICATIONS)
        world.client("anna").detach()
        world.settle()
        self.publish(WHILE_AWAY)
        self.before_return = self.got("anna")
        world.client("anna").attach()
        world.settle()
        self.verdict: Verdict = check(world)
        self.entries = sum(
            len(table)
            for host in world.brokers.values()
            for table in (*host.core.routing.in_ads.values(), *host.core.routing.in_subs.values())
        )

    def publish(self, publications: Iterable[tuple[str, dict[str, Value]]]) -> None:
        for publisher, attributes in publications:
            self.world.client(publisher).publish(attributes)
        self.world.settle()

    def got(self, client: str) -> list[tuple[str, int]]:
        return [
            (str(one.notification.publisher), one.notification.number)
            for one in self.world.client(client).received
        ]

    def _count(self, sender: str, receiver: str, message: object) -> None:
        if sender in self.world.brokers and receiver in self.world.brokers:
            if type(message) is Notification:
                self.notifications += 1
            elif type(message) is Update:
                self.changes += sum(map(len, (message.add_ads, message.add_subs)))
                self.changes += sum(map(len, (message.remove_subs, message.remove_ads)))


def run(*, as_json: bool) -> int:
    """Seven simulated brokers deliver by content; a client goes away and comes back."""
    stories = {routing: Story(routing) for routing in STRATEGIES}
    failed = any(story.verdict.violations for story in stories.values())
    if as_json:
        print(json.dumps({routing: _facts(story) for routing, story in stories.items()}))
    else:
        console = Console(highlight=False)
        with console.capture() as drawn:  # to `print`: on a broken pipe rich would exit by itself
            _show(console, stories)
        print(drawn.get(), end="")
    return 1 if failed else 0


def _facts(story: Story) -> dict[str, Any]:
    verdict = story.verdict
    return {
        "delivered": {name: story.got(name) for name, _, _ in SUBSCRIBERS},
        "table_entries": story.entries,
        "table_changes_sent": story.changes,
        "notifications_sent": story.notifications,
        "published": verdict.published,
        "required": verdict.required,
        "violations": [str(one) for one in verdict.violations],
    }


def _show(console: Console, stories: dict[str, Story]) -> None:
    story = stories["covering"]
    console.print("\n[bold]A tree of seven brokers, in virtual time[/]\n")
    console.print(_tree())
    console.print("\n[bold]Who gets what, by content[/]\n")
    console.print(_deliveries(story))
    console.print("\n[bold]anna goes away and comes back[/]\n")
    console.print(_return(story))
    console.print("\n[bold]The same under each routing strategy[/]\n")
    console.print(_comparison(stories))
    wrong = [violation for one in stories.values() for violation in one.verdict.violations]
    for violation in wrong:
        console.print(f"[red]{violation}[/]")
    if not wrong:
        required = sum(one.verdict.required for one in stories.values())
        console.print(
            f"\nThe oracle checked {required} deliveries and every table:"
            "\n[green]0 lost, 0 twice, 0 out of order, nothing left behind.[/]\n"
        )


def _tree() -> Tree:
    roots = {"lisbon": Tree("[cyan]lisbon[/]", guide_style="dim")}
    here: dict[str, list[str]] = {}
    for name, broker, filter in PUBLISHERS:
        here.setdefault(broker, []).append(f"[yellow]{name}[/] offers {filter}")
    for name, broker, filter in SUBSCRIBERS:
        here.setdefault(broker, []).append(f"[green]{name}[/] wants  {filter}")
    for parent, child in EDGES:
        roots[child] = roots[parent].add(f"[cyan]{child}[/]")
        for line in here.get(child, []):
            roots[child].add(line)
    return roots["lisbon"]


def _table(*columns: str) -> Table:
    return Table(
        *columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )


def _deliveries(story: Story) -> Table:
    table = _table("by", "published", "reaches")
    counts: dict[str, int] = {}
    for publisher, attributes in PUBLICATIONS:
        number = counts[publisher] = counts.get(publisher, 0) + 1
        reached = [name for name, _, _ in SUBSCRIBERS if (publisher, number) in story.got(name)]
        table.add_row(
            f"[yellow]{publisher}[/]",
            attributes_text(attributes),
            f"[green]{', '.join(reached)}[/]",
        )
    return table


def _return(story: Story) -> Table:
    received = story.world.client("anna").received[len(story.before_return) :]
    missed = [attributes["free"] for _, attributes in WHILE_AWAY]
    got = [one.notification.attributes["free"] for one in received]
    table = Table.grid(padding=(0, 2))
    table.add_row("while she is away the garage publishes", _free(missed))
    words = "[green]all, once, in order[/]" if got == missed else "[red]NOT AS PUBLISHED[/]"
    table.add_row("when she is back she gets", _free(got), words)
    return table


def _free(values: list[Value]) -> str:
    return f"free = {', '.join(map(str, values))}"


def _comparison(stories: dict[str, Story]) -> Table:
    table = _table("routing")
    columns = ("table entries", "table changes sent", "notifications sent", "delivered")
    for column in columns:
        table.add_column(column, justify="right")
    for routing, story in stories.items():
        figures = (story.entries, story.changes, story.notifications, story.verdict.delivered)
        table.add_row(routing, *map(str, figures))
    return table
