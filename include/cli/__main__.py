"""The command `sluice`: the script that `make up` installs runs this."""

from include.cli.main import main
from include.errors import report


def command() -> None:
    """The entry point of the installed package."""
    report(main)


if __name__ == "__main__":
    command()
