"""Choices of a job: pure functions from the job to its possible next steps.

A schedule calls them at every step, so they read each fact once and build no objects but the choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from checkpoint_lab.durable import Item
from checkpoint_lab.job import JobWorld
from checkpoint_lab.job_recovery import RecoverableJob, channel_of
from checkpoint_lab.process import PERIODIC, Process
from checkpoint_lab.world import Choice
from checkpoint_protocols.ids import ChannelId, ProcessId

CHOICES_KEPT = 4_096
"""Size of each cache: schedules offer the same few choices again and again."""


def work(job: JobWorld) -> list[Choice]:
    """Return reads, deliveries, replays, successful writes and recovery steps."""
    found: list[Choice] = []
    idle: set[ProcessId] = set()
    """Processes whose machine takes no events now."""
    for process in job.everybody:
        if process.machine is None:
            idle.add(process.name)
            _under_way(process, found)
        # A frozen process has heard of a recovery and waits for its part; a paused one takes no step at all. Their writes end
        # later, too.
        elif process.frozen or process.paused:
            idle.add(process.name)
        else:
            _under_way(process, found)
            _own_steps(job, process, found)
    _deliveries(job, idle, found)
    if job.recovering or job.alarm:
        _recovery(job, found)
    return found


def _own_steps(job: JobWorld, process: Process, found: list[Choice]) -> None:
    if process.replay:
        # the channel of the next replayed message may be held by the machine
        if channel_of(process.replay[0]) not in process.held:
            found.append(("replay", process.name))
    # an outbox is left only while the machine holds its output
    elif process.is_source and process.state.cursor < job.app.inputs and not process.state.outbox:
        found.append(("read", process.name))


def _under_way(process: Process, found: list[Choice]) -> None:
    # a store and a sink finish what they have got, also of a sender that is dead
    if process.writes:
        found += _endings(process.name, len(process.writes))
    if process.publishing:
        found.append(("publish", process.name))


def _deliveries(job: JobWorld, idle: set[ProcessId], found: list[Choice]) -> None:
    network, processes = job.network, job.processes
    targets, links, cut = network.targets, network.links, network.cut
    for channel, queue in network.queues.items():
        if queue and (target := targets[channel]) not in idle:
            process = processes[target]
            # a replay comes before new messages, as the recovered state expects
            if not (process.replay or channel in process.held or (cut and links[channel] in cut)):
                found += _arrivals(channel, 1 if network.fifo else len(queue))
    for channel, queue in network.controls.items():
        if queue and targets[channel] not in idle and not (cut and links[channel] in cut):
            found += _arrivals(channel, len(queue))


@lru_cache(maxsize=CHOICES_KEPT)
def _endings(name: ProcessId, writes: int) -> tuple[Choice, ...]:
    return tuple(("stored", name, number, "ok") for number in range(writes))


@lru_cache(maxsize=CHOICES_KEPT)
def _arrivals(channel: ChannelId, messages: int) -> tuple[Choice, ...]:
    return tuple(("deliver", channel, position) for position in range(messages))


def _recovery(job: JobWorld, found: list[Choice]) -> None:
    if job.alarm:
        # with staggered recoveries every process hears of the recovery before it is decided
        unaware = [process.name for process in job.everybody if job.budget.staggered and _can_hear(job, process)]
        found.extend([("freeze", name) for name in unaware] or [("recover",)])
    if job.recovering:
        found.extend([("restore", process.name) for process in job.everybody if _can_restore(job, process)])


def _can_restore(job: JobWorld, process: Process) -> bool:
    if job.plan is None or process.incarnation == job.incarnation or process.paused:
        return False
    # a process that died after the plan was made has no part in it and needs another recovery
    return process.machine is not None or process.name in job.planned_for


def _can_hear(job: JobWorld, process: Process) -> bool:
    # a paused process delays the decision until it resumes; with `rejoin`, survivors work until they learn of it
    return job.protocol.rejoin is None and process.works and not process.suspected


def timers(job: JobWorld) -> list[Choice]:
    """Return the timers of all working processes, the earliest first."""
    found = [
        (timer.due, process.number, number, process.name)
        for process in job.everybody
        if process.timers and process.works
        for number, timer in enumerate(process.timers)
    ]
    # equal times go by process and position, so that the order is the same in a replay
    return [("timer", name, number) for _, _, number, name in sorted(found)]


def is_periodic(job: JobWorld, choice: Choice) -> bool:
    """Return True if the timer of a choice is periodic."""
    _, name, number = choice
    return any(
        timer.setting.name == PERIODIC
        for process in job.everybody
        if process.name == name
        for place, timer in enumerate(process.timers)
        if place == number
    )


def faults(job: RecoverableJob) -> list[Choice]:
    """Return the faults that the budget still allows, and the ends of pauses and partitions."""
    found: list[Choice] = []
    _faults_of_processes(job, found)
    _haunting(job, found)
    _faults_of_links(job, found)
    budget, network = job.budget, job.network
    if not network.reliable:
        _faults_of_messages(network.queues, budget.losses, budget.duplicates, found)
    if job.lossy:
        _faults_of_messages(network.controls, budget.control_losses, budget.control_repeats, found)
    return found


def _faults_of_processes(job: JobWorld, found: list[Choice]) -> None:
    budget = job.budget
    for process in job.everybody:
        name, writes = process.name, range(len(process.writes))
        if process.paused:
            found.append(("resume", name))
        elif budget.pauses and process.machine is not None:
            found.append(("pause", name))
        if budget.crashes and process.machine is not None:
            found.append(("crash", name))
        # a dead process takes no answer, so its writes are torn or land, but do not fail
        if budget.store_errors and process.works:
            found.extend(("stored", name, number, "failed") for number in writes)
        if budget.torn and process.machine is None:
            found.extend(("stored", name, number, "torn") for number in writes)
        if budget.suspicions and process.works and not process.suspected:
            found.append(("suspect", name))
        if budget.damages:
            records = range(len(process.storage.intact()))
            found.extend(("damage", name, number, how) for number in records for how in ("lost", "torn"))
        if budget.late:
            found.extend(("late", name, number) for number in range(len(process.late)))


def _haunting(job: RecoverableJob, found: list[Choice]) -> None:
    for number, zombie in enumerate(job.zombies):
        found.extend(("haunt", number, what) for what in zombie.can(job.app.inputs))


def _faults_of_links(job: JobWorld, found: list[Choice]) -> None:
    network = job.network
    found.extend(("heal", *sorted(link)) for link in sorted(network.cut, key=sorted))
    if job.budget.partitions:
        links = dict.fromkeys(network.links.values())
        # a self-loop is a link with one end, and a process always reaches itself
        found.extend(("cut", *sorted(link)) for link in links if len(link) > 1 and link not in network.cut)


def _faults_of_messages(
    queues: Mapping[ChannelId, Sequence[Item]], losses: int, repeats: int, found: list[Choice]
) -> None:
    for channel, queue in queues.items():
        if losses:
            found.extend(("lose", channel, position) for position in range(len(queue)))
        if repeats:
            found.extend(("repeat", channel, position) for position in range(len(queue)))
