"""How three nodes of each system are set up as an overlay on loopback, and what has to be installed.

    mqtt      mosquitto   a - b - c, bridges        every publication goes everywhere
    nats      nats-server a, b, c know each other   publications go where subscriptions are
    redis     redis       a, b, c know each other   every publication goes everywhere
    amqp      RabbitMQ    a - b - c, federation     publications go where bindings are
    stomp     ActiveMQ    a - b - c, network of brokers   publications go where subscriptions are
    wayfare   Wayfare     a - b - c                 publications go where subscriptions are

Redis is a cluster, and not a primary with replicas: a replica takes a PUBLISH, and tells nobody but
its own subscribers, so only what is published at the primary would reach all. The nodes of a cluster
tell each other, whoever was asked to publish.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from wayfare.service import activemq, rabbitmq
from wayfare.service.nodes import (
    HERE,
    LINE,
    NAMES,
    PATH,
    Fact,
    Node,
    all_say,
    ask,
    folder_of,
    program,
    three_ports,
)


class Server(msgspec.Struct, frozen=True):
    """What has to be there, from which Debian package, and how nodes are made of it."""

    name: str
    package: str
    needs: Sequence[str]  # programs, or paths
    nodes: Callable[[Path], list[Node]]

    def missing(self) -> str | None:
        """One sentence, if something is."""
        absent = [one for one in self.needs if not _is_there(one)]
        if not absent:
            return None
        return f"{self.name} needs {' and '.join(absent)}: apt-get install {self.package}"


def _is_there(what: str) -> bool:
    return Path(what).exists() if "/" in what else shutil.which(what, path=PATH) is not None


# mosquitto

MOSQUITTO = """per_listener_settings false
user root
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {folder}/
log_dest stderr
log_type error
log_type warning
log_type subscribe
max_queued_messages 0
set_tcp_nodelay true
"""
BRIDGE = """connection {name}-to-b
address 127.0.0.1:{port}
topic # both 1
bridge_protocol_version mqttv50
try_private true
cleansession false
notifications_local_only true
remote_clientid bridge-{name}
restart_timeout 1
"""


def mqtt(directory: Path) -> list[Node]:
    """A line of bridges: a and c call b, which has seen their subscriptions when they are ready.

    Bridges of MQTT 3 would leave out properties, and with them ids.
    """
    (ports,) = three_ports(1)
    nodes = {}
    for name, port in ports.items():
        folder = folder_of(directory, name)
        config = MOSQUITTO.format(port=port, folder=folder)
        if name != "b":
            config += BRIDGE.format(name=name, port=ports["b"])
        (folder / "mosquitto.conf").write_text(config)
        command = [program("mosquitto"), "-c", str(folder / "mosquitto.conf")]
        nodes[name] = Node(name, port, folder, command)
    nodes["b"].first = True  # a bridge that finds nobody waits for seconds
    for name, node in nodes.items():
        bridges = {"b": ("a", "c")}.get(name, (name,))
        node.linked = all_say((nodes["b"], f"bridge-{one} 1 #") for one in bridges)
    return list(nodes.values())


# NATS

NATS = """server_name: {name}
listen: 127.0.0.1:{port}
http: 127.0.0.1:{http}
cluster {{ name: wayfare, listen: 127.0.0.1:{routes}, no_advertise: true, routes: [{others}] }}
"""


def nats(directory: Path) -> list[Node]:
    """A cluster, in which everybody has a route to everybody."""
    ports, http, routes = three_ports(3)
    others = ", ".join(f"nats-route://{HERE}:{port}" for port in routes.values())
    nodes = []
    for name, port in ports.items():
        folder = folder_of(directory, name)
        (folder / "nats.conf").write_text(
            NATS.format(name=name, port=port, http=http[name], routes=routes[name], others=others)
        )
        node = Node(name, port, folder, [program("nats-server"), "-c", folder / "nats.conf"])
        node.linked = _nats_linked(http.values())
        nodes.append(node)
    return nodes


class _Route(msgspec.Struct):
    remote_id: str


class _Routes(msgspec.Struct):
    routes: list[_Route]


def _nats_linked(ports: Iterable[int]) -> Fact:
    async def knows_all(port: int) -> bool:
        answer = await ask(port, "GET /routez HTTP/1.0\r\n\r\n")
        _, found, body = answer.partition("\r\n\r\n")
        if not found:
            return False
        routes = msgspec.json.decode(body, type=_Routes).routes
        return len({route.remote_id for route in routes}) == len(NAMES) - 1

    async def linked() -> bool:
        return all([await knows_all(port) for port in ports])

    return linked


# Redis

REDIS = """bind 127.0.0.1
port {port}
dir {folder}
save ""
appendonly no
client-output-buffer-limit pubsub 0 0 0
cluster-enabled yes
cluster-port {bus}
cluster-config-file nodes.conf
cluster-require-full-coverage no
cluster-node-timeout 5000
"""


def redis(directory: Path) -> list[Node]:
    """A cluster of which each node knows the others from the beginning; a has all the keys."""
    ports, buses = three_ports(2)
    ids = {name: secrets.token_hex(20) for name in NAMES}
    nodes = []
    for me, port in ports.items():
        folder = folder_of(directory, me)
        lines = [
            f"{ids[name]} {HERE}:{ports[name]}@{buses[name]} {'myself,' * (name == me)}master - 0 0"
            f" {number} connected{' 0-16383' * (name == 'a')}"
            for number, name in enumerate(NAMES, 1)
        ]
        lines.append(f"vars currentEpoch {len(NAMES)} lastVoteEpoch 0")
        (folder / "nodes.conf").write_text("\n".join(lines) + "\n")
        (folder / "redis.conf").write_text(REDIS.format(port=port, folder=folder, bus=buses[me]))
        node = Node(me, port, folder, [program("redis-server"), folder / "redis.conf"])
        node.linked = _redis_linked(ports.values())
        nodes.append(node)
    return nodes


def _redis_linked(ports: Iterable[int]) -> Fact:
    async def linked() -> bool:
        answers = [await ask(port, "CLUSTER NODES\r\nQUIT\r\n") for port in ports]
        return all(
            answer.count(" connected") == len(NAMES) and "fail" not in answer for answer in answers
        )

    return linked


# Wayfare


def wayfare(directory: Path) -> list[Node]:
    """A line of brokers: b and c call the one before. They keep their memory on disk."""
    ports, status = three_ports(2)
    nodes = []
    for name, port in ports.items():
        folder = folder_of(directory, name)
        calls = "".join(
            f'{one} = "{HERE}:{ports[one]}"\n' if one < name else f'{one} = ""\n'
            for one in LINE[name]
        )
        (folder / "broker.toml").write_text(
            f'name = "{name}"\nlisten = "{HERE}:{port}"\n[neighbours]\n{calls}'
            f'[status]\nport = {status[name]}\n[durability]\nmode = "disk"\ndirectory = "{folder}/memory"\n'
        )
        command = [
            sys.executable,
            "-m",
            "wayfare",
            "broker",
            "--config",
            str(folder / "broker.toml"),
        ]
        node = Node(name, port, folder, command)
        node.linked = _wayfare_linked(status.values())
        nodes.append(node)
    return nodes


def _wayfare_linked(ports: Iterable[int]) -> Fact:
    async def linked() -> bool:
        answers = [
            await ask(port, f"GET /health HTTP/1.1\r\nHost: {HERE}\r\n\r\n") for port in ports
        ]
        return all(answer.startswith("HTTP/1.1 200") for answer in answers)

    return linked


SERVERS = {
    "mqtt": Server("mqtt", "mosquitto", ["mosquitto"], mqtt),
    "nats": Server("nats", "nats-server", ["nats-server"], nats),
    "redis": Server("redis", "redis-server", ["redis-server"], redis),
    "amqp": Server("amqp", "rabbitmq-server", ["epmd", str(rabbitmq.PROGRAM)], rabbitmq.nodes),
    "stomp": Server("stomp", "activemq", ["java", str(activemq.JARS)], activemq.nodes),
    "wayfare": Server("wayfare", "", [], wayfare),
}
