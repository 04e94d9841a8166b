"""Wrong declarations of personal columns."""

from dataclasses import replace

from include.spec import Via
from tests.mistakes.case import EVENTS, LATEST, READINGS, case

CUSTOMERS = replace(READINGS, schema="id BIGINT, customer STRUCT<email: STRING, age: INT>, payload BINARY")
PEOPLE = replace(READINGS, name="gold.people", schema="id BIGINT, email STRING, since TIMESTAMP")

CASES = (
    case(
        "personal_is_no_column",
        replace(CUSTOMERS, personal=("custommer",)),
        "silver/readings.py: personal names 'custommer', no column of its schema: did you mean 'customer'?",
    ),
    case(
        "personal_is_no_field",
        replace(CUSTOMERS, personal=("customer.mail",)),
        "silver/readings.py: personal names 'customer.mail', no field of 'customer': did you mean 'email'?",
    ),
    case(
        "personal_is_a_field_of_bytes",
        replace(CUSTOMERS, personal=("payload.email",)),
        "silver/readings.py: personal names 'payload.email', and 'payload' is BINARY, which has no fields: write "
        "'payload'",
    ),
    case(
        "personal_is_no_tuple",
        replace(CUSTOMERS, personal="customer"),
        "silver/readings.py: personal is 'customer' and no tuple: write personal=(...,) with the comma",
    ),
    case(
        "personal_is_named_twice",
        replace(CUSTOMERS, personal=("customer", "customer")),
        "silver/readings.py: personal names 'customer' twice: take one out",
    ),
    case(
        "personal_is_an_offset",
        replace(EVENTS, personal=("offset",)),
        "bronze/events.py: personal names 'offset', by which people find a row again, and which is always shown: take "
        "it out",
    ),
    case(
        "personal_and_not",
        replace(CUSTOMERS, personal=("customer.email",), not_personal=("customer.email",)),
        "silver/readings.py: personal and not_personal both name 'customer.email': take it out of one",
    ),
    case(
        "pseudonyms_in_bronze",
        replace(EVENTS, pseudonymise=("key",)),
        "bronze/events.py: pseudonymise is set, and bronze keeps each record as it arrived: let a table that appends "
        "or upserts rows do it, and read that",
    ),
    case(
        "pseudonyms_in_a_view",
        replace(LATEST, schema="email STRING", pseudonymise=("email",)),
        "gold/latest.py: pseudonymise is set, and a view is computed from what is stored: let a table that appends or "
        "upserts rows do it, and read that",
    ),
    case(
        "pseudonyms_of_numbers",
        replace(CUSTOMERS, pseudonymise=("id",)),
        "silver/readings.py: pseudonymise names 'id', which is BIGINT: name a STRING column",
    ),
    case(
        "pseudonyms_of_a_field",
        replace(CUSTOMERS, pseudonymise=("customer.email",)),
        "silver/readings.py: pseudonymise names 'customer.email', which is a field: name a STRING column",
    ),
    case(
        "subject_joins_no_table",
        replace(CUSTOMERS, subject=Via("bronze.event", on="id")),
        "silver/readings.py: subject joins 'bronze.event', which no file declares: did you mean 'bronze.events'?",
    ),
    case(
        "subject_joins_a_view",
        (replace(CUSTOMERS, subject=Via("gold.latest", on="id")), replace(LATEST, schema="id BIGINT")),
        "silver/readings.py: subject joins 'gold.latest', which is computed from what is stored: join a table that "
        "stores rows",
    ),
    case(
        "subject_joins_a_table_without_a_subject",
        (replace(CUSTOMERS, subject=Via("gold.people", on="id")), PEOPLE),
        "silver/readings.py: subject joins 'gold.people', which has no subject: declare there whose a row is",
    ),
    case(
        "subject_joins_itself",
        replace(CUSTOMERS, subject=Via("silver.readings", on="id")),
        "silver/readings.py: subject joins 'silver.readings', whose own subject leads back to it: name a column",
    ),
    case(
        "subject_joins_on_no_column",
        (replace(CUSTOMERS, subject=Via("gold.people", on="idd")), replace(PEOPLE, subject="email")),
        "silver/readings.py: subject joins on 'idd', no column of 'silver.readings': did you mean 'id'?",
    ),
    case(
        "subject_joins_on_no_column_of_the_other_table",
        (replace(CUSTOMERS, subject=Via("gold.people", on={"id": "ids"})), replace(PEOPLE, subject="email")),
        "silver/readings.py: subject joins on 'ids', no column of 'gold.people': did you mean 'id'?",
    ),
    case(
        "subject_joins_on_a_time",
        (replace(CUSTOMERS, subject=Via("gold.people", on={"id": "since"})), replace(PEOPLE, subject="email")),
        "silver/readings.py: subject joins on 'since', which is TIMESTAMP: join on a STRING or a whole number",
    ),
    case(
        "subject_joins_on_two_columns",
        (
            replace(CUSTOMERS, subject=Via("gold.people", on={"id": "id", "payload": "email"})),
            replace(PEOPLE, subject="email"),
        ),
        "silver/readings.py: subject joins 'gold.people' on 2 columns: name one",
    ),
)
