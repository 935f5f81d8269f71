"""Three nodes of RabbitMQ on loopback: exchanges that are federated in a line.

The exchange amq.topic, and all that are called wayfare.*, in both directions: a node tells its
neighbours the bindings it has, and they send what fits. Everything is in a file of definitions that
a node reads when it starts: each call of rabbitmqctl would take seconds.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from wayfare.service.nodes import HERE, LINE, NAMES, Node, all_say, folder_of, program, three_ports

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # that of /usr/sbin is for root

DEFINITIONS = {
    "vhosts": [{"name": "/"}],
    "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "policies": [
        {
            "vhost": "/",
            "name": "overlay",
            "pattern": r"^(amq\.topic|wayfare.*)$",
            "apply-to": "exchanges",
            "definition": {"federation-upstream-set": "all"},
        }
    ],
}
CONFIG = """listeners.tcp.1 = 127.0.0.1:{port}
load_definitions = {folder}/definitions.json
log.console = true
log.console.level = info
log.console.use_colors = off
log.file = false
"""


def nodes(directory: Path) -> list[Node]:
    """A line of federated exchanges, in both directions. Their names are kept by an epmd of their own."""
    ports, distribution, epmd_ports = three_ports(3)
    names = epmd_ports["a"]
    cookie = secrets.token_hex(16)
    command = [program("epmd"), "-address", HERE, "-port", str(names)]
    epmd = Node("epmd", names, folder_of(directory, "epmd"), command)
    epmd.first = True
    line = {}
    for name, port in ports.items():
        folder = folder_of(directory, name)
        upstreams = [
            {
                "vhost": "/",
                "component": "federation-upstream",
                "name": one,
                "value": {
                    "uri": f"amqp://{HERE}:{ports[one]}",
                    "max-hops": len(NAMES) - 1,
                    "ack-mode": "on-confirm",
                    "reconnect-delay": 1,
                },
            }
            for one in LINE[name]
        ]
        (folder / "definitions.json").write_bytes(
            msgspec.json.encode({**DEFINITIONS, "parameters": upstreams})
        )
        (folder / "rabbitmq.conf").write_text(CONFIG.format(port=port, folder=folder))
        (folder / "enabled_plugins").write_text("[rabbitmq_federation].\n")
        (folder / "empty").write_text("")
        (folder / ".erlang.cookie").write_text(cookie)
        (folder / ".erlang.cookie").chmod(0o400)
        environment = {
            "HOME": folder,
            "RABBITMQ_NODENAME": f"{name}@localhost",
            "RABBITMQ_CONFIG_FILE": folder / "rabbitmq",
            "RABBITMQ_CONF_ENV_FILE": folder / "empty",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "enabled_plugins",
            "RABBITMQ_MNESIA_BASE": folder / "mnesia",
            "RABBITMQ_LOG_BASE": folder / "log",
            "RABBITMQ_PID_FILE": folder / "pid",
            "RABBITMQ_DIST_PORT": distribution[name],
            "ERL_EPMD_PORT": names,
            "ERL_EPMD_ADDRESS": HERE,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none",
            "detached": "yes",  # so that the shell becomes the server, and no process in between
        }
        line[name] = Node(name, port, folder, [PROGRAM], environment)
    for name, node in line.items():
        links = [(one, other) for one in LINE for other in LINE[one] if name in (one, other)]
        node.linked = all_say(
            (
                line[one],
                f"connected to exchange 'amq.topic' in vhost '/' on amqp://{HERE}:{ports[other]}",
            )
            for one, other in links
        )
    return [epmd, *line.values()]
