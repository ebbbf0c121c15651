from spark_ckpt.coordination.reports import Report, add, latest_attempts


def report(step, partition, attempt, scope="", **body):
    return Report(step, partition, attempt, scope, body)


def test_a_map_task_that_ran_again_counts_once_with_its_latest_attempt():
    reports = [
        report("operator", 0, 7, "totals", n=1),
        report("operator", 0, 9, "totals", n=2),
        report("operator", 1, 8, "totals", n=3),
    ]

    assert [each.body["n"] for each in latest_attempts(reports)] == [2, 3]


def test_every_account_of_one_attempt_counts():
    reports = [report("tap", 0, 1, "a"), report("tap", 0, 1, "b")]

    assert len(latest_attempts(reports)) == 2


def test_steps_are_counted_separately():
    reports = [report("input", 0, 1), report("tap", 0, 5)]

    assert len(latest_attempts(reports)) == 2


def test_diverting_steps_of_one_partition_in_several_stages_all_count():
    reports = [report("input", 0, 1, "rejected/1", rejected=2), report("input", 0, 9, "rejected/2", rejected=3)]

    assert sum(each.body["rejected"] for each in latest_attempts(reports)) == 5


def test_a_diverting_step_that_ran_again_counts_once_its_file_too():
    scopes = ["rejected/1", "rejected/1/file"]
    reports = [report("input", 0, attempt, scope) for attempt in (1, 2) for scope in scopes]

    assert [(each.attempt, each.scope) for each in latest_attempts(reports)] == [(2, scope) for scope in scopes]


def test_two_taps_and_two_operators_count_their_own_tasks():
    reports = [
        report("operator", 0, 3, "first", n=1),
        report("operator", 0, 8, "second", n=2),
        report("tap", 0, 3, "one", n=3),
        report("tap", 0, 8, "two", n=4),
        report("tap", 0, 9, "two", n=5),
    ]
    assert sorted(each.body["n"] for each in latest_attempts(reports)) == [1, 2, 3, 5]


def call(partition, attempt, scope="totals", late=0, began=0.0, ended=0.0, snapshot=0.0, **body):
    times = {"began_ms": began, "ended_ms": ended, "snapshot_ms": snapshot}
    return report("operator", partition, attempt, scope, late=late, **times, **body)


def sent(*reports):
    found = []
    for each in reports:
        add(found, each)
    return found


def test_a_task_has_one_report_with_the_counts_and_times_of_all_its_calls():
    calls = [call(0, 1, late=2, began=100.0, ended=110.0, snapshot=1.5), call(0, 1, late=3, began=110.0, ended=140.0)]
    assert sent(*calls) == [call(0, 1, late=5, began=100.0, ended=140.0, snapshot=1.5)]


def test_the_last_call_names_the_files_of_the_task():
    (found,) = sent(call(0, 1, epoch=4), call(0, 1, epoch=4, groups=[0, 2], files=["f"]))
    assert (found.body["epoch"], found.body["groups"], found.body["files"]) == (4, [0, 2], ["f"])


def test_other_tasks_attempts_operators_and_steps_have_reports_of_their_own():
    reports = [
        call(0, 1),
        call(1, 1),
        call(0, 2),
        call(0, 2, "other"),
        report("tap", 0, 2, "a"),
        report("tap", 0, 2, "a"),
    ]
    assert sent(*reports) == reports
