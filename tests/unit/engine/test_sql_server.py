"""The SQL server says that its port is taken before it starts Spark, whose own error is pages long."""

import os
import socket

import pytest

from include.engine import sql_server
from include.errors import SetupError


@pytest.mark.parametrize("setting", ["SLUICE_SQL_PORT", "SLUICE_CONNECT_PORT"])
def test_a_port_that_is_taken_is_named_with_its_owner_and_its_setting(own_settings, setting: str):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        own_settings(**{setting: port})
        with pytest.raises(SetupError) as refusal:
            sql_server.serve()
    assert str(refusal.value).startswith(f"port {port} of the SQL server is taken by process {os.getpid()} (")
    assert str(refusal.value).endswith(f"): stop that, or set {setting}")
