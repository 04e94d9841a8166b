"""Wrong sources: topics, other tables and branches."""

from dataclasses import replace

from include.spec import Avro, Delta, Files, Kafka, Registry
from tests.mistakes.case import BILLS, EVENTS, READINGS, case

NO_PLACE = "and a table file is no place for credentials: put them into"
OF_KAFKA = (
    f"bronze/events.py: Kafka has a password or key, {NO_PLACE} the properties file or the Airflow connection of a "
    f"cluster, and write cluster='...'"
)
OF_FILES = f"bronze/bills.py: Files has a password or key, {NO_PLACE} the AWS_* variables of the environment"

CASES = (
    case(
        "transform_of_an_unknown_branch",
        replace(READINGS, source={"eu": Delta("bronze.events")}, transform={"ue": "SELECT * FROM source"}),
        "silver/readings.py: transform names 'ue', no branch of source: there are eu",
    ),
    case(
        "transforms_without_branches",
        replace(READINGS, transform={"eu": "SELECT * FROM source"}),
        "silver/readings.py: transform has names, and the table no branches: write one transform",
    ),
    case(
        "begins_twice",
        replace(READINGS, source=Delta("bronze.events", since_version=3, since="2026-03-01T00:00:00Z")),
        "silver/readings.py: since_version and since both say where it begins: keep one",
    ),
    case(
        "branch_is_no_word",
        replace(EVENTS, source={"EU west": Kafka("events")}),
        "bronze/events.py: branch 'EU west' is no plain word: use small letters, digits and _",
    ),
    case(
        "branch_of_an_unknown_table",
        replace(EVENTS, source={"eu": Kafka("events"), "us": Delta("bronze.event")}),
        "bronze/events.py: source is 'bronze.event', which no file declares: did you mean 'bronze.events'?",
    ),
    case(
        "branches_read_one_topic",
        replace(EVENTS, source={"eu": Kafka("events"), "us": Kafka("events")}),
        "bronze/events.py: flows 'bronze.events.eu' and 'bronze.events.us' both read topic 'events', so its rows "
        "would come twice: take one of them out",
    ),
    case(
        "cluster_is_no_word",
        replace(EVENTS, source=Kafka("events", cluster="EU-west")),
        "bronze/events.py: cluster 'EU-west' is no plain word: use small letters, digits and _",
    ),
    case(
        "branches_read_one_name_of_two_clusters",
        replace(EVENTS, source={"eu": Kafka("events", cluster="eu"), "us": Kafka("events", cluster="us")}),
        "bronze/events.py: topic 'events' of cluster 'eu' and topic 'events' of cluster 'us' may share a topic name, "
        "and a row does not name its cluster: give each cluster a table of its own, and let a silver table read both",
    ),
    case(
        "branches_read_a_pattern_of_two_clusters",
        replace(EVENTS, source={"eu": Kafka("events"), "us": Kafka(pattern="e.*", cluster="us")}),
        "bronze/events.py: topic 'events' and topics like 'e.*' of cluster 'us' may share a topic name, and a row does "
        "not name its cluster: give each cluster a table of its own, and let a silver table read both",
    ),
    case("login_of_a_broker", replace(EVENTS, source=Kafka("events", cluster="ada:hush@kafka:9093")), OF_KAFKA),
    case(
        "password_of_a_broker",
        replace(EVENTS, source={"eu": Kafka("events", cluster={"sasl.jaas.config": 'required password="hush";'})}),
        OF_KAFKA,
    ),
    case("keys_of_a_bucket", replace(BILLS, source=Files("s3a://AKIA:hu/sh@bucket/bills", format="csv")), OF_FILES),
    case("token_of_a_bucket", replace(BILLS, source=Files("s3a://b/c?X-Amz-Security-Token=h", format="csv")), OF_FILES),
    case(
        "login_of_a_registry",
        replace(READINGS, parse=Avro("key", into=("a",), registry=Registry(record="http://ada:hush@registry"))),
        f"silver/readings.py: Registry has a password or key, {NO_PLACE} the file that "
        f"SLUICE_SCHEMA_REGISTRY_CREDENTIALS names",
    ),
    case(
        "keys_among_properties",
        replace(READINGS, properties={"fs.s3a.secret.key": "hush"}),
        "silver/readings.py: properties has 'fs.s3a.secret.key', and a table file is no place for credentials: put "
        "them where docs/operate/credentials.md says",
    ),
    case(
        "gold_reads_kafka",
        replace(EVENTS, name="gold.readings"),
        "gold/readings.py: only bronze reads Kafka, so that what arrived is kept as it arrived: read a bronze table",
    ),
    case(
        "no_branch",
        replace(EVENTS, source={}),
        "bronze/events.py: source has no branch: name at least one, or give it one source",
    ),
    case(
        "no_topic",
        replace(EVENTS, source=Kafka()),
        "bronze/events.py: Kafka has neither topics nor a pattern: give it one of them",
    ),
    case(
        "pattern_does_not_compile",
        replace(EVENTS, source=Kafka(pattern="events-[a-z")),
        "bronze/events.py: pattern is 'events-[a-z', which is no regular expression (unterminated character set "
        "at position 7): fix it",
    ),
    case(
        "pattern_of_java_alone",
        replace(EVENTS, source=Kafka(pattern="events-[a-z&&[^q]]")),
        "bronze/events.py: pattern is 'events-[a-z&&[^q]]', in which Java and Python read && in two ways: write "
        "it without",
    ),
    case(
        "reads_itself",
        replace(READINGS, source=Delta("silver.readings")),
        "silver/readings.py: reads itself in a cycle (silver.readings <- silver.readings): cut one of these",
    ),
    case(
        "schema_ids_without_a_column",
        replace(EVENTS, source=Kafka("events", schema_ids=True)),
        "bronze/events.py: schema_ids without a column for them: write schema=KAFKA_SCHEMA_WITH_IDS",
    ),
    case(
        "since_without_a_zone",
        replace(READINGS, source=Delta("bronze.events", since="2026-03-01")),
        "silver/readings.py: since is '2026-03-01', no moment with its time zone: write one such as "
        "'2026-03-01T00:00:00Z'",
    ),
    case(
        "topic_named_twice",
        replace(EVENTS, source=Kafka(("events", "events"))),
        "bronze/events.py: topic 'events' is named twice: take one of them out",
    ),
    case(
        "topics_and_pattern",
        replace(EVENTS, source=Kafka("events", pattern="events-.*")),
        "bronze/events.py: Kafka has both topics and a pattern: give it one of them",
    ),
    case(
        "topics_in_one_string",
        replace(EVENTS, source=Kafka("events,clicks")),
        "bronze/events.py: topic 'events,clicks' has a name that Kafka does not allow: use letters, digits, . _ and -",
    ),
    case(
        "unknown_source_like_nothing",
        replace(READINGS, source=Delta("zzz")),
        "silver/readings.py: source is 'zzz', which no file declares: there are bronze.events, silver.readings",
    ),
)
