"""About thirty kinds of secrets, each with a value of its own, in variables, files and payloads of a platform."""

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path


def _token() -> str:
    # Letters and digits, which no format escapes.
    return f"planted{secrets.token_hex(8)}"


@dataclass
class Planted:
    """values: by kind, the secret. variables: of `make up`. files: by name, those that the variables name."""

    directory: Path
    webhook: str = "http://127.0.0.1:9"
    values: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._in_variables()
        self._in_connections()
        self._in_files()

    @property
    def tokens(self) -> list[str]:
        return list(self.values.values())

    def token(self, kind: str) -> str:
        return self.values.setdefault(kind, _token())

    def _in_variables(self) -> None:
        names = {
            "password of PostgreSQL": "PGPASSWORD",
            "key of S3": "AWS_SECRET_ACCESS_KEY",
            "session of S3": "AWS_SESSION_TOKEN",
            "key of lineage": "OPENLINEAGE_API_KEY",
            "secret of spark.authenticate": "SPARK_AUTH_SECRET",
            "key of the master's filter": "SPARK_REST_KEY",
            "password of SMTP": "AIRFLOW__SMTP__SMTP_PASSWORD",
            "key of the sentry of Airflow": "AIRFLOW__SENTRY__SENTRY_DSN",
            "token of a program of ours": "OUR_API_TOKEN",
            "token of a package index": "PIP_INDEX_TOKEN",
        }
        self.variables |= {name: self.token(kind) for kind, name in names.items()}
        self.variables["AWS_ACCESS_KEY_ID"] = "anybody"
        self.variables["HTTPS_PROXY"] = f"http://user:{self.token('password of a proxy')}@127.0.0.1:9"
        self.variables["NO_PROXY"] = "*"

    def _in_connections(self) -> None:
        connections = {
            "sluice_alerts": {
                "conn_type": "http",
                "host": f"{self.webhook}/{self.token('token in the URL of a webhook')}",
                "password": self.token("token of a webhook"),
                "extra": {"X-Api-Key": self.token("header of a webhook")},
            },
            "kafka_partner": {
                "conn_type": "kafka",
                "login": "partner",
                "password": self.token("password of SASL"),
                "extra": {
                    "bootstrap.servers": "127.0.0.1:9",
                    "security.protocol": "SASL_SSL",
                    "sasl.mechanism": "PLAIN",
                    "ssl.key.password": self.token("password of a private key"),
                    "ssl.keystore.key": f"-----BEGIN PRIVATE KEY-----{self.token('private key')}",
                },
            },
            "warehouse": {
                "conn_type": "postgres",
                "host": "db.example",
                "login": "reader",
                "password": self.token("password of a database"),
                "extra": {"jwt": f"eyJhbGciOiJIUzI1NiJ9.{self.token('JWT')}", "sslkey": self.token("key of a client")},
            },
            "cloud": {
                "conn_type": "aws",
                "login": "AKIA",
                "password": self.token("key of AWS in a connection"),
                "extra": {"aws_session_token": self.token("session of AWS in a connection")},
            },
            "master_rest": {"conn_type": "http", "extra": {"key": self.token("key of a REST API")}},
        }
        for name, connection in connections.items():
            self.variables[f"AIRFLOW_CONN_{name.upper()}"] = json.dumps(connection)

    def _in_files(self) -> None:
        jaas = f'required username="u" password="{self.token("password in a JAAS configuration")}";'
        files = {
            "SLUICE_SCHEMA_REGISTRY_CREDENTIALS": f"registry:{self.token('password of a schema registry')}",
            "SLUICE_KAFKA_OTHER_CONFIG": "\n".join(
                [
                    "bootstrap.servers=127.0.0.1:9",
                    "security.protocol=SASL_SSL",
                    "sasl.mechanism=PLAIN",
                    f"sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule {jaas}",
                    f"ssl.truststore.password={self.token('password of a trust store')}",
                    f"sasl.oauthbearer.client.credentials.client.secret={self.token('secret of an OAuth client')}",
                ]
            ),
            "PGPASSFILE": f"127.0.0.1:5432:postgres:sluice:{self.token('password in a file of PostgreSQL')}",
        }
        for name, text in files.items():
            file = self.directory / name.lower()
            file.touch(mode=0o600)
            file.write_text(f"{text}\n")
            self.variables[name] = str(file)

    def message(self) -> bytes:
        """A message with what producers put into messages by mistake."""
        body = {
            "order_id": self.token("token in a payload"),
            "customer": f"postgres://shop:{self.token('URL with a password in a payload')}@db.example/shop",
            "amount": f"no number {self.token('value that cannot be typed')}",
        }
        return json.dumps(body).encode()
