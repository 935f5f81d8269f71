"""Wayfare: publish/subscribe for clients that move."""

from wayfare.core.conditions import Condition, Constant, attr, near
from wayfare.core.filters import Filter
from wayfare.core.markers import my, myloc
from wayfare.errors import (
    CannotConnect,
    Closed,
    FilterError,
    FilterNeverMatches,
    FilterSyntaxError,
    InvalidNotification,
    NoReply,
    NoResponders,
    NotAdvertised,
    NotConfirmed,
    Refused,
    WayfareError,
)
from wayfare.net.client import Client, connect
from wayfare.net.connectivity import Change
from wayfare.net.offer import Offer
from wayfare.net.subscription import Notification, Subscription
from wayfare.net.wills import Will

__all__ = [
    "CannotConnect",
    "Change",
    "Client",
    "Closed",
    "Condition",
    "Constant",
    "Filter",
    "FilterError",
    "FilterNeverMatches",
    "FilterSyntaxError",
    "InvalidNotification",
    "NoReply",
    "NoResponders",
    "NotAdvertised",
    "NotConfirmed",
    "Notification",
    "Offer",
    "Refused",
    "Subscription",
    "WayfareError",
    "Will",
    "attr",
    "connect",
    "my",
    "myloc",
    "near",
]
