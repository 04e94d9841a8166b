"""The command `sluice`: the script that `make up` installs runs this."""

from include.cli.main import main
from include.errors import report

if __name__ == "__main__":
    report(main)
