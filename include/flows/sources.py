"""Which class answers for which source of a flow."""

from include.flows.delta_source import DeltaSource
from include.flows.files_source import FilesSource
from include.flows.kafka_source import KafkaSource
from include.flows.source import FlowSource
from include.spec import AnySource, Delta, Files, Flow, Kafka

SOURCES: dict[type[AnySource], type[FlowSource]] = {Kafka: KafkaSource, Files: FilesSource, Delta: DeltaSource}


def of(flow: Flow) -> FlowSource:
    """Returns the source of a flow, which has one."""
    return SOURCES[type(flow.source)](flow)
