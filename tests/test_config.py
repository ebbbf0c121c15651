from datetime import timedelta
from typing import get_type_hints

import pytest

from spark_ckpt.config import JobConfig, JobSettings, duration_ms, setting_names
from spark_ckpt.errors import ConfigInvalid


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("5 seconds", 5000),
        ("200 milliseconds", 200),
        ("2 minutes", 120_000),
        ("1.5 s", 1500),
        ("7 ms", 7),
        ("5m", 300_000),
        ("5 sec", 5000),
        ("1 hour", 3_600_000),
        ("1h30m", 5_400_000),
        ("interval 1 hour 30 minutes", 5_400_000),
        ("2 weeks", 1_209_600_000),
        (timedelta(minutes=2), 120_000),
        (2, 2000),
        (0.5, 500),
    ],
)
def test_durations_are_read_as_spark_users_write_them(written, ms):
    assert duration_ms(written) == ms


@pytest.mark.parametrize("written", ["", "5", "five seconds", "-1 seconds", "400 days", "5 fortnights"])
def test_a_text_that_is_no_duration_is_refused(written):
    with pytest.raises(ValueError, match=r"duration|outside"):
        duration_ms(written)


def test_arguments_win_over_conf_keys_and_conf_keys_over_defaults():
    config = JobConfig.of({"interval": "1 second"}, {"spark.ckpt.interval": "2 seconds", "spark.ckpt.keep.epochs": "7"})

    assert (config.interval_ms, config.keep_epochs, config.timeout_ms) == (1000, 7, 600_000)


def test_foreign_conf_keys_do_not_matter():
    assert JobConfig.of({}, {"spark.sql.shuffle.partitions": "2"}) == JobConfig.of({}, {})


def test_an_unknown_conf_key_is_refused_with_the_nearest_known_name():
    with pytest.raises(ConfigInvalid, match=r"spark\.ckpt\.intervall") as caught:
        JobConfig.of({}, {"spark.ckpt.intervall": "5 seconds"})

    assert caught.value.hint == "did you mean 'interval'?"


def test_an_unknown_argument_is_refused():
    with pytest.raises(ConfigInvalid, match="keyGroups"):
        JobConfig.of({"keyGroups": 3}, {})


@pytest.mark.parametrize(
    "setting", [{"key_groups": 0}, {"interval": "soon"}, {"max_unpublished": 0}, {"interval": ["5"]}]
)
def test_a_value_out_of_range_is_refused(setting):
    with pytest.raises(ConfigInvalid):
        JobConfig.of(setting, {})


@pytest.mark.parametrize("setting", ["interval", "lease", "stop_timeout", "line_interval"])
def test_a_duration_of_another_type_names_its_setting(setting):
    with pytest.raises(ConfigInvalid, match=f"setting '{setting}': .*a duration such as"):
        JobConfig.of({setting: ["5"]}, {})


def test_confirmed_names_are_a_text_with_commas_or_several_texts():
    conf = JobConfig.of({}, {"spark.ckpt.accept.new.sink": "out, side", "spark.ckpt.accept.moved": "in"})

    assert (conf.accept_new_sink, conf.accept_moved, conf.accept_new_source) == (("out", "side"), ("in",), ())
    assert JobConfig.of({"accept_new_source": ["a", "b"]}, {}).accept_new_source == ("a", "b")


@pytest.mark.parametrize(
    ("asked", "shown"), [(None, "0.0.0.0:80"), (True, "127.0.0.1:4141"), ("4142", "4142"), (False, None)]
)
def test_the_page_address_of_a_start_has_priority_over_the_setting(asked, shown):
    assert JobConfig.of({"ui": "0.0.0.0:80"}, {}).with_page(asked).ui == shown


def test_the_error_of_a_mistyped_interval_names_an_epoch_per_batch_too():
    with pytest.raises(ConfigInvalid, match="'every batch'"):
        JobConfig.of({"interval": "every bach"}, {})


def test_editors_complete_every_setting_and_no_other():
    assert sorted(get_type_hints(JobSettings)) == sorted(setting_names())
