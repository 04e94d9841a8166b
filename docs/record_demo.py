"""Records what `make demo` prints, in the README: make recording

The platform runs, with the shipped examples. The walk takes about a minute, and kills a driver.
"""

import contextlib
import io
import re

from include.errors import SetupError, report
from include.local import demo
from include.settings import ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"^```text\n1\. .*?^```$", re.MULTILINE | re.DOTALL)


def main() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        demo.main()
    README.write_text(with_recording(README.read_text(), printed.getvalue()))
    print(README.relative_to(ROOT))


def with_recording(text: str, printed: str) -> str:
    """The text, with what the demo printed as its recording."""
    if len(BLOCK.findall(text)) != 1:
        raise SetupError(f"{README} has no single block of text that begins with '1. ': add one for the recording")
    return BLOCK.sub(lambda _: f"```text\n{printed.strip()}\n```", text)


if __name__ == "__main__":
    report(main)
