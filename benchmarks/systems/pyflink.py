"""PyFlink's DataStream API, exactly once: the job's functions are Python, called in the JVM's process (thread mode).

Lines in, lines out: PyFlink's Kafka source emits values only, and its sink can set no key besides the value. Thread mode avoids
the exchange with a Python process, the default, which costs several times the work of functions this small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from benchmarks.systems import Run, System
from benchmarks.systems.flink_cluster import ENVIRONMENT, PRODUCER, configuration, guarantee, prepare

if TYPE_CHECKING:
    from pyflink.datastream import DataStream
    from pyflink.datastream.connectors.kafka import KafkaSink, KafkaSource

    Express = Callable[[DataStream], DataStream]

NOTE = (
    "thread mode; its output has no Kafka key, so that a key's records are in all partitions and a run that is killed between the "
    "commits of two sink tasks shows some as missing, which a restart would commit; its pass-through runs no Python"
)
SYSTEMS: tuple[System, ...] = (
    System(
        "pyflink", "PyFlink DataStream", "pyflink", "exactly-once", ENVIRONMENT, "benchmarks.systems.pyflink", note=NOTE
    ),
)


def main() -> None:
    """Run one job until killed."""
    run = Run.of_command_line()
    prepare(run)
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream import StreamExecutionEnvironment

    settings = configuration(run)
    settings.set_string("python.execution-mode", "thread")
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    lines = environment.from_source(_source(run), WatermarkStrategy.no_watermarks(), "records")
    express = cast("Express", run.implementation)
    express(lines).sink_to(_sink(run))
    environment.execute(run.job)


def _source(run: Run) -> KafkaSource:
    from pyflink.common.serialization import SimpleStringSchema
    from pyflink.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource

    source = KafkaSource.builder().set_bootstrap_servers(run.servers).set_topics(run.source).set_group_id(run.target)
    source = source.set_starting_offsets(KafkaOffsetsInitializer.earliest())
    return source.set_value_only_deserializer(SimpleStringSchema()).build()


def _sink(run: Run) -> KafkaSink:
    from pyflink.common.serialization import SimpleStringSchema
    from pyflink.datastream.connectors.base import DeliveryGuarantee
    from pyflink.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink

    lines = KafkaRecordSerializationSchema.builder().set_topic(run.target)
    lines = lines.set_value_serialization_schema(SimpleStringSchema()).build()
    sink = KafkaSink.builder().set_bootstrap_servers(run.servers).set_record_serializer(lines)
    sink = sink.set_delivery_guarantee(DeliveryGuarantee[guarantee(run).replace("-", "_").upper()])
    for name, value in PRODUCER.items():
        sink = sink.set_property(name, value)
    return sink.set_transactional_id_prefix(run.target).build()


if __name__ == "__main__":
    main()
