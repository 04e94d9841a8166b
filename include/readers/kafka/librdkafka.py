"""Translates the properties of Java clients into settings of librdkafka, which names some of them differently.

Spark reads topics by Java's client. Everything that Sluice asks of a broker without a JVM goes through librdkafka.
"""

import re
from collections.abc import Mapping

# What a user name and password, or a certificate, prove; other mechanisms need code that librdkafka does not have.
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORD_MECHANISMS, "OAUTHBEARER")
SAME = ("security.protocol", "sasl.mechanism", "client.dns.lookup", "sasl.oauthbearer.token.endpoint.url")
# By store: its PEM text in the file, and librdkafka's names for that text and for a PEM file.
TRUSTSTORE = "ssl.truststore"
KEYSTORE = "ssl.keystore"
JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;]+)""")
OAUTH_OPTIONS = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}


class NotTranslatable(ValueError):
    """librdkafka has nothing like a property. The message names it and the remedy, and never contains a secret."""


def settings_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings by which librdkafka reaches the same brokers with the same rights.

    Properties that say how a client behaves, not how it reaches a broker, are left out. Raises NotTranslatable.
    """
    settings = {name: properties[name] for name in SAME if name in properties}
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol.startswith("SASL"):
        settings |= _sasl(properties)
    if protocol.endswith("SSL"):
        settings |= _trust(properties) | _own_certificate(properties)
    if "ssl.endpoint.identification.algorithm" in properties:
        # Java switches the check of the host name off by an empty value.
        value = properties["ssl.endpoint.identification.algorithm"]
        settings["ssl.endpoint.identification.algorithm"] = value.lower() or "none"
    return settings


def _sasl(properties: Mapping[str, str]) -> dict[str, str]:
    mechanism = properties.get("sasl.mechanism", "GSSAPI")
    if mechanism not in MECHANISMS:
        raise NotTranslatable(
            f"sasl.mechanism is {mechanism}, which the client of lag, offsets and consumer groups (librdkafka) has "
            f"not: set it to one of {', '.join(MECHANISMS)}"
        )
    options = _jaas_options(properties.get("sasl.jaas.config", ""))
    if mechanism not in PASSWORD_MECHANISMS:
        given = {setting: options[name] for name, setting in OAUTH_OPTIONS.items() if name in options}
        return {"sasl.oauthbearer.method": "oidc", **given}
    if missing := [name for name in ("username", "password") if not options.get(name)]:
        raise NotTranslatable(
            f'sasl.jaas.config has no {missing[0]}: write {missing[0]}="..." behind the login module, as Kafka\'s '
            f"documentation of {mechanism} shows"
        )
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _jaas_options(jaas: str) -> dict[str, str]:
    return {
        name: re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value
        for name, value in JAAS_OPTION.findall(jaas)
    }


def _trust(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns whom the client trusts: without a truststore, whom the system trusts."""
    if certificates := properties.get("ssl.truststore.certificates"):
        return {"ssl.ca.pem": certificates}
    if location := properties.get("ssl.truststore.location"):
        _require(properties, TRUSTSTORE, ("PEM",))
        return {"ssl.ca.location": location}
    return {}


def _own_certificate(properties: Mapping[str, str]) -> dict[str, str]:
    password = properties.get("ssl.key.password") or ""
    settings = {"ssl.key.password": password} if password else {}
    if chain := properties.get("ssl.keystore.certificate.chain"):
        return {"ssl.certificate.pem": chain, "ssl.key.pem": properties.get("ssl.keystore.key", ""), **settings}
    location = properties.get("ssl.keystore.location")
    if not location:
        return {}
    if _require(properties, KEYSTORE, ("PEM", "PKCS12")) == "PKCS12":
        return {"ssl.keystore.location": location, "ssl.keystore.password": properties.get("ssl.keystore.password", "")}
    # The same file holds the private key and the certificates.
    return {"ssl.certificate.location": location, "ssl.key.location": location, **settings}


def _require(properties: Mapping[str, str], store: str, supported: tuple[str, ...]) -> str:
    kind = properties.get(f"{store}.type", "JKS").upper()
    if kind not in supported:
        raise NotTranslatable(
            f"{store}.type is {kind}, which the client of lag, offsets and consumer groups (librdkafka) cannot read: "
            f"convert the file to {' or '.join(supported)}, and name that"
        )
    return kind
