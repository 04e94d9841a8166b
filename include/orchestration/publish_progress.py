"""Publishes the progress of flows: Kafka consumer groups get offsets, OpenLineage an event for each newest batch."""

import traceback
from collections.abc import Callable

from include import catalog
from include.errors import SluiceError
from include.monitoring import consumer_groups, lineage_loader


def publish_all() -> None:
    """Publish everything, and log failures. The next minute tries again. Raises nothing."""
    for publish in (_publish_offsets, _publish_lineage):
        _try(publish)


def _try(publish: Callable[[], None]) -> None:
    try:
        publish()
    except SluiceError as error:
        print(error)
    except Exception:
        # No error here may stop the supervisor.
        traceback.print_exc()


def _publish_offsets() -> None:
    for mirrored in consumer_groups.mirror(catalog.load()).values():
        if mirrored.refusal:
            print(f"{mirrored.group} is not mirrored: {mirrored.refusal}")


def _publish_lineage() -> None:
    for flow, batch in lineage_loader.emit_events(catalog.load()).items():
        print(f"{flow}: lineage of batch {batch}")
