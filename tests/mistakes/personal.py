"""Wrong declarations of personal columns."""

from dataclasses import replace

from tests.mistakes.case import EVENTS, READINGS, case

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
)
