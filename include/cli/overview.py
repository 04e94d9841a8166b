"""The help of `sluice`: all commands, in panels side by side, on a screen of 24 lines and 80 columns."""

import sys
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table

WIDTH = 80
# As many panels stand on the left.
LEFT = 3
# Its commands do what they are called, and share one line.
ON_CALL = "On call"


def show(program: str, commands: Mapping[str, Mapping[str, tuple[str, str]]]) -> None:
    """Prints the commands. commands: by panel and name, where each is and what it is for."""
    is_terminal = sys.stdout.isatty()
    console = Console(force_terminal=is_terminal, highlight=False)
    console.width = min(console.width, WIDTH) if is_terminal else WIDTH
    panels = [_panel(title, panel, is_terminal) for title, panel in commands.items() if title != ON_CALL]
    columns = Table.grid(expand=True, padding=(0, 1, 0, 0))
    columns.add_row(Group(*panels[:LEFT]), Group(*panels[LEFT:]))
    with console.capture() as text:
        console.print(f"Usage: {program} COMMAND; with --help, what it takes", style="bold")
        # The borders of the panels take the place of an empty line.
        end = "\n" if is_terminal else "\n\n"
        console.print(f"{ON_CALL}: {', '.join(commands[ON_CALL])}, of a FLOW, with --reason WHY", end=end)
        console.print(columns)
    print("\n".join(line.rstrip() for line in text.get().rstrip().splitlines()))


def _panel(title: str, commands: Mapping[str, tuple[str, str]], is_terminal: bool) -> RenderableType:
    rows = Table.grid(padding=(0, 2, 0, 0))
    names: list[str] = []
    for name, (_, words) in commands.items():
        # A command without words shares the line of the next one.
        names.append(name)
        if words:
            rows.add_row(f"[cyan]{', '.join(names)}[/]", words)
            names.clear()
    if is_terminal:
        return Panel(rows, title=title, title_align="left", border_style="dim")
    return Group(f"{title}:", Padding(rows, (0, 0, 1, 2)))
