"""The parent's handle of a publisher process: starts it, sends requests, and kills it after a silence."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO

from spark_ckpt_kafka import wire
from spark_ckpt_kafka.producer import ProducerFailed
from spark_ckpt_kafka.publishing import LaneSettings, Published, Request

DROP_S = 5.0
"""Timeout in seconds for aborting early-sent rows; longer than the timeout of the process's client."""


class LaneProcess:
    """The publisher process of one shard. It starts at first use and again after it ended; one request at a time.

    `stall_s`: a process that is silent for so many seconds is killed.
    """

    def __init__(self, settings: LaneSettings, stall_s: float) -> None:
        self._settings = settings
        self._stall_s = stall_s
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    @property
    def settings(self) -> LaneSettings:
        """Settings that the process starts with."""
        return self._settings

    def kill(self) -> None:
        """Kill the process from another thread. A pending request then fails with `ProducerFailed`."""
        process = self._process
        if process is not None:
            process.kill()

    @property
    def pid(self) -> int | None:
        """Id of the running process, or None."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the process if it is not running. Does not wait until it is ready."""
        if self.pid is not None:
            return
        self.close()
        # spark-submit adds paths without installing, so that the child needs the parent's import path.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spark_ckpt_kafka.lane"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._buffer = b""
        self._write(wire.settings_message(self._settings))

    def ask(self, request: Request, verified: Callable[[], None] = lambda: None) -> Published:
        """Publish one epoch and return the result. Raises `ProducerFailed` if another attempt may succeed, else a
        `CkptError`.

        `verified` is called when the rows match the committed manifest. The rows are published when it returns; if it
        raises, they are not.
        """
        self.start()
        return wire.result_of(self._answer(wire.request_message(request), verified))

    def send_ahead(self, request: Request) -> int:
        """Send those files of an uncommitted epoch that are not sent yet (early send), and return the number of rows.

        Raises like `ask`.
        """
        self.start()
        return wire.sent_of(self._answer(wire.ahead_message(request)))

    def drop_ahead(self) -> None:
        """Abort the early send, if a process runs that may have sent rows."""
        if self.pid is not None:
            wire.sent_of(self._answer(wire.DROP, stall_s=DROP_S))

    def _answer(
        self, message: wire.Message, verified: Callable[[], None] = lambda: None, stall_s: float | None = None
    ) -> wire.Message:
        self._write(message)
        while True:
            answer = wire.decode(self._line(stall_s or self._stall_s))
            if answer == wire.VERIFIED:
                self._release(verified)
            elif "progress" not in answer:
                return answer

    def _release(self, verified: Callable[[], None]) -> None:
        try:
            verified()
        except BaseException:
            self.close()  # the process waits for an answer that will not come
            raise
        self._write(wire.GO)

    def close(self) -> None:
        """Kill the process if there is one. The init of the next process decides its open transaction."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with process:  # closes the pipes and reaps the process
            pass

    def _write(self, message: wire.Message) -> None:
        stdin, _ = self._pipes()
        try:
            stdin.write(wire.encode(message))
            stdin.flush()
        except OSError as error:
            raise self._died() from error

    def _line(self, stall_s: float) -> bytes:
        """Return the next line. Raises `ProducerFailed` when the process ends or is silent for `stall_s` seconds."""
        deadline = time.monotonic() + stall_s
        descriptor = self._pipes()[1].fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    raise ProducerFailed(f"the publishing process was silent for {stall_s:.0f} s and was killed")
                read = os.read(descriptor, 65_536)
                if not read:
                    raise self._died()
                self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ProducerFailed("the publishing process was closed")
        return process.stdin, process.stdout

    def _died(self) -> ProducerFailed:
        process = self._process
        self.close()
        code = process.returncode if process else None
        return ProducerFailed(f"the publishing process ended with code {code}")
