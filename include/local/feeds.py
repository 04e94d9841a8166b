"""The processes that feed the examples: those of `include.examples`, where its tables are declared."""

from importlib import import_module

from include import catalog
from include.local import install
from include.local.processes import Platform
from include.monitoring import status

# What stands in a log before the sentence of an error.
SENTENCE = "sluice: "


def modules() -> dict[str, str]:
    """The module of each process without which `make up` fails."""
    return dict(import_module(catalog.EXAMPLES).FEEDS) if catalog.has_examples() else {}


def shop_modules() -> dict[str, str]:
    """The module of each process of the shop, if a table reads the changes of its database."""
    return dict(import_module(catalog.EXAMPLES).SHOP_FEEDS) if _tables_of_changes() else {}


def start(platform: Platform, feeds: dict[str, str], variables: dict[str, str]) -> list[str]:
    """Start those that do not run. Returns their names."""
    missing = [name for name in feeds if not platform.find(name)]
    for name in missing:
        platform.start(name, [str(install.venv() / "bin" / "python"), "-m", feeds[name]], variables)
    return missing


def notices(platform: Platform) -> list[str]:
    """A sentence for each process of the shop that has ended; else one, if its tables hold no rows yet."""
    names = [*shop_modules()]
    if ended := [name for name in names if not platform.find(name)]:
        return [f"'{name}' does not run ({_reason(platform, name)}): fix that, then `make up` again" for name in ended]
    if empty := [table for table in _tables_of_changes() if not status.rows(table)]:
        return [f"the rows of {' and '.join(empty)} follow when {' and '.join(names)} have started beside the streams"]
    return []


def _tables_of_changes() -> list[str]:
    if not catalog.has_examples():
        return []
    topics = {*import_module(catalog.EXAMPLES).SHOP_TOPICS.values()}
    flows = catalog.load().flows.values()
    return [flow.name for flow in flows if not flow.source.cluster and topics & {*flow.source.names}]


def _reason(platform: Platform, name: str) -> str:
    """The sentence of the error that ended it."""
    lines = platform.last_lines(name, 100).splitlines()
    sentences = [line.removeprefix(SENTENCE) for line in lines if line.startswith(SENTENCE)]
    return sentences[-1] if sentences else f"read {platform.log(name)}"
