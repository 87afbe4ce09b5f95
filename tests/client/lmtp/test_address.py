"""Addresses of servers."""

import pytest

from client.errors import InvalidRequest
from client.lmtp.address import Address, read_address


@pytest.mark.parametrize(
    ("url", "websocket", "http"),
    [
        ("http://host:3000", "ws://host:3000/", "http://host:3000"),
        ("https://host", "wss://host/", "https://host"),
        ("ws://host:3000/lmtp", "ws://host:3000/lmtp", "http://host:3000"),
        ("wss://host/a/lmtp/", "wss://host/a/lmtp/", "https://host/a"),
        ("HTTP://host/a/", "ws://host/a/", "http://host/a"),
        ("localhost:3000", "ws://localhost:3000/", "http://localhost:3000"),
        ("[::1]:3000", "ws://[::1]:3000/", "http://[::1]:3000"),
        ("host", "ws://host/", "http://host"),
        ("http://host/?team=a", "ws://host/?team=a", "http://host"),
    ],
)
def test_every_form_leads_to_both_urls(url: str, websocket: str, http: str) -> None:
    assert read_address(url) == Address(websocket, http, None)


@pytest.mark.parametrize(
    "url",
    [
        "http://host/?key=s%20t",
        "http://:s%20t@host/",
        "http://anybody:s%20t@host",
        "http://s%20t@host",
        "s%20t@host",
    ],
)
def test_a_key_in_the_url_is_taken_out_of_it(url: str) -> None:
    address = read_address(url)
    assert address == Address("ws://host/", "http://host", "s t")
    assert "s t" not in repr(address)


def test_a_key_that_is_given_goes_before_the_urls() -> None:
    assert read_address("http://host/?key=a", "b").key == "b"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://host", "the scheme is 'ftp'"),
        ("http://", "it has no host"),
        ("", "it has no host"),
        ("host:port", "Port could not be cast"),
        ("http://secret@[host", "IPv6"),
    ],
)
def test_what_is_no_address_is_refused_without_showing_a_key(url: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=r"url must be host:port or begin with") as caught:
        read_address(url)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.field == "url"


@pytest.mark.parametrize(
    ("url", "is_local"),
    [("localhost:1", True), ("127.0.0.2", True), ("http://[::1]", True), ("example.org", False)],
)
def test_this_machine_is_recognised(url: str, is_local: bool) -> None:
    assert read_address(url).is_local is is_local
