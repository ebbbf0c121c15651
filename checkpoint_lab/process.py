"""One process as its host sees it: a machine, the application's state, and the events that are due to it."""

from __future__ import annotations

from collections import deque

from checkpoint_lab.durable import Storage, Write
from checkpoint_lab.faults import Clock
from checkpoint_lab.outside_world import Publication
from checkpoint_lab.state import Cut, State
from checkpoint_protocols.ids import ChannelId, Incarnation, ProcessId
from checkpoint_protocols.message_machine import AnyMessageMachine
from checkpoint_protocols.transport import Transport
from checkpoint_protocols.vocabulary import Envelope, SetTimer

Late = tuple[Incarnation, Write | Publication]
"""A write or publication under way, with the incarnation that started it."""

PERIODIC = "checkpoint"
"""Name of the periodic timer; every other timer is a timeout."""


class Timer:
    """A timer that was set. `due` is in the world's time, in ms."""

    __slots__ = ("due", "setting")

    def __init__(self, due: float, setting: SetTimer) -> None:
        self.due = due
        self.setting = setting


class Process:
    """Volatile and durable parts of a process. `machine` is None while it is down."""

    def __init__(
        self, name: ProcessId, number: int, processes: int, clock: Clock, storage: Storage | None = None
    ) -> None:
        self.name = name
        self.number = number
        self.clock = clock
        self.storage = storage or Storage()
        self.transport: Transport | None = None
        """The transport of lossy control channels; None for reliable ones."""
        self.machine: AnyMessageMachine | None = None
        self.incarnation = Incarnation(0)
        self.events = 0
        """Number of all events, undone ones included: numbers of the vector clock are not used again."""
        self.newest_capture = (0, 0)
        """Incarnation and index of the latest capture, of any incarnation."""
        self.is_source = False
        self.state = State(processes)
        self.frozen = False
        """True from the begin of a recovery until this process has done its part."""
        self.paused = False
        self.suspected = False
        """True if the next recovery takes the process for dead."""
        self.late: list[Late] = []
        """Writes and publications of ended incarnations that have not arrived yet."""
        self.held: set[ChannelId] = set()
        self.timers: list[Timer] = []
        self.writes: list[Write] = []
        self.publishing: list[Publication] = []
        """Publications that the sink still has to perform, oldest first: a sink performs one after the other."""
        self.replay: deque[Envelope] = deque()
        self.captures: dict[int, Cut] = {}

    @property
    def works(self) -> bool:
        """True if the process lives and takes part in the job."""
        return self.machine is not None and not self.frozen and not self.paused

    def begin_life(self, machine: AnyMessageMachine) -> None:
        """Start a new machine; events due to the old one are dropped."""
        self.let_go()
        self.machine = machine
        self.incarnation = machine.incarnation
        self.frozen = False
        self.held = set()
        self.timers = []

    def let_go(self) -> None:
        """Move writes and publications under way to those of ended incarnations."""
        self.late += [(self.incarnation, write) for write in self.writes]
        self.late += [(self.incarnation, publication) for publication in self.publishing]
        self.writes, self.publishing = [], []

    def die(self) -> None:
        """Drop the machine and the state; writes and rows under way may still land until the fence."""
        self.machine = None
        self.frozen = self.paused = self.suspected = False
        self.transport = None
        self.held = set()
        self.timers, self.captures = [], {}
        self.replay.clear()
