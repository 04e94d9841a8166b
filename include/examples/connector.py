"""The name of `python -m include.local.connector` in earlier releases."""

from include.errors import report
from include.local.connector import main

if __name__ == "__main__":
    report(main)
