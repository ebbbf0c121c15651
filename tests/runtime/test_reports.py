from spark_ckpt.coordination.reports import Report, latest_attempts


def report(step, partition, attempt, scope="", **body):
    return Report(step, partition, attempt, scope, body)


def test_a_map_task_that_ran_again_counts_once_with_its_latest_attempt():
    reports = [
        report("operator", 0, 7, "totals/0", n=1),
        report("operator", 0, 9, "totals/0", n=2),
        report("operator", 1, 8, "totals/1", n=3),
    ]

    assert [each.body["n"] for each in latest_attempts(reports)] == [2, 3]


def test_every_account_of_one_attempt_counts():
    reports = [report("tap", 0, 1, "a"), report("tap", 0, 1, "b")]

    assert len(latest_attempts(reports)) == 2


def test_steps_are_told_apart():
    reports = [report("input", 0, 1), report("tap", 0, 5)]

    assert len(latest_attempts(reports)) == 2


def test_diverting_steps_of_one_partition_in_several_stages_all_count():
    reports = [report("input", 0, 1, "rejected/1", rejected=2), report("input", 0, 9, "rejected/2", rejected=3)]

    assert sum(each.body["rejected"] for each in latest_attempts(reports)) == 5


def test_a_diverting_step_that_ran_again_counts_once_its_file_too():
    scopes = ["rejected/1", "rejected/1/file"]
    reports = [report("input", 0, attempt, scope) for attempt in (1, 2) for scope in scopes]

    assert [(each.attempt, each.scope) for each in latest_attempts(reports)] == [(2, scope) for scope in scopes]


def test_two_sinks_on_the_way_and_two_operators_each_have_tasks_of_their_own():
    reports = [
        report("operator", 0, 3, "first/0", n=1),
        report("operator", 0, 8, "second/0", n=2),
        report("tap", 0, 3, "one", n=3),
        report("tap", 0, 8, "two", n=4),
        report("tap", 0, 9, "two", n=5),
    ]
    assert sorted(each.body["n"] for each in latest_attempts(reports)) == [1, 2, 3, 5]
