"""Shows others how far flows are: Kafka's tools by consumer groups, OpenLineage by an event for each newest batch."""

import traceback
from collections.abc import Callable

from include import catalog
from include.errors import SluiceError
from include.monitoring import consumer_groups, lineage_loader


def show_all() -> None:
    """Says in the log what could not be shown; the next minute tries again. Raises nothing."""
    for show in (_offsets, _lineage):
        _try(show)


def _try(show: Callable[[], None]) -> None:
    try:
        show()
    except SluiceError as error:
        print(error)
    except Exception:
        # Supervising goes on whatever is wrong here.
        traceback.print_exc()


def _offsets() -> None:
    for flow, why_not in consumer_groups.mirror(catalog.load()).items():
        if why_not:
            print(f"{consumer_groups.group(flow)} is not mirrored: {why_not}")


def _lineage() -> None:
    for flow, batch in lineage_loader.tell(catalog.load()).items():
        print(f"{flow}: lineage of batch {batch}")
