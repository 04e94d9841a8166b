"""Wrong declarations of personal columns."""

from dataclasses import replace

from tests.mistakes.case import EVENTS, LATEST, READINGS, case

CUSTOMERS = replace(READINGS, schema="id BIGINT, customer STRUCT<email: STRING, age: INT>, payload BINARY")

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
)
