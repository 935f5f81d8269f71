"""Connections of mobility proxies: whom they may call, and what others make them keep."""

import asyncio
from typing import Any
from unittest import mock

import pytest

from test_service_live import run
from wayfare.errors import UsageError
from wayfare.service.proxy_addresses import only


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",  # where clouds tell their machines secrets
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::169.254.169.254]",
        "[64:ff9b:1::169.254.169.254]",
        "[2002:a9fe:a9fe::1]",
        "[2001:0:a9fe:a9fe::1]",
        "[::169.254.169.254]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[fe80::1%lo]",
        "0.0.0.0",
        "[::]",
        "[::ffff:0.0.0.0]",
        "[::ffff:8.8.8.8]",
        "192.0.0.192",
        "100.100.100.200",
        "255.255.255.255",
        "224.0.0.1",
        "[ff02::1]",
    ],
)
def test_no_client_gets_at_what_only_the_machine_of_its_proxy_reaches(host: str) -> None:
    async def story() -> None:
        with pytest.raises(UsageError, match="not in a private network"):
            await only([])(f"{host}:80")

    run(story())


@pytest.mark.parametrize(
    ("host", "ip"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("10.1.2.3", "10.1.2.3"),
        ("172.31.0.1", "172.31.0.1"),
        ("192.168.0.1", "192.168.0.1"),
        ("[::ffff:10.1.2.3]", "10.1.2.3"),
        ("[::1]", "::1"),
        ("[fd12::1]", "fd12::1"),
    ],
)
def test_an_address_of_a_private_network_is_called_without_looking_it_up(
    host: str, ip: str
) -> None:
    """Lookups wait for threads, and all of these may be waiting for servers that do not answer."""

    async def looked_up(*_: Any, **__: Any) -> None:
        raise AssertionError("it was looked up")

    async def story() -> None:
        with mock.patch.object(asyncio.get_running_loop(), "getaddrinfo", looked_up):
            assert await only([])(f"{host}:80") == (ip, 80)

    run(story())
