"""The tables that Sluice shows itself with, and what feeds them. `make remove-examples` takes all of it out."""

PRODUCER, BANK = "event-producer", "bank"
# By process of `make up`, the module that it runs.
FEEDS = {PRODUCER: "include.examples.producer", BANK: "include.examples.transactions"}
