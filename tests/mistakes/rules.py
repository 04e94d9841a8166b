"""Wrong expectations on rows."""

from dataclasses import replace

from include.rules import not_null, references
from include.spec import Append, Expect, Watermark
from tests.mistakes.case import BY_MINUTE, EVENTS, KNOWN, READINGS, case

CASES = (
    case(
        "reference_to_itself",
        replace(READINGS, expect=(references("offset", "silver.readings", "offset"),)),
        "silver/readings.py: reads itself in a cycle (silver.readings <- silver.readings): cut one of these",
    ),
    case(
        "reference_to_unknown_key",
        replace(READINGS, expect=(references("offset", "bronze.events", "ofset"),)),
        "silver/readings.py: rule 'offset in bronze.events' looks for 'ofset', no column of bronze.events: did "
        "you mean 'offset'?",
    ),
    case(
        "reference_to_unknown_table",
        replace(READINGS, expect=(references("offset", "bronze.event", "offset"),)),
        "silver/readings.py: rule 'offset in bronze.event' looks into 'bronze.event', which no file declares: "
        "did you mean 'bronze.events'?",
    ),
    case(
        "rule_named_like_late_rows",
        replace(
            READINGS,
            write=Append(unique=("key",), watermark=Watermark("timestamp", minutes=30)),
            expect=(Expect("later than 30 minutes", "offset > 0"),),
        ),
        "silver/readings.py: a rule is called 'later than 30 minutes', as late rows are: give it another name",
    ),
    case(
        "rule_of_unknown_column",
        replace(READINGS, expect=(not_null("ofset"),)),
        "silver/readings.py: rule 'ofset not null' names 'ofset', no column of its schema: did you mean 'offset'?",
    ),
    case(
        "rule_without_a_name",
        replace(READINGS, expect=(Expect("", "key IS NOT NULL"),)),
        "silver/readings.py: a rule has no name, and status and quarantine call it by that: give it one",
    ),
    case(
        "rules_on_an_aggregate",
        replace(BY_MINUTE, expect=(KNOWN,)),
        "gold/by_minute.py: expectations stand on a recomputed aggregate: put them on the table it reads",
    ),
    case(
        "rules_on_bronze",
        replace(EVENTS, expect=(KNOWN,)),
        "bronze/events.py: expect would drop messages, and bronze keeps each as it arrived: put it on the silver table",
    ),
    case(
        "two_rules_with_one_name",
        replace(READINGS, expect=(KNOWN, Expect("known", "offset >= 0"))),
        "silver/readings.py: two rules are called 'known': give each a name of its own",
    ),
    case(
        "unknown_action",
        replace(READINGS, expect=(Expect("known", "key IS NOT NULL", otherwise="quarantined"),)),
        "silver/readings.py: rule 'known' says otherwise='quarantined': did you mean 'quarantine'?",
    ),
)
