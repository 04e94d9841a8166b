"""The generated bank transactions: one CSV file for each day, the same for the same seed."""

from include.examples import transactions


def test_the_bank_writes_each_day_once_and_some_days_late():
    names = [name for name, _ in transactions.files(seed=1, days=100)]
    assert names == [name for name, _ in transactions.files(seed=1, days=100)]
    assert len(names) == len(set(names)) == 100
    assert names != sorted(names)
    assert sorted(names)[0] == "2019-08-04_transactions.csv"
