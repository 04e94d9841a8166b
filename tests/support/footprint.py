"""What the two processes of a driver hold: objects, threads, sockets and files of Python and of the JVM."""

import gc
import os
import threading
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from include.engine.batch.batch import FlowContext
from include.engine.session import jvm_of
from include.engine.stream.driver import jvm_pid
from include.engine.stream.flow import RunningFlow


@dataclass(frozen=True)
class Footprint:
    """Counts after collections of both heaps.

    flows: contexts and flows in Python. proxies: objects of Python that the JVM may call. gateway_objects: objects of
    the JVM that Python refers to. sessions: queries and sessions in the JVM's heap.
    """

    flows: int
    proxies: int
    gateway_objects: int
    sessions: int
    python_threads: int
    python_files: int
    jvm_files: int
    jvm_threads: int
    heap_mb: float
    python_objects: int
    cpu_seconds: float

    def owns_no_more_than(self, other: "Footprint") -> bool:
        """Compares what belongs to flows, not caches and pools of libraries, which fill and empty by themselves."""
        # The JVM's finalizer calls Python by a connection of its own, which is closed and opened again now and then.
        spare = {"flows": 0, "proxies": 0, "python_threads": 2, "python_files": 2}
        return all(getattr(self, name) <= getattr(other, name) + more for name, more in spare.items())

    def __str__(self) -> str:
        return ", ".join(
            f"{name.replace('_', ' ')} {value:,.1f}".removesuffix(".0") for name, value in asdict(self).items()
        )


def measure(spark: SparkSession) -> Footprint:
    for _ in range(2):
        gc.collect()
        # py4j tells the JVM what Python no longer refers to, and the JVM tells Python by its finalizers.
        jvm_of(spark).java.lang.System.gc()
        jvm_of(spark).java.lang.System.runFinalization()
    gc.collect()
    gateway, jvm, pid = spark.sparkContext._gateway, jvm_of(spark), jvm_pid()
    runtime = jvm.java.lang.Runtime.getRuntime()
    objects = gc.get_objects()
    return Footprint(
        flows=sum(isinstance(held, FlowContext | RunningFlow) for held in objects),
        proxies=len(gateway.gateway_property.pool),
        gateway_objects=gateway.java_gateway_server.getGateway().getBindings().size(),
        sessions=_sessions(spark),
        python_threads=threading.active_count(),
        python_files=len(list(Path("/proc/self/fd").iterdir())),
        jvm_files=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        jvm_threads=jvm.java.lang.management.ManagementFactory.getThreadMXBean().getThreadCount(),
        heap_mb=(runtime.totalMemory() - runtime.freeMemory()) / 1e6,
        python_objects=len(objects),
        cpu_seconds=cpu_seconds(),
    )


def cpu_seconds() -> float:
    """The CPU time of both processes so far."""
    return float(sum(sum(psutil.Process(process).cpu_times()[:2]) for process in (os.getpid(), jvm_pid())))


def fixed_work_cpu_seconds() -> float:
    """The CPU time that a fixed piece of work takes now: more on a machine whose other cores are busy."""
    content = bytes(number * number % 251 for number in range(300_000))

    def work() -> float:
        began = time.thread_time()
        len({zlib.crc32(content[start : start + 64]) for start in range(0, len(content), 8)})
        return time.thread_time() - began

    return sorted(work() for _ in range(5))[2]


def settled(spark: SparkSession) -> Footprint:
    """Returns the footprint as soon as nothing of an ended flow is left, or what it is after half a minute."""
    deadline = time.monotonic() + 30
    found = measure(spark)
    # The JVM keeps the function of the last query until the next one has ended.
    while (found.flows or found.proxies > 1) and time.monotonic() < deadline:
        found = measure(spark)
    return found


def _sessions(spark: SparkSession) -> int:
    """Instances of sessions and queries in the JVM, by the histogram of its heap."""
    kinds = ("org.apache.spark.sql.classic.SparkSession", "MicroBatchExecution", "sql.internal.SessionState")
    lines = [line.split() for line in _histogram(spark).splitlines()]
    return sum(int(words[1]) for words in lines if words and words[-1].endswith(kinds))


def _histogram(spark: SparkSession) -> str:
    jvm, new_array = jvm_of(spark), spark.sparkContext._gateway.new_array
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    # The server's class is not public, so the method is taken from its interface.
    methods = jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethods()
    [invoke] = [method for method in methods if method.getName() == "invoke"]
    parameters, arguments = new_array(jvm.java.lang.Object, 1), new_array(jvm.java.lang.Object, 4)
    signature = new_array(jvm.java.lang.String, 1)
    parameters[0], signature[0] = new_array(jvm.java.lang.String, 0), "[Ljava.lang.String;"
    arguments[0] = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    arguments[1], arguments[2], arguments[3] = "gcClassHistogram", parameters, signature
    return str(invoke.invoke(server, arguments))
