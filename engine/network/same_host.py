"""Sockets between processes of one host: half of TCP's processor time for each byte.

A process that listens at a TCP address listens at an abstract Unix socket too, whose name is that
address. Abstract names belong to a network namespace, as addresses do: so a name that can be
reached is the name of the same listener, whatever files or containers the two processes share, and
it goes with its process. No name travels, no file goes stale. Every failure means TCP.

The kernel names the user at the other end: processes of other users get no further than here. The
handshake is that of TCP.

Linux only; elsewhere connections are TCP.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Final

#: Of Linux: process, user and group of the peer.
_CREDENTIALS: Final = struct.Struct("=iII")


def name_of(host: str, port: int) -> bytes | None:
    """Return the name beside a numeric TCP address; None: this system has no such names."""
    return f"\0headrace/{host}/{port}".encode() if sys.platform == "linux" else None


def listen_beside(host: str, port: int, backlog: int) -> socket.socket | None:
    """Listen beside a TCP address of this process; None: peers must use TCP."""
    name = name_of(host, port)
    if name is None:
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(name)
        listener.listen(backlog)
    except OSError:
        listener.close()
        return None
    return listener


def connect_beside(host: str, port: int) -> socket.socket | None:
    """Connect to the process of this host and user that listens at a TCP address.

    None: no process of this host does, or another user's. Never blocks.
    """
    name = name_of(host, port)
    if name is None:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(name)
        if is_same_user(sock):
            return sock
    except OSError:
        pass
    sock.close()
    return None


def is_local(sock: socket.socket) -> bool:
    """Whether the socket reaches a process of this host without TCP."""
    return sock.family == socket.AF_UNIX


def is_same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end runs as our user; of another host: not asked.

    Raises: OSError.
    """
    if not is_local(sock):
        return True
    peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(peer)
    return bool(user == os.geteuid())
