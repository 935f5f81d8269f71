"""The mobility support service: roaming on top of other people's publish/subscribe systems."""

from wayfare.service.client import Client, Message, connect
from wayfare.service.effects import Gap
from wayfare.service.messages import Sync
from wayfare.service.system import Publication

__all__ = ["Client", "Gap", "Message", "Publication", "Sync", "connect"]
