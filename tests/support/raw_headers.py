"""Kafka records with names of headers that the client for Python cannot send: any bytes, as from C, Go or Rust."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka

# Tags and constants of librdkafka's C interface.
PRODUCER, MS = 0, 30_000
END, TOPIC, PARTITION, VALUE, COPY, FLAGS, HEADERS = 0, 1, 3, 4, 2, 7, 10


def send(servers: str, topic: str, *records: Sequence[bytes]) -> None:
    """Sends a record to partition 0 for each of these sequences of names. Its value is its number; so are those of its
    headers.
    """
    [path] = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka*")
    library, reason = ctypes.CDLL(str(path)), ctypes.create_string_buffer(512)
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, function).restype = ctypes.c_void_p
    configuration = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(configuration, b"bootstrap.servers", servers.encode(), reason, len(reason))
    producer = ctypes.c_void_p(library.rd_kafka_new(PRODUCER, configuration, reason, len(reason)))
    assert producer, reason.value
    for number, names in enumerate(records):
        value = str(number).encode()
        headers = ctypes.c_void_p(library.rd_kafka_headers_new(ctypes.c_size_t(len(names))))
        size = ctypes.c_ssize_t(len(value))
        for name in names:
            library.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(len(name)), value, size)
        place = (TOPIC, ctypes.c_char_p(topic.encode()), PARTITION, ctypes.c_int32(0))
        content = (VALUE, ctypes.c_char_p(value), ctypes.c_size_t(len(value)), FLAGS, COPY, HEADERS, headers)
        assert library.rd_kafka_producev(producer, *_integers(place), *_integers(content), END) == 0
    assert library.rd_kafka_flush(producer, MS) == 0
    library.rd_kafka_destroy(producer)


def _integers(values: Sequence[object]) -> list[object]:
    return [ctypes.c_int(value) if isinstance(value, int) else value for value in values]
