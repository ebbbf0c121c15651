"""Sources may let go of input only when nobody could ask for it again, and are asked before a job goes back."""

from types import SimpleNamespace

import pytest

from spark_ckpt.driver.query.inputs import InputRetention, check_inputs, remember_in
from spark_ckpt.epochs.retention import RetentionReport
from spark_ckpt.errors import SourceInvalid
from spark_ckpt.store.store import Store


class Rememberer:
    """Notes what it is told."""

    def __init__(self, error=None):
        self.folder, self.released, self.checked, self.error = None, [], [], error

    def remember_in(self, folder):
        self.folder = folder

    def check_cursor(self, cursor, newest):
        self.checked.append((cursor, newest))
        if self.error:
            raise self.error

    def release(self, kept):
        if self.error:
            raise self.error
        self.released.append([each["n"] for each in kept])


class Log:
    """Epochs with their cursors; `owed`: those that the sink does not have."""

    def __init__(self, cursors, owed=(), latest=None):
        self._cursors, self._owed = cursors, owed
        self._latest = max(cursors, default=0) if latest is None else latest

    def state(self):
        briefs = [SimpleNamespace(epoch=epoch) for epoch in self._cursors]
        return SimpleNamespace(epochs=briefs, sinks=["out"], awaited=lambda sink: list(self._owed), latest=self._latest)

    def manifest(self, epoch):
        return SimpleNamespace(cursors=self._cursors[epoch], source_identities={})

    def manifests(self, epochs):
        return [self.manifest(epoch) for epoch in epochs]


def plan(source, log):
    nodes = [SimpleNamespace(name="in", source=source), SimpleNamespace(name="plain", source=object())]
    return SimpleNamespace(sources=nodes, store=SimpleNamespace(log=log), job="job")


def at(n):
    return {"in": {"n": n}}


FORGOT = RetentionReport(epochs=(1,))


def test_a_source_that_remembers_has_a_folder_of_its_own_in_the_store(tmp_path):
    source = Rememberer()
    remember_in(Store.open(str(tmp_path), "job"), [SimpleNamespace(name="in", source=source)])

    source.folder.write_bytes("x", b"1")
    assert (tmp_path / "sources" / "in" / "x").read_bytes() == b"1"


def test_a_source_may_let_go_of_what_every_kept_epoch_has_behind_it():
    source = Rememberer()
    InputRetention(plan(source, Log({5: at(50), 3: at(30), 4: at(40)}))).follow(FORGOT)

    assert source.released == [[30, 40, 50]]


def test_it_is_told_once_in_a_life_and_then_whenever_epochs_were_forgotten():
    source = Rememberer()
    retention = InputRetention(plan(source, Log({3: at(30)})))
    for report in (RetentionReport(), RetentionReport(), FORGOT, RetentionReport()):
        retention.follow(report)

    assert len(source.released) == 2


def test_nothing_goes_while_the_oldest_kept_epoch_is_not_published():
    source = Rememberer()
    InputRetention(plan(source, Log({3: at(30), 4: at(40)}, owed=(3, 4)))).follow(FORGOT)
    assert source.released == []

    InputRetention(plan(source, Log({3: at(30), 4: at(40)}, owed=(4,)))).follow(FORGOT)
    assert source.released == [[30, 40]]


def test_nothing_goes_while_an_epoch_is_kept_from_before_the_source_was_there():
    source = Rememberer()
    InputRetention(plan(source, Log({3: {}, 4: at(40)}))).follow(FORGOT)

    assert source.released == []


def test_trouble_with_letting_go_does_not_end_the_job(caplog):
    InputRetention(plan(Rememberer(SourceInvalid("the disk is away")), Log({3: at(30)}))).follow(FORGOT)

    assert "the disk is away" in caplog.text


def test_going_back_asks_about_everything_between_the_epoch_and_the_newest_one():
    source, log = Rememberer(), Log({3: at(30), 5: at(50)})
    check_inputs(plan(source, log), SimpleNamespace(cursors=at(30), source_identities={}))
    check_inputs(plan(source, log), SimpleNamespace(cursors={}, source_identities={}))

    assert source.checked == [({"n": 30}, {"n": 50}), (None, {"n": 50})]


def test_input_that_is_gone_is_told_before_the_job_goes_back():
    with pytest.raises(SourceInvalid, match="gone"):
        check_inputs(
            plan(Rememberer(SourceInvalid("gone")), Log({3: at(30)})), SimpleNamespace(cursors={}, source_identities={})
        )


def test_a_new_job_has_nothing_to_go_back_over():
    source = Rememberer()
    check_inputs(plan(source, Log({})), SimpleNamespace(cursors={}, source_identities={}))

    assert source.checked == []


def test_a_source_that_is_another_one_now_begins_at_its_start():
    source = Rememberer(SourceInvalid("gone"))
    check_inputs(
        plan(source, Log({3: at(30)})), SimpleNamespace(cursors=at(20), source_identities={}), frozenset({"in"})
    )

    assert source.checked == []


def test_going_back_before_a_source_was_replaced_asks_the_old_one_nothing_about_the_new_ones_cursors():
    source, log = Rememberer(SourceInvalid("gone")), Log({3: at(30), 5: at(50)})
    log.manifest = lambda epoch: SimpleNamespace(cursors=at(50), source_identities={"in": {"path": "/new"}})
    check_inputs(plan(source, log), SimpleNamespace(cursors=at(30), source_identities={"in": {"path": "/old"}}))

    assert source.checked == []
