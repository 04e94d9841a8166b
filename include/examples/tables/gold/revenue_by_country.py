"""What the customers of each country have bought: a view, recomputed each night."""

from include.spec import Delta, View

TABLE = View(
    name="gold.revenue_by_country",
    comment="What the customers of each country have bought",
    source={"purchases": Delta("silver.purchases"), "customers": Delta("silver.customers")},
    schema="country STRING COMMENT 'NULL: of those who left', purchases BIGINT, amount DECIMAL(20,2)",
    transform="""
        SELECT country, count(*) AS purchases, sum(amount) AS amount
        FROM purchases LEFT JOIN customers USING (user_id) GROUP BY country
    """,
    schedule="45 3 * * *",
)
