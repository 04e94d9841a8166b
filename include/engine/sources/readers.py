"""Which class reads which source of a flow."""

from include.engine.sources.delta_reader import DeltaReader
from include.engine.sources.files_reader import FilesReader
from include.engine.sources.kafka_reader import KafkaReader
from include.engine.sources.reader import SourceReader
from include.spec import AnySource, Delta, Files, Flow, Kafka

READERS: dict[type[AnySource], type[SourceReader]] = {Kafka: KafkaReader, Files: FilesReader, Delta: DeltaReader}


def of(flow: Flow) -> SourceReader:
    return READERS[type(flow.source)](flow)
