"""Writes the properties files of Kafka clusters from Airflow connections, so that every process can read them.

The connection `kafka_<cluster>` has bootstrap servers in its host, a user and a password, and in its extra further
properties with the names of Java clients. Only the user of the platform may read the files.
"""

from collections.abc import Mapping

import javaproperties
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from include import logs, private_files
from include.catalog import Catalog
from include.kafka.cluster import connection_file
from include.settings import settings

LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def store(tables: Catalog) -> None:
    """Store the connection of each cluster that a table names, unless a variable names its file. Raises nothing: a flow
    whose cluster stays unknown names that itself.
    """
    clusters = {flow.source.cluster for flow in tables.flows.values() if flow.source.cluster}
    for name in sorted(clusters - settings().kafka_files.keys()):
        try:
            _write(name, properties_of(BaseHook.get_connection(f"kafka_{name}")))
        except AirflowNotFoundException:
            continue
        except Exception as error:
            # The file of an earlier minute stays in use.
            logs.warning(f"the Airflow connection kafka_{name} was not stored: {type(error).__name__}: {error}")


def properties_of(connection: Connection) -> dict[str, str]:
    """Returns the properties of a Java client. By default, a user and password go over TLS."""
    host = connection.host or ""
    properties = {"bootstrap.servers": f"{host}:{connection.port}" if connection.port else host} if host else {}
    if connection.login:
        properties |= {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    properties |= {name: str(value) for name, value in connection.extra_dejson.items()}
    module = LOGIN_MODULES.get(properties.get("sasl.mechanism", "").partition("-")[0])
    if connection.login and module:
        user, password = _quoted(connection.login), _quoted(connection.password or "")
        properties["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    return properties


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _write(name: str, properties: Mapping[str, str]) -> None:
    """Replaces the file atomically, if its content has changed."""
    file = connection_file(name)
    origin = f"Written by the supervisor from the Airflow connection kafka_{name}."
    text = javaproperties.dumps(properties, timestamp=False, comments=origin)
    if file.exists() and file.read_text() == text:
        return
    file.parent.mkdir(exist_ok=True)
    private_files.restrict(file.parent)
    new_file = file.with_suffix(".new")
    private_files.create(new_file)
    new_file.write_text(text)
    new_file.rename(file)
