"""Distinct subscriptions that all match the same publications, in the language of each system.

The experiment of the paper has them: s subscriptions, and every publication matches every one.
"""

from __future__ import annotations

from wayfare.errors import UsageError
from wayfare.service.system import System

NUMBER = "n"  # the property that publications need
# What stands for any word of a topic, by scheme; others have conditions.
WILD = {"mqtt": "+", "nats": "*", "amqp": "*", "redis": "*"}
CONDITIONS = {"stomp": "{topic} ? n > -{count}", "wayfare": "{exactly} and n > -{count}"}


def overlapping(system: System, word: str, count: int) -> tuple[str, list[str]]:
    """A topic, and subscriptions that match what is published there with a number from -1 on."""
    if system.scheme in CONDITIONS:
        topic = system.topic(word)
        form = CONDITIONS[system.scheme]
        exactly = system.subscription(topic)
        return topic, [
            form.format(topic=topic, exactly=exactly, count=n) for n in range(2, count + 2)
        ]
    if system.scheme not in WILD:
        raise UsageError(f"nobody knows subscriptions of {system.scheme} that match the same")
    wild = WILD[system.scheme]
    levels = max(1, (count - 1).bit_length())
    words = [f"l{level}" for level in range(levels)]
    texts = []
    for n in range(count):
        some = [wild if n >> level & 1 else words[level] for level in range(levels)]
        texts.append(system.topic(word, *some))
    return system.topic(word, *words), texts
