"""Sockets that systemd gives: only those meant for this process, and only what clients can use."""

import os
import socket

import pytest

from manager import listening
from ullage_router import given as module
from ullage_router.given import address_of, given, opened
from ullage_router.worker import Held, Place
from ullage_shared.address import Address
from ullage_shared.config import ConfigError

PID = 4711
OURS = {"LISTEN_PID": str(PID)}


@pytest.fixture
def at(monkeypatch):
    """Have the descriptors begin with this one, as they do with 3."""
    return lambda sock: monkeypatch.setattr(module, "_FIRST", sock.fileno())


@pytest.mark.parametrize("environment", [{}, {"LISTEN_FDS": "1"}, {"LISTEN_PID": "1"}])
def test_what_was_given_to_another_process_is_not_taken(environment):
    assert given({"LISTEN_FDS": "1", **environment}, PID) == ()


def test_none_may_be_given():
    assert given(OURS | {"LISTEN_FDS": "0"}, PID) == ()


@pytest.mark.parametrize("number", ["", "-1", "many"])
def test_a_number_of_nonsense_is_named(number):
    with pytest.raises(ConfigError, match=f"LISTEN_FDS = '{number}': wanted a whole number"):
        given(OURS | {"LISTEN_FDS": number}, PID)


def test_a_listening_socket_is_taken_and_no_child_inherits_it(at):
    with listening() as sock:
        at(sock)
        sock.set_inheritable(True)
        (descriptor,) = given(OURS | {"LISTEN_FDS": "1"}, PID)
        assert not os.get_inheritable(descriptor)
        assert address_of((descriptor,)) == Address(*sock.getsockname())
        (again,) = opened((os.dup(descriptor),))
        assert again.getsockname() == sock.getsockname()
        again.close()


def _udp():
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _unix():
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("")
    sock.listen()
    return sock


@pytest.mark.parametrize("make", [_udp, _unix, socket.socket])
def test_what_no_client_can_connect_to_is_refused_by_name(make, at):
    with make() as sock:
        at(sock)
        with pytest.raises(ConfigError, match=f"descriptor {sock.fileno()}: wanted TCP sockets"):
            given(OURS | {"LISTEN_FDS": "1"}, PID)


def test_a_descriptor_that_is_closed_is_refused_by_name(at):
    with socket.socket() as sock:
        at(sock)
    with pytest.raises(ConfigError, match="wanted TCP sockets"):
        given(OURS | {"LISTEN_FDS": "1"}, PID)


@pytest.mark.parametrize("held", [Held(8080), Held(8080, (3,)), Held(8080, (3, 4))])
def test_a_worker_is_told_what_is_held_for_it(held, tmp_path):
    place = Place(2, held, tmp_path / "a:b.sock")
    assert Place.parse(str(place)) == place
