"""A real Kafka broker (one KRaft node) for tests, which can be frozen, killed and started again on its data.

`with running_broker(folder) as broker:` starts a container if a Docker engine answers, else a JVM from the locked jars.
SPARK_CKPT_TEST_BROKER=docker|jars overrides this. Waits poll, with a deadline.
"""

from __future__ import annotations

import base64
import os
import random
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from spark_ckpt_kafka.library import kafka_errors, open_admin

from spark_ckpt import jars

READY_TIMEOUT_S = 300.0
IMAGE = "apache/kafka:4.1.1"
BROKER_LOCK = Path(__file__).with_name("broker.lock.json")

# One broker, so one replica. The broker looks for timed-out transactions often, and a killed broker's registration
# ends soon, so that tests need not wait.
DEFAULTS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}
SERVER_PORTS = (10_000, 30_000)
"""Below the ports that Linux and others use for outgoing connections."""
SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Flags of the JVM: a quick start and little memory."""


class Broker(Protocol):
    """Operations of a test on a broker."""

    @property
    def servers(self) -> str:
        """The bootstrap address, the same after every restart."""

    def start(self) -> None:
        """Start (again) on the same port and data; returns when the broker answers."""

    def kill(self) -> None:
        """Send SIGKILL: the log keeps all that reached the operating system."""

    def pause(self) -> None:
        """Freeze the process: connections stay open and nothing answers."""

    def resume(self) -> None:
        """Let a paused broker continue."""

    def stop(self) -> None:
        """End it permanently."""


class JarBroker:
    """A broker process of this machine's JVM, started from the locked jars. `first`: the node whose cluster it joins."""

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str],
        login: Mapping[str, object],
        flags: Sequence[str] = SMALL,
        first: JarBroker | None = None,
    ) -> None:
        self._folder = folder
        self._login = login
        self._flags = flags
        self._port, controller = free_ports(2)
        self.cluster_id: str = first.cluster_id if first else _new_cluster_id()
        self.voters: str = first.voters if first else f"1@127.0.0.1:{controller}"
        self._config = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        listeners = _local_listeners(self._port, None if first else controller)
        settings = {**DEFAULTS, **listeners, "controller.quorum.voters": self.voters, **properties}
        settings["log.dirs"] = str(folder / "log")
        self._config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._format()

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        with (self._folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                _command("kafka.Kafka", str(self._config), flags=self._flags), stdout=log, stderr=log
            )
        wait_until_ready(self.servers, self._check_alive, self._login)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def _format(self) -> None:
        command = _command(
            "kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster_id}", "-c", str(self._config)
        )
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if run.returncode:
            raise RuntimeError(f"the broker's storage cannot be formatted:\n{run.stdout}{run.stderr}")

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the broker was never started"
        self._process.send_signal(number)

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait(timeout=30)

    def _check_alive(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            log = (self._folder / "broker.log").read_text(errors="replace")
            raise RuntimeError(f"the broker ended with code {self._process.returncode}:\n{log[-3000:]}")


class DockerBroker:
    """The same broker in a container. The host port is fixed, so that it stays the same after a restart."""

    def __init__(
        self, properties: Mapping[str, str], login: Mapping[str, object], flags: Sequence[str] = SMALL
    ) -> None:
        from testcontainers.core.container import DockerContainer

        (self._port,) = free_ports(1)
        self._login = login
        settings = {**DEFAULTS, **_container_listeners(self._port), **properties}
        container = DockerContainer(IMAGE).with_bind_ports(9092, self._port)
        for name, value in settings.items():
            container = container.with_env(environment_name(name), value)
        # The image chooses its collector itself, and Java refuses two.
        memory = " ".join(flag for flag in flags if flag.startswith("-Xm"))
        self._container: Any = container.with_env("KAFKA_HEAP_OPTS", memory)
        self._started = False

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        if self._started:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._started = True
        wait_until_ready(self.servers, lambda: None, self._login)

    def kill(self) -> None:
        wrapped = self._container.get_wrapped_container()
        wrapped.kill(signal="SIGKILL")
        wrapped.wait(timeout=30)

    def pause(self) -> None:
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    def stop(self) -> None:
        if self._started:
            self._container.stop()


@contextmanager
def running_broker(
    folder: Path,
    properties: Mapping[str, str] | None = None,
    login: Mapping[str, object] | None = None,
    flags: Sequence[str] = SMALL,
) -> Iterator[Broker]:
    """Start a broker, and remove it at the end, even after a failure.

    `properties` override `DEFAULTS`; `login` is kafka-python's login, if the broker requires one; `flags` are its JVM's.
    """
    broker = _make(folder, properties or {}, login or {}, flags)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def _make(folder: Path, properties: Mapping[str, str], login: Mapping[str, object], flags: Sequence[str]) -> Broker:
    chosen = os.environ.get("SPARK_CKPT_TEST_BROKER") or ("docker" if docker_answers() else "jars")
    if chosen == "docker":
        return DockerBroker(properties, login, flags)
    return JarBroker(folder, properties, login, flags)


def docker_answers() -> bool:
    """True if a Docker engine can run containers."""
    if not os.environ.get("DOCKER_HOST") and not Path("/var/run/docker.sock").is_socket():
        return False
    try:
        import docker  # type: ignore[import-untyped]

        client = docker.from_env(timeout=3)
    except Exception:  # noqa: BLE001 - the client raises a different error for each way of having no engine
        return False
    try:
        return bool(client.ping())
    except Exception:  # noqa: BLE001
        return False
    finally:
        client.close()


def free_ports(count: int) -> list[int]:
    """Different ports that were just free, outside of the range for outgoing connections: while a broker is down, a client's
    next connection could take its port, even by a connection to itself.
    """
    draw, sockets = random.SystemRandom(), []
    try:
        while len(sockets) < count:
            one = socket.socket()
            try:
                one.bind(("127.0.0.1", draw.randrange(*SERVER_PORTS)))
            except OSError:
                one.close()
            else:
                sockets.append(one)
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait_until_ready(servers: str, check_alive: Callable[[], None], login: Mapping[str, object]) -> None:
    """Poll until the broker answers a metadata request; `check_alive` raises if it has died."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not answers(servers, login):
        check_alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no broker answers at {servers} after {READY_TIMEOUT_S} s")
        time.sleep(0.1)


def answers(servers: str, login: Mapping[str, object]) -> bool:
    """True if the broker serves metadata now."""
    host, _, port = servers.rpartition(":")
    settings = {"bootstrap_servers": servers, "request_timeout_ms": 2000, "bootstrap_timeout_ms": 2000, **login}
    with suppress(OSError, kafka_errors.KafkaError):
        socket.create_connection((host, int(port)), timeout=1).close()
        admin = open_admin(settings)
        try:
            return bool(admin.describe_cluster()["brokers"])
        finally:
            admin.close()
    return False


def environment_name(name: str) -> str:
    """Name of the image's environment variable for a broker property."""
    return "KAFKA_" + name.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def _command(main: str, *arguments: str, flags: Sequence[str] = SMALL) -> list[str]:
    logging = ("slf4j-api-*.jar", "log4j-slf4j2-impl-*.jar", "log4j-api-*.jar", "log4j-core-*.jar")
    paths = [str(path) for pattern in logging for path in jars.pyspark_jars().glob(pattern)]
    paths += [str(path) for path in jars.fetch(jars.read_lock(BROKER_LOCK), "the test broker")]
    return [str(jars.find_java()), *flags, "-cp", os.pathsep.join(paths), main, *arguments]


def _local_listeners(port: int, controller: int | None) -> dict[str, str]:
    ours = f"PLAINTEXT://127.0.0.1:{port}"
    return {
        "listeners": ours if controller is None else f"{ours},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": ours,
    }


def _container_listeners(port: int) -> dict[str, str]:
    return {
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://localhost:9093",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
