"""Sources release input that no retained epoch needs, and validate their cursor before a restore."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from incarnation_kit import FakeSource
from run_kit import Bench, ended, failed

from spark_ckpt.driver.query.inputs import InputRetention, check_inputs, remember_in
from spark_ckpt.driver.run import Run
from spark_ckpt.epochs.identity import Confirmed, Found
from spark_ckpt.epochs.retention import RetentionReport
from spark_ckpt.errors import RowsLost, SourceInvalid
from spark_ckpt.store.store import Store


class StatefulSource:
    """A source that records the calls of its lifecycle."""

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
    """Epochs with their cursors; `unpublished`: those that the sink does not have. `newest`: newest incarnation."""

    own_incarnation = 1

    def __init__(self, cursors, unpublished=(), latest=None, newest=1):
        self._cursors, self._unpublished, self._newest = cursors, unpublished, newest
        self._latest = max(cursors, default=0) if latest is None else latest

    def commit(self, epoch, cursors):
        self._cursors[epoch], self._latest = cursors, epoch

    def state(self):
        briefs = [SimpleNamespace(epoch=epoch) for epoch in self._cursors]
        return SimpleNamespace(
            epochs=briefs,
            incarnation=self._newest,
            sinks=["out"],
            unsettled=lambda sink: list(self._unpublished),
            latest=self._latest,
            newest_readable=lambda read: read(self._latest) if self._latest else None,
        )

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


def test_a_stateful_source_has_its_own_folder_in_the_store(tmp_path):
    source = StatefulSource()
    remember_in(Store.open(str(tmp_path), "job"), [SimpleNamespace(name="in", source=source)])

    source.folder.write_bytes("x", b"1")
    assert (tmp_path / "sources" / "in" / "x").read_bytes() == b"1"


def test_a_source_releases_input_that_every_kept_epoch_has_read():
    source = StatefulSource()
    InputRetention(plan(source, Log({5: at(50), 3: at(30), 4: at(40)}))).follow(FORGOT)

    assert source.released == [[30, 40, 50]]


def test_release_is_called_once_per_incarnation_and_after_each_retention():
    source = StatefulSource()
    retention = InputRetention(plan(source, Log({3: at(30)})))
    for report in (RetentionReport(), RetentionReport(), FORGOT, RetentionReport()):
        retention.follow(report)

    assert len(source.released) == 2


def test_input_of_an_unpublished_oldest_epoch_is_not_released():
    source = StatefulSource()
    InputRetention(plan(source, Log({3: at(30), 4: at(40)}, unpublished=(3, 4)))).follow(FORGOT)
    assert source.released == []

    InputRetention(plan(source, Log({3: at(30), 4: at(40)}, unpublished=(4,)))).follow(FORGOT)
    assert source.released == [[30, 40]]


def test_a_replaced_driver_releases_nothing():
    """The newer one may have restored the beginning, before the oldest kept epoch."""
    source = StatefulSource()
    InputRetention(plan(source, Log({3: at(30), 4: at(40)}, newest=2))).follow(FORGOT)

    assert source.released == []


def test_a_driver_that_restored_the_beginning_releases_nothing_before_its_first_epoch():
    source, log = StatefulSource(), Log({3: at(30), 4: at(40)}, latest=0)
    retention = InputRetention(plan(source, log))
    retention.follow(RetentionReport())
    assert source.released == []

    log.commit(5, at(10))
    retention.follow(RetentionReport())
    assert source.released == [[30, 40, 10]]


def test_no_input_is_released_while_a_kept_epoch_is_older_than_the_source():
    source = StatefulSource()
    InputRetention(plan(source, Log({3: {}, 4: at(40)}))).follow(FORGOT)

    assert source.released == []


def test_a_failed_release_does_not_end_the_job(caplog):
    InputRetention(plan(StatefulSource(SourceInvalid("the disk is away")), Log({3: at(30)}))).follow(FORGOT)

    assert "the disk is away" in caplog.text


def test_a_restore_checks_the_cursors_of_its_epoch_and_the_newest_one():
    source, log = StatefulSource(), Log({3: at(30), 5: at(50)})
    check_inputs(plan(source, log), SimpleNamespace(cursors=at(30), source_identities={}))
    check_inputs(plan(source, log), SimpleNamespace(cursors={}, source_identities={}))

    assert source.checked == [({"n": 30}, {"n": 50}), (None, {"n": 50})]


def test_missing_input_is_refused_before_the_restore():
    with pytest.raises(SourceInvalid, match="gone"):
        check_inputs(
            plan(StatefulSource(SourceInvalid("gone")), Log({3: at(30)})),
            SimpleNamespace(cursors={}, source_identities={}),
        )


def test_a_new_job_has_no_cursor_to_check():
    source = StatefulSource()
    check_inputs(plan(source, Log({})), SimpleNamespace(cursors={}, source_identities={}))

    assert source.checked == []


def test_a_replaced_source_begins_at_its_start_without_a_check():
    source = StatefulSource(SourceInvalid("gone"))
    check_inputs(
        plan(source, Log({3: at(30)})), SimpleNamespace(cursors=at(20), source_identities={}), frozenset({"in"})
    )

    assert source.checked == []


def test_a_restore_to_before_a_replacement_does_not_check_the_new_sources_cursors():
    source, log = StatefulSource(SourceInvalid("gone")), Log({3: at(30), 5: at(50)})
    log.manifest = lambda epoch: SimpleNamespace(cursors=at(50), source_identities={"in": {"path": "/new"}})
    check_inputs(plan(source, log), SimpleNamespace(cursors=at(30), source_identities={"in": {"path": "/old"}}))

    assert source.checked == []


class Behind9(FakeSource):
    def past_lost(self, spark, cursor):
        return {"n": 9}


def test_the_advice_of_a_run_repeats_no_confirmation_that_its_epochs_have(tmp_path, monkeypatch):
    """A new sink whose topic has no id yet would count as replaced once more."""
    bench = Bench(tmp_path, monkeypatch)
    bench.source_type = Behind9
    bench.decide(1, cursors={"in": {"n": 5}})
    bench.endings = [failed(progressed=True, error=RowsLost("rows are gone"))]
    plan = replace(
        bench.plan(), confirmed=Confirmed(new_sinks=frozenset({"out"})), found=Found({"in": {}}, {"out": {}})
    )
    assert (
        "or continue without the rows: job.start(accept_lost_rows='in') ("
        in ended(Run.start(plan, "latest", False, [])).hint
    )
