"""One process as its host sees it: a machine, the application's state, and what is due to it."""

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
"""What a life had under way, and which life it was."""

PERIODIC = "checkpoint"
"""The timer that comes back for ever; every other one is a timeout."""


class Timer:
    """A timer that was set. `due` is in the world's time."""

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
        """What makes its control channels reliable; None where they are."""
        self.machine: AnyMessageMachine | None = None
        self.incarnation = Incarnation(0)
        self.events = 0
        """Events ever, undone ones too: numbers of the vector clock are not used again."""
        self.newest_capture = (0, 0)
        """Incarnation and index of the latest capture, of any life."""
        self.is_source = False
        self.state = State(processes)
        self.frozen = False
        """A recovery has begun and this process has not done its part."""
        self.paused = False
        self.suspected = False
        """The next recovery takes it for dead."""
        self.late: list[Late] = []
        """What lives that are over had under way, and is not there yet."""
        self.held: set[ChannelId] = set()
        self.timers: list[Timer] = []
        self.writes: list[Write] = []
        self.publishing: list[Publication] = []
        """What its sink was told to show and has not, oldest first: a sink does one thing after the other."""
        self.replay: deque[Envelope] = deque()
        self.captures: dict[int, Cut] = {}

    @property
    def works(self) -> bool:
        """It lives and takes part."""
        return self.machine is not None and not self.frozen and not self.paused

    def begin_life(self, machine: AnyMessageMachine) -> None:
        """A new machine: what was due to the old one is not due to this one."""
        self.let_go()
        self.machine = machine
        self.incarnation = machine.incarnation
        self.frozen = False
        self.held = set()
        self.timers = []

    def let_go(self) -> None:
        """What this life has under way is a dead life's from now on."""
        self.late += [(self.incarnation, write) for write in self.writes]
        self.late += [(self.incarnation, publication) for publication in self.publishing]
        self.writes, self.publishing = [], []

    def die(self) -> None:
        """The machine and the state are gone; writes and rows under way may still land until the fence."""
        self.machine = None
        self.frozen = self.paused = self.suspected = False
        self.transport = None
        self.held = set()
        self.timers, self.captures = [], {}
        self.replay.clear()
