"""Compares the tables of the bank domain, from daily files to daily balances, with plain Python."""

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path

from include import catalog
from include.examples import transactions
from include.settings import settings
from include.spec import Delta, Files
from tests.support.flows import only_in_full_runs, rows_of

TABLES = catalog.load().tables
DAYS = {
    "2019-08-04": [("500.00", "Pay"), ("-21.60", "Uber Eats")],
    "2019-08-05": [("-55.29", "Uber Eats"), ("-10.00", "Movie Ticket")],
    "2019-08-06": [("-12.99", "Netflix"), ("-20.00", "ATM Withdrawal")],
}


def bank_tables(name: str) -> list:
    """The three tables of the domain, under the name of the test."""
    bronze, silver, gold = (
        TABLES[f"{table_name}"]
        for table_name in ("bronze.bank_transactions", "silver.transactions", "gold.daily_balance")
    )
    return [
        replace(bronze, name=f"bronze.{name}", source=Files(name, format="csv", pattern="*_transactions.csv")),
        replace(silver, name=f"silver.{name}", source=Delta(f"bronze.{name}")),
        replace(gold, name=f"gold.{name}", source=Delta(f"silver.{name}")),
    ]


def drop(name: str, day: str) -> None:
    rows = [(day, amount, text) for amount, text in DAYS[day]]
    transactions.write_file(Path(settings().folder(name)), f"{day}_transactions.csv", rows)


def balances(name: str) -> dict:
    return {str(row["day"]): str(row["balance"]) for row in rows_of(f"gold.{name}")}


def test_the_balance_is_right_whatever_the_order_in_which_the_days_arrive(name, run_once):
    drop(name, "2019-08-06")
    run_once(*bank_tables(name))
    assert balances(name) == {"2019-08-06": "-32.99"}
    drop(name, "2019-08-04")
    run_once(*bank_tables(name))
    drop(name, "2019-08-05")
    run_once(*bank_tables(name))
    assert balances(name) == {"2019-08-04": "478.40", "2019-08-05": "413.11", "2019-08-06": "380.12"}
    gold = {str(row["day"]): (row["transactions"], str(row["change"])) for row in rows_of(f"gold.{name}")}
    assert gold == {"2019-08-04": (2, "478.40"), "2019-08-05": (2, "-65.29"), "2019-08-06": (2, "-32.99")}
    silver_rows = {(row["_filename"], row["_index"]): (row["date"], row["amount"]) for row in rows_of(f"silver.{name}")}
    assert silver_rows["2019-08-04_transactions.csv", 1] == (date(2019, 8, 4), Decimal("-21.60"))


@only_in_full_runs
def test_a_year_of_generated_files_comes_out_as_plain_python_has_it(name, run_once):
    files = dict(transactions.files(seed=7, days=365))
    assert len(files) == 365
    for file, rows in files.items():
        transactions.write_file(Path(settings().folder(name)), file, rows)
    run_once(*bank_tables(name))
    rows = [(file, index, row) for file, rows in files.items() for index, row in enumerate(rows)]
    bronze = {(row["_filename"], row["_index"]): row for row in rows_of(f"bronze.{name}")}
    assert len(rows_of(f"bronze.{name}")) == len(rows)
    days, invalid_rows = defaultdict(list), set()
    for file, index, (day, amount, text) in rows:
        bronze_row = bronze[file, index]
        assert (bronze_row["date"], bronze_row["amount"] or "", bronze_row["description"]) == (day, amount, text)
        with suppress(InvalidOperation):
            days[day].append(Decimal(amount))
            continue
        invalid_rows.add((file, index))
    assert {(row["_filename"], row["_index"]) for row in rows_of(f"quarantine.silver_{name}")} == invalid_rows
    assert invalid_rows
    balance, expected = Decimal(0), {}
    for day in sorted(days):
        balance += sum(days[day])
        expected[day] = str(balance)
    assert balances(name) == {day: total for day, total in expected.items() if days[day]}
