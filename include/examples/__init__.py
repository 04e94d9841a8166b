"""Example tables, and the processes that feed them. `make remove-examples` removes both."""

PRODUCER, BANK = "event-producer", "bank"
# The module of each process that `make up` starts.
FEEDS = {PRODUCER: "include.examples.producer", BANK: "include.examples.transactions"}
