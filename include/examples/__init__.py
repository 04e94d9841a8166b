"""Example tables, and the processes that feed them. `make remove-examples` removes both."""

PRODUCER, BANK = "event-producer", "bank"
# The module of each process that `make up` starts.
FEEDS = {PRODUCER: "include.examples.producer", BANK: "include.examples.transactions"}

DATABASE, CONNECTOR, SHOP = "shop-database", "shop-connector", "shop"
# The same for tables below these topics. `make up` goes on without them, and says so.
SHOP_FEEDS = {
    DATABASE: "include.examples.database",
    CONNECTOR: "include.examples.capture",
    SHOP: "include.examples.purchases",
}
# By table of its database.
SHOP_TOPICS = {"purchases": "shop.purchases", "customers": "shop.customers"}
# What they write below the home directory.
SHOP_FOLDERS = ("shop", "connect/shop")
