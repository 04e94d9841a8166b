"""A Kafka broker that wants tokens, and the identity provider on this machine that hands them out."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from include.local.broker import HOST, Broker
from include.settings import settings
from tests.support.kafka import ivy

CLIENT, AUDIENCE = "sluice", "kafka"
SECONDS_OF_TOKEN = 60
# The broker verifies signatures by this library, which Kafka does not bring.
JOSE4J, JOSE4J_SHA256 = "0.9.6", "7314af50cde9c99e8eaf43eee617a23edcc6bb43036221064355094999d837ef"
IVY_MODULE = f"""<ivy-module version="2.0">
  <info organisation="sluice" module="jose4j"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.bitbucket.b_c" name="jose4j" rev="{JOSE4J}" conf="default" transitive="false"/>
  </dependencies>
</ivy-module>
"""
LISTENERS = """
listeners=PLAINTEXT://{host}:{port},OAUTH://{host}:{oauth},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port},OAUTH://{host}:{oauth}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,OAUTH:SASL_PLAINTEXT
listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oauth.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
listener.name.oauth.oauthbearer.sasl.server.callback.handler.class=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.oauth.sasl.oauthbearer.jwks.endpoint.url={jwks}
listener.name.oauth.sasl.oauthbearer.expected.audience={audience}
"""


class IdentityProvider(AbstractContextManager["IdentityProvider"]):
    """Its token and key endpoints. secret: of the client. given: tokens by client. port: where it listens."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(8)
        self.given: Counter[str] = Counter()
        self._key = rsa.generate_private_key(65537, 2048)
        self._server = ThreadingHTTPServer((HOST, 0), self._handler())
        self.url = f"http://{HOST}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def token(self) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "sub": CLIENT, "aud": AUDIENCE, "iat": now, "exp": now + SECONDS_OF_TOKEN}
        parts = [{"alg": "RS256", "typ": "JWT", "kid": "tests"}, {**claims, "scope": "read"}]
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_encoded(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        n, e = (_encoded(value.to_bytes((value.bit_length() + 7) // 8, "big")) for value in (numbers.n, numbers.e))
        return {"keys": [{"kty": "RSA", "kid": "tests", "use": "sig", "alg": "RS256", "n": n, "e": e}]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, provider.keys())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                login = base64.b64encode(f"{CLIENT}:{provider.secret}".encode()).decode()
                if self.headers["Authorization"] != f"Basic {login}":
                    return self._answer(401, {"error": "invalid_client"})
                provider.given[self.headers.get("User-Agent") or ""] += 1
                token = {"access_token": provider.token(), "token_type": "Bearer", "expires_in": SECONDS_OF_TOKEN}
                return self._answer(200, token)

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@dataclass(frozen=True)
class OAuthBroker(Broker):
    """Its listener PLAINTEXT, at `address`, is for tests that prepare something. oauth_port: where it wants tokens."""

    oauth_port: int = 0
    provider: IdentityProvider | None = None

    def prepare(self) -> None:
        super().prepare()
        assert self.provider
        values = {"host": HOST, "port": self.port, "oauth": self.oauth_port, "controller": self.controller_port}
        with (self.directory / "server.properties").open("a") as file:
            file.write(LISTENERS.format(**values, jwks=f"{self.provider.url}/keys", audience=AUDIENCE))

    def command(self) -> list[str]:
        java_, *options = super().command()
        assert self.provider
        class_path = options.index("-cp") + 1
        options[class_path] = f"{options[class_path]}:{_jose4j()}"
        return [java_, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.provider.url}/keys", *options]

    def properties(self, secret: str) -> str:
        """The properties of a client with this secret, as its operators would write them."""
        assert self.provider
        oauth = "org.apache.kafka.common.security.oauthbearer"
        login = f'clientId="{CLIENT}" clientSecret="{secret}" scope="read"'
        return (
            f"bootstrap.servers={HOST}:{self.oauth_port}\n"
            "security.protocol=SASL_PLAINTEXT\n"
            "sasl.mechanism=OAUTHBEARER\n"
            f"sasl.login.callback.handler.class={oauth}.OAuthBearerLoginCallbackHandler\n"
            f"sasl.oauthbearer.token.endpoint.url={self.provider.url}/token\n"
            f"sasl.jaas.config={oauth}.OAuthBearerLoginModule required {login};\n"
        )


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _jose4j() -> Path:
    """Fetches the library beside the other jars, once."""
    target = settings().jars / f"jose4j-{JOSE4J}.jar"
    if target.exists():
        return target
    work = ivy.fetch("jose4j", IVY_MODULE)
    jar = work / "jose4j.jar"
    assert hashlib.sha256(jar.read_bytes()).hexdigest() == JOSE4J_SHA256
    return jar.rename(target)
