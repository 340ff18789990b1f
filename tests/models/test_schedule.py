"""Model M7: group commit under many orders of its threads; a failure prints its seed, and `play(seed)` repeats it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from steplog._kernel.fold import RunState
from steplog._kernel.line import Chain, scan
from steplog._kernel.state import begun
from steplog._runtime import commit as commit_module
from steplog._runtime import committer, group
from steplog._runtime.commit import Commit
from steplog._runtime.group import Entry
from steplog.errors import LogFailed, StoreError
from tests.models.schedule import Future, Loop, Schedule

RUN = "r"
SHORT, LONG = range(300), range(10_000)


class Crash(BaseException):
    """The leader dies."""


class Disk:
    """A writer whose appends take time, and which notes what was acknowledged.

    Attributes:
        lines: what was written.
        synced: how many of them are synced.
    """

    durable = True

    def __init__(self, schedule: Schedule, fault: str, at: int) -> None:
        self.lines: list[bytes] = []
        self.synced = 0
        self.failed: list[list[bytes]] = []
        self.refused = 0
        self._schedule = schedule
        self._fault = fault
        self._appends = itertools.count()
        self._at = at
        self._busy = False
        self.closed = False

    def append(self, lines: list[bytes], first_seq: int, *, sync: bool) -> None:
        assert not self._busy, "two leaders at once"
        assert not self.closed
        assert not (self.failed and self._fault == "crash"), "a batch was written after one whose fate is unknown"
        self._busy = True
        try:
            self._schedule.pause()
            if next(self._appends) == self._at and self._fault:
                self.failed.append(lines)
                raise StoreError("disk full", errno=28) if self._fault == "full" else Crash
            assert first_seq == len(self.lines)
            self.lines += lines
            self._schedule.pause()
            if sync:
                self._schedule.pause()
                self.synced = len(self.lines)
        finally:
            self._busy = False

    def close(self) -> None:
        assert not self._busy
        self.closed = True


class NoBodies:
    def put(self, bodies: list[Any], *, sync: bool) -> None:
        raise AssertionError("nothing here has a body")


class Appender:
    """One thread or task and what became of its events."""

    def __init__(self, play: Play, name: str, count: int) -> None:
        self.name = name
        self.play = play
        self.syncs = [play.schedule.random.random() < 0.6 for _ in range(count)]
        self.submitted: list[str] = []
        self.acknowledged: list[str] = []
        self.failed: list[str] = []

    def _entry(self, number: int, *, sync: bool) -> Entry:
        name = f"{self.name}.{number}"
        self.submitted.append(name)
        # A step that begins, or an event of any other kind: where there is one alone, they go different ways.
        begins = begun(name, ("", None, ""), ("local", name, "safe", None, ""), name, 0)
        facts = begins if self.play.schedule.random.random() < 0.6 else None
        return Entry("run.signal", name, b"{}", [], sync=sync, facts=facts)

    def _sleep(self) -> bool:
        asleep = self.play.schedule.random.random() < self.play.sleepiness
        if asleep:
            # As long as the committer waits for work before it ends.
            self.play.schedule.sleep(5.0)
        return asleep

    def _went_on(self, entry: Entry) -> None:
        name = str(entry.step)
        if entry.sync:
            assert name in self.play.on_disk(), f"{name} was acknowledged and is not on disk"
            self.acknowledged.append(name)

    def thread(self) -> None:
        """Append from a thread."""
        for number, sync in enumerate(self.syncs):
            self._sleep()
            began = self.play.schedule.now
            try:
                entry = self._entry(number, sync=sync)
                if self.play.schedule.random.random() < 0.6:
                    self.play.commit.write(entry)
                else:
                    self.play.commit.wait(self.play.commit.submit(entry))
                self._went_on(entry)
            except (StoreError, LogFailed):
                self.failed.append(self.submitted[-1])
            except KeyboardInterrupt:
                self.play.schedule.explore_again()
                # As the recorder does: what is in line must reach the disk all the same.
                self.play.commit.flush_soon()
            except Crash:
                self.failed.append(self.submitted[-1])
                self.play.schedule.explore_again()
            self.play.late = max(self.play.late, self.play.schedule.now - began)

    def task(self) -> Iterator[Future]:
        """Append from a task."""
        for number, sync in enumerate(self.syncs):
            # It blocks the loop, so that how long the other tasks wait tells nothing.
            self.play.blocked = self._sleep() or self.play.blocked
            began = self.play.schedule.now
            try:
                entry = self.play.commit.submit(self._entry(number, sync=sync))
                future = self.play.commit.wait_in_loop(entry)
                if future is not None:
                    yield future
                    entry.check()
                self._went_on(entry)
            except (StoreError, LogFailed):
                self.failed.append(self.submitted[-1])
            if not self.play.blocked:
                self.play.late = max(self.play.late, self.play.schedule.now - began)


class Play:
    """A few threads, perhaps an event loop with a few tasks, that append to one log under one schedule.

    Attributes:
        late: the longest that an append has waited. Time does not pass while anybody can go on, so that is nothing
            where everybody was woken who should have been.
        blocked: a task has blocked the event loop.
    """

    def __init__(self, seed: int, patch: pytest.MonkeyPatch, *, fault: str = "", interruptions: int = 0) -> None:
        self.schedule = Schedule(seed, [group, committer, commit_module], interruptions=interruptions)
        random = self.schedule.random
        for name, stand_in in self.schedule.modules().items():
            patch.setattr(committer, name, stand_in)
        patch.setattr(group, "allocate_lock", self.schedule.lock)
        patch.setattr(group, "running_loop", self.running_loop)
        patch.setattr(commit_module, "timestamp", lambda: "")
        self.disk = Disk(self.schedule, fault, random.randrange(6))
        self.commit = Commit(RUN, self.disk, Chain(RUN), RunState(), NoBodies())
        self.commit._applying = self.schedule.modules()["threading"].RLock()
        self.threads = [Appender(self, f"t{n}", random.randint(1, 4)) for n in range(random.randint(1, 4))]
        self.tasks = [Appender(self, f"a{n}", random.randint(1, 3)) for n in range(random.randint(0, 4))]
        self.sleepiness = random.choice([0.0, 0.0, 0.3])
        self.late = 0.0
        self.blocked = False
        self.looping: Any = None
        self.loop: Loop | None = None

    def running_loop(self) -> Loop | None:
        return self.loop if self.schedule.current is self.looping else None

    def on_disk(self) -> list[str]:
        return [str(event.step) for event in scan(b"".join(self.disk.lines[: self.disk.synced]), RUN).events]

    def run(self) -> None:
        """Play to the end, close the log and check it."""
        workers = [self.schedule.spawn(appender.name, appender.thread) for appender in self.threads]
        workers[0].interruptible = True
        if self.tasks:
            loop = self.loop = Loop(self.schedule, passes_by=Crash)
            tasks = [appender.task() for appender in self.tasks]
            self.looping = self.schedule.spawn("loop", lambda: loop.run(tasks))
            workers.append(self.looping)

        def close() -> None:
            self.schedule.pause(lambda: all(worker.done for worker in workers))
            try:
                self.commit.close()
            except Crash:
                assert self.disk.failed

        self.schedule.spawn("main", close)
        self.schedule.run(expected=(Crash, KeyboardInterrupt))
        assert self.disk.closed
        self._check()

    def _check(self) -> None:
        found = scan(b"".join(self.disk.lines), RUN)
        assert found.verdict == "clean"
        written = [str(event.step) for event in found.events]
        assert len(set(written)) == len(written), "an event was written twice"
        everybody = (*self.threads, *self.tasks)
        for appender in everybody:
            own = [name for name in written if name.startswith(appender.name + ".")]
            assert own == [name for name in appender.submitted if name in own], "order was lost"
            assert set(appender.acknowledged) <= set(written)
            assert not set(appender.failed) & set(appender.acknowledged)
        assert self.commit.state.seq == len(self.disk.lines) - 1 or self.disk.failed or self.schedule.hurt
        if not self.disk.failed and not self.schedule.hurt:
            assert len(written) == sum(len(appender.syncs) for appender in everybody)
            assert not any(appender.failed for appender in everybody)


def play(seed: int, **how: Any) -> Play:
    """Play one schedule. Its failure names the seed."""
    with pytest.MonkeyPatch.context() as patch:
        found = Play(seed, patch, **how)
        try:
            found.run()
        except BaseException as error:
            error.add_note(f"seed {seed}, {how}")
            raise
        return found


def every_append_returns_when_its_event_is_on_disk(seeds: range) -> None:
    for seed in seeds:
        found = play(seed)
        assert found.late == 0, f"seed {seed}: somebody was not woken"


def a_dead_leader_takes_its_batch_along(seeds: range) -> None:
    died = 0
    for seed in seeds:
        found = play(seed, fault="crash")
        lost = {str(name) for batch in found.disk.failed for name in names_in(batch)}
        for appender in (*found.threads, *found.tasks):
            assert not lost & set(appender.acknowledged)
        died += bool(found.disk.failed)
    assert died > len(seeds) // 3


def a_full_disk_fails_its_batch_and_no_later_event_goes_without_an_earlier_one(seeds: range) -> None:
    failed = 0
    for seed in seeds:
        found = play(seed, fault="full")
        assert found.late == 0, f"seed {seed}: somebody was not woken"
        lost = {str(name) for batch in found.disk.failed for name in names_in(batch)}
        for appender in (*found.threads, *found.tasks):
            assert not lost & set(appender.acknowledged)
            told = [name for name in appender.submitted if name in lost and name in appender.failed]
            untold = [name for name in appender.submitted if name in lost and name not in appender.failed]
            if untold and not told:
                # It went on without knowing; nothing that it did later may be in the log.
                later = appender.submitted[appender.submitted.index(untold[0]) + 1 :]
                assert not set(later) & set(appender.acknowledged)
        failed += bool(found.disk.failed)
    assert failed > len(seeds) // 3


def an_interruption_anywhere_loses_nothing_acknowledged_and_stops_nobody(seeds: range) -> None:
    hurt = sum(play(seed, interruptions=2).schedule.hurt for seed in seeds)
    assert hurt > len(seeds) // 10


def test_who_need_not_wait_for_the_disk_does_not_sync_for_those_who_do():
    disk: Any = Disk(Schedule(0, []), "", 0)
    disk._schedule = SimpleNamespace(pause=lambda: None)
    commit = Commit(RUN, disk, Chain(RUN), RunState(), NoBodies())

    def submitted(name: str, *, sync: bool) -> Entry:
        entry = Entry("run.signal", name, b"{}", [], sync=sync)
        commit.submit(entry)
        return entry

    alone = submitted("alone", sync=False)
    commit.wait(alone)
    assert alone.done, "nobody else would write it"
    outcome, intent = submitted("outcome", sync=True), submitted("intent", sync=False)
    commit.wait(intent)
    assert (intent.done, len(disk.lines)) == (False, 1)
    commit.wait(outcome)
    assert intent.done
    assert names_in(disk.lines) == ["alone", "outcome", "intent"]
    assert disk.synced == 3


def names_in(lines: list[bytes]) -> list[str]:
    return [line.split(b'"step":"')[1].split(b'"')[0].decode() for line in lines]


MODELS = [
    every_append_returns_when_its_event_is_on_disk,
    a_dead_leader_takes_its_batch_along,
    a_full_disk_fails_its_batch_and_no_later_event_goes_without_an_earlier_one,
    an_interruption_anywhere_loses_nothing_acknowledged_and_stops_nobody,
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_schedules(model):
    model(SHORT if model is every_append_returns_when_its_event_is_on_disk else range(100))


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_many_schedules(model):
    model(LONG)
