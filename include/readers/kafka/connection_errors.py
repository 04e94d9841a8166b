"""Finds out why the connections of a client fail, whose requests only time out."""

import re

from confluent_kafka import KafkaError

from include.readers.kafka.cluster import AccessRefused, Cluster

REFUSALS = (KafkaError._AUTHENTICATION, KafkaError._SSL)
# With TLS 1.3, a broker refuses a client's certificate after the handshake, by closing the connection.
ALERT = "tls alert"
# An identity provider that answers sends JSON. Without an answer it is away, which passes.
NO_TOKEN, ANSWER = "Failed to acquire SASL OAUTHBEARER token", "{"
# The address in front of librdkafka's reasons, and the duration behind them.
ADDRESS, DURATION = re.compile(r"^\w+://\S+: "), re.compile(r" \(after \d+ms .*\)$")


class ConnectionErrors:
    """The `error_cb` of one client. reason: the newest error, in words; empty before the first."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.reason = ""
        self.refusal: AccessRefused | None = None

    def __call__(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return
        self.reason = DURATION.sub("", ADDRESS.sub("", error.str()))
        is_away = NO_TOKEN in self.reason and ANSWER not in self.reason
        is_refused = not is_away and (error.code() in REFUSALS or ALERT in self.reason)
        self.refusal = self._cluster.refusal(self.reason) if is_refused else None
