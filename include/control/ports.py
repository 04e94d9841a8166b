"""TCP ports of this machine: whether a server may take one, and who has it."""

import random
import socket

import psutil

from include.errors import SetupError


def require_free(host: str, port: int, user: str, remedy: str) -> None:
    """Raises SetupError if the port is taken. user: what needs it. remedy: the setting that names another one."""
    if not is_free(host, port):
        raise SetupError(f"port {port} of {user} is taken by {_owner(port)}: stop that, or set {remedy}")


def is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        # A connection in TIME_WAIT does not occupy the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str) -> int:
    """A free port outside the range of outgoing connections, which could take it before its server does."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        if is_free(host, port):
            return port


def _owner(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return "another user's process"
