"""Three nodes of ActiveMQ on loopback: a network of brokers in a line, for clients with STOMP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wayfare.service.nodes import HERE, LINE, Fact, Node, folder_of, program, three_ports

JARS = Path("/usr/share/activemq/lib")

CONFIG = """<beans xmlns="http://www.springframework.org/schema/beans"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="
      http://www.springframework.org/schema/beans http://www.springframework.org/schema/beans/spring-beans.xsd
      http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="{name}" dataDirectory="{folder}/data"
      useJmx="false" advisorySupport="true" schedulePeriodForDestinationPurge="0">
    <networkConnectors>{connectors}</networkConnectors>
    <persistenceAdapter><kahaDB directory="{folder}/data/kahadb" enableJournalDiskSyncs="false"/></persistenceAdapter>
    <transportConnectors>
      <transportConnector name="openwire" uri="tcp://127.0.0.1:{openwire}"/>
      <transportConnector name="stomp" uri="stomp://127.0.0.1:{port}"/>
    </transportConnectors>
  </broker>
</beans>
"""
CONNECTOR = """
      <networkConnector name="to-{name}" duplex="true" networkTTL="4" conduitSubscriptions="true"
        uri="static:(tcp://127.0.0.1:{port})?useExponentialBackOff=false&amp;initialReconnectDelay=300"/>"""
LOG4J = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%p %m%n
"""
# One thread less for the collector, and no time for code that is run a few times.
JAVA = ["-Xmx384M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
OPENED = [f"--add-opens=java.base/java.{one}=ALL-UNNAMED" for one in ("lang", "util")]


def nodes(directory: Path) -> list[Node]:
    """A network of brokers in a line: b calls both others, and each call is for both directions."""
    ports, openwire = three_ports(2)
    jars = sorted([*JARS.glob("*.jar"), *(JARS / "optional").glob("*.jar")])
    line = {}
    for name, port in ports.items():
        folder = folder_of(directory, name)
        others = LINE[name] if name == "b" else ""
        connectors = "".join(CONNECTOR.format(name=one, port=openwire[one]) for one in others)
        (folder / "activemq.xml").write_text(
            CONFIG.format(
                name=name, folder=folder, port=port, openwire=openwire[name], connectors=connectors
            )
        )
        (folder / "log4j.properties").write_text(LOG4J)
        places = [f"-Dactivemq.{one}={folder}" for one in ("home", "base", "conf", "data")]
        classes = ":".join(map(str, [folder, *jars]))
        main = ["org.apache.activemq.console.Main", "start", f"xbean:file:{folder}/activemq.xml"]
        command = [program("java"), *JAVA, *places, *OPENED, "-cp", classes, *main]
        line[name] = Node(name, port, folder, command)
    for name, node in line.items():
        node.linked = _bridged(
            line["b"], [openwire[one] for one in ("ac" if name == "b" else name)]
        )
    return list(line.values())


def _bridged(caller: Node, ports: Sequence[int]) -> Fact:
    async def linked() -> bool:
        lines = [line for line in caller.said().splitlines() if "has been established" in line]
        return all(any(f"{HERE}:{port}" in line for line in lines) for port in ports)

    return linked
