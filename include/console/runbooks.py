"""Markdown as HTML: the runbooks, for the incidents that they are about, and plans."""

from functools import lru_cache

from markdown_it import MarkdownIt
from markupsafe import Markup

from include.settings import ROOT

# HTML in the text of a page is shown as text.
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


@lru_cache
def as_html(page: str) -> Markup | None:
    """page: its path in the repository. Returns None where an installation has no documentation."""
    file = ROOT / page
    if not file.is_file():
        return None
    return markdown(file.read_text())


def markdown(text: str) -> Markup:
    return Markup(MARKDOWN.render(text))
