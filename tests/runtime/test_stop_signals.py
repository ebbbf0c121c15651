"""Real signals to real processes: they stop the runs, then go back to the program, and set its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest

from spark_ckpt.driver.signals import SignalStops

WAIT_S = 120
PROGRAM = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests may ignore it, and children inherit that
from spark_ckpt.driver.signals import stops

def say(text):  # one piece, whatever other threads say
    os.write(1, (text + "\\n").encode())

class FakeRun:
    def __init__(self, noticed=True, takes_s=0.0):
        self.notices_its_end, self.takes_s = noticed, takes_s
        self.done = threading.Event()
    def wait(self):  # in slices, as a run does
        while not self.done.wait(0.5):
            pass
    def stop_for_signal(self, name):
        say("stopping for " + name)
        time.sleep(self.takes_s)
        say("stopped")
        self.done.set()

def ready():
    say("ready")

"""


@contextmanager
def program(text: str, **options):
    """Start a program as a process; wait until it prints "ready"."""
    source = PROGRAM + textwrap.dedent(text)
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, **options)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def printed(process) -> list[str]:
    """Return every line that the process prints until it ends."""
    return process.communicate(timeout=WAIT_S)[0].splitlines()


OWN = "signal.signal(signal.SIGTERM, lambda *_: None); "


@pytest.mark.parametrize(
    ("number", "before", "known"),
    [(signal.SIGTERM, "", "SIGTERM"), (signal.SIGTERM, OWN, "None"), (signal.SIGINT, "", "None")],
)
def test_a_sigterm_that_the_program_has_not_got_is_known_to_its_next_start(number, before, known):
    """Ctrl-C in a notebook is for one run, and a program with a handler decides itself."""
    with program(
        f"{before}run = FakeRun(); stops.listen(run); ready(); run.wait(); say(str(stops.ends_program))"
    ) as child:
        child.send_signal(number)
        assert printed(child)[-1] == known


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_waits_for_its_run_continues_after_the_stop_and_chooses_its_exit_code(number):
    with program("run = FakeRun(); stops.listen(run); ready(); run.wait(); print('cleaned up'); sys.exit(7)") as child:
        child.send_signal(number)
        assert printed(child) == [f"stopping for {number.name}", "stopped", "cleaned up"]
        assert child.returncode == 7


def test_a_program_that_never_polls_ends_by_the_signal_after_the_stop():
    with program("stops.listen(FakeRun(noticed=False)); ready(); time.sleep(600)") as child:
        child.send_signal(signal.SIGTERM)
        assert printed(child) == ["stopping for SIGTERM", "stopped"]
        assert child.returncode == -signal.SIGTERM


def test_a_signal_that_does_not_wake_the_program_is_sent_again():
    text = """
    kill, sent = os.kill, []
    def kill_ignored_at_first(pid, number):
        sent.append(number)
        if len(sent) > 1:
            kill(pid, number)
    os.kill = kill_ignored_at_first
    stops.listen(FakeRun(noticed=False)); ready(); time.sleep(600)
    """
    with program(text) as child:
        child.send_signal(signal.SIGTERM)
        assert printed(child) == ["stopping for SIGTERM", "stopped"]
        assert child.returncode == -signal.SIGTERM


def test_a_handed_back_signal_reaches_a_programs_own_handler_once():
    text = """
    def own(number, frame):
        say("own handler")
        time.sleep(3)  # longer than the pause before a signal is sent again
        sys.exit(0)
    signal.signal(signal.SIGTERM, own)
    stops.listen(FakeRun(noticed=False)); ready(); time.sleep(600)
    """
    with program(text) as child:
        child.send_signal(signal.SIGTERM)
        assert printed(child) == ["stopping for SIGTERM", "stopped", "own handler"]


def test_a_program_that_never_polls_is_interrupted_after_the_stop():
    text = """
    stops.listen(FakeRun(noticed=False)); ready()
    try: time.sleep(600)
    except KeyboardInterrupt: print("interrupted")
    """
    with program(text) as child:
        child.send_signal(signal.SIGINT)
        assert printed(child) == ["stopping for SIGINT", "stopped", "interrupted"]


def test_a_programs_own_handler_is_called_after_the_stop():
    text = """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    run = FakeRun(); stops.listen(run); ready()
    time.sleep(600)
    """
    with program(text) as child:
        child.send_signal(signal.SIGTERM)
        assert printed(child) == ["stopping for SIGTERM", "stopped"]
        assert child.returncode == 143


def test_a_second_signal_ends_the_program_at_once():
    with program("run = FakeRun(takes_s=600); stops.listen(run); ready(); run.wait()") as child:
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == "stopping for SIGTERM\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(WAIT_S) == -signal.SIGTERM


def test_all_runs_of_a_program_stop():
    text = "a, b = FakeRun(), FakeRun(); stops.listen(a); stops.listen(b); ready(); a.wait(); b.wait()"
    with program(text) as child:
        child.send_signal(signal.SIGTERM)
        assert sorted(printed(child)) == sorted(["stopping for SIGTERM", "stopped"] * 2)


def test_a_run_that_starts_while_an_earlier_one_stops_is_stopped_too():
    """The signal came between two starts, and the program waits for the first run, so the signal is not sent again."""
    text = """
    class First(FakeRun):
        def stop_for_signal(self, name):
            stops.listen(second)
            super().stop_for_signal(name)
    first, second = First(), FakeRun()
    stops.listen(first); ready(); first.wait(); second.wait(); say("ended")
    """
    with program(text) as child:
        child.send_signal(signal.SIGTERM)
        assert printed(child) == [*["stopping for SIGTERM", "stopped"] * 2, "ended"]


def test_after_the_last_run_signals_are_the_programs_own_again():
    text = """
    run = FakeRun(); stops.listen(run); stops.forget(run); ready()
    time.sleep(600)
    """
    with program(text) as child:
        child.send_signal(signal.SIGTERM)
        assert (printed(child), child.returncode) == ([], -signal.SIGTERM)


def test_a_signal_that_the_program_ignores_stays_ignored():
    text = """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run = FakeRun(); stops.listen(run); ready(); run.wait()
    """
    with program(text) as child:
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        assert printed(child) == ["stopping for SIGTERM", "stopped"]


def test_off_the_main_thread_nothing_is_installed():
    import threading

    listening, before = [], signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: listening.append(SignalStops().listen(object())))
    thread.start()
    thread.join()
    assert (listening, signal.getsignal(signal.SIGTERM)) == ([False], before)


def test_a_run_that_another_thread_starts_after_the_first_one_stops_too():
    """The stages of a drain, after the first one, start on a thread of the library."""
    text = """
    first, second = FakeRun(), FakeRun()
    stops.listen(first); stops.forget(first)
    thread = threading.Thread(target=stops.listen, args=[second]); thread.start(); thread.join()
    ready(); second.wait()
    """
    with program(text) as child:
        child.send_signal(signal.SIGTERM)
        assert (printed(child), child.returncode) == (["stopping for SIGTERM", "stopped"], 0)


def test_a_signal_within_any_lock_of_the_main_thread_stops_the_run():
    """A handler that took the run's own lock would never return here."""
    text = """
    run = FakeRun(); stops.listen(run)
    with run.done._cond:
        ready()
        time.sleep(1)
    run.wait(); print("went on")
    """
    with program(text) as child:
        os.kill(child.pid, signal.SIGTERM)
        assert printed(child)[-1] == "went on"
