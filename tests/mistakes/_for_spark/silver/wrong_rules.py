"""Each rule is judged."""

from include.spec import Delta, Expect, Table

TABLE = Table(
    name="silver.wrong_rules",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    expect=(
        Expect("misspelt", "ofset > 0"),
        Expect("right", "offset >= 0"),
        Expect("unfinished", "offset >"),
        Expect("unknown function", "lenght(key) > 0"),
        Expect("no condition", "offset + 1"),
        Expect("types", "size(offset) > 0"),
    ),
)
