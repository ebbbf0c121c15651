"""Settings of a job: arguments of `Job`, the same as `spark.ckpt.*` conf keys, and their defaults.

Arguments win over conf keys, conf keys over defaults. An unknown key is an error that names the nearest known one.
Durations are texts ("5 seconds", "200 ms", "5m", "1 hour 30 min"), `timedelta`s or numbers of seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self, TypedDict

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.wording import did_you_mean, snake_case

CONF_PREFIX = "spark.ckpt."

_UNIT_MS = {
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400_000),
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)[\s,]*")


def duration_ms(value: object) -> int:
    """Return the milliseconds of a duration: "5 seconds", "5m", "1 hour 30 min", a `timedelta`, or a number of seconds.

    Raises ValueError for anything else, and for more than 366 days.
    """
    if isinstance(value, timedelta):
        return _checked_ms(value / timedelta(milliseconds=1), value)
    # A bool is an int in Python: True must not mean one second.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        # No TypeError: pydantic adds the setting's name to a ValueError only.
        raise ValueError(f"a duration such as '5 seconds' was expected, not {value!r}")  # noqa: TRY004
    if isinstance(value, int | float):
        return _checked_ms(value * 1000, value)
    # Spark's own texts may begin with "interval".
    text = value.lower().strip().removeprefix("interval ").strip()
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text) or any(unit not in _UNIT_MS for _, unit in parts):
        raise ValueError(f"'{value}' is no duration; write for example '5 seconds', '200 ms', '5m' or '1 hour 30 min'")
    return _checked_ms(sum(float(count) * _UNIT_MS[unit] for count, unit in parts), value)


def _checked_ms(milliseconds: float, written: object) -> int:
    # One comparison, which is false for NaN, too.
    if not 0 <= milliseconds <= 366 * 86_400_000:
        raise ValueError(f"{written!r} is outside of 0 to 366 days")
    return round(milliseconds)


def checked_duration_ms(what: str, value: object) -> int:
    """Return the milliseconds of a duration that a user gave as `what`. Raises `ConfigInvalid`, which names it."""
    try:
        return duration_ms(value)
    except ValueError as error:
        raise ConfigInvalid(
            f"{what}: {error}", hint="a duration is for example '5 seconds', '5m' or a timedelta"
        ) from None


Duration = Annotated[int, BeforeValidator(duration_ms)]
OptionalDuration = Annotated[int | None, BeforeValidator(duration_ms)]

EVERY_BATCH = "every batch"
"""Interval with which each micro-batch ends an epoch."""


def interval_ms(value: object) -> int:
    """Return the milliseconds from one epoch to the next, 0 for `EVERY_BATCH`. Raises ValueError."""
    if isinstance(value, str) and value.strip().lower() == EVERY_BATCH:
        return 0
    try:
        return duration_ms(value)
    except ValueError as error:
        raise ValueError(f"{error}; '{EVERY_BATCH}' is an interval, too") from None


Interval = Annotated[int, BeforeValidator(interval_ms)]


def _names(value: object) -> object:
    """Split a text at commas; leave several texts as they are."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


def _duration(name: str, default: str, description: str) -> int:
    field: int = Field(duration_ms(default), alias=name, description=f"{description}; default {default}")
    return field


PAGE = "127.0.0.1:4141"
"""Address of a job's page if it is requested without one."""


DurationText = str | float | timedelta
"""A duration as a user writes it: "5 seconds", "5m", a `timedelta`, or a number of seconds."""


class JobSettings(TypedDict, total=False):
    """Settings of `Job(...)` for editors and type checkers; `JobConfig` has their meaning and defaults."""

    interval: DurationText
    standby_interval: DurationText | None
    timeout: DurationText
    trigger: DurationText
    lease: DurationText
    publish_timeout: DurationText
    store_patience: DurationText
    stop_timeout: DurationText | None
    handle_signals: bool
    key_groups: int | None
    shuffle_partitions: int | None
    max_failed_epochs: int
    max_unpublished: int
    send_early: bool
    max_in_flight: int
    keep_epochs: int
    keep_age: DurationText
    keep_thinned: DurationText
    keep_for_readers: DurationText
    line_interval: DurationText
    stages: str | Sequence[str]
    takeover: bool
    standby: bool
    accept_new_sink: str | Sequence[str]
    accept_new_source: str | Sequence[str]
    accept_moved: str | Sequence[str]
    accept_dropped_operator: str | Sequence[str]
    accept_dropped_source: str | Sequence[str]
    accept_lost_rows: str | Sequence[str]
    run_dir: str | None
    local_dir: str | Path | None
    trace_dir: str | Path | None
    metrics: str | Sequence[str]
    lag_interval: DurationText
    lineage: str | None
    ui: str | None


class JobConfig(BaseModel):
    """All settings of a job, under the names of arguments and conf keys (`interval`, not `interval_ms`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    interval_ms: Interval = _duration(
        "interval", "10 seconds", "time between two epochs, or `every batch`: each micro-batch ends an epoch"
    )
    standby_interval_ms: OptionalDuration = Field(
        None,
        alias="standby_interval",
        ge=1,
        description="time between two epochs while a standby waits, if it is shorter than `interval`: `docs/second-driver.md`; "
        "default: `interval`",
    )
    timeout_ms: Duration = _duration("timeout", "10 minutes", "an epoch that takes longer is aborted")
    trigger_ms: Duration = _duration("trigger", "100 milliseconds", "shortest time between two micro-batches")
    lease_ms: Duration = _duration(
        "lease", "30 seconds", "a driver that does not renew its lease for this time may be replaced"
    )
    publish_timeout_ms: Duration = _duration(
        "publish_timeout", "10 minutes", "longest time to publish one epoch, retries included"
    )
    store_patience_ms: Duration = _duration(
        "store_patience",
        "10 minutes",
        "longest wait for the end of an outage: the store is full or unreachable, or the host cannot start Python workers",
    )
    stop_timeout_ms: OptionalDuration = Field(
        None,
        alias="stop_timeout",
        description="after SIGTERM or SIGINT the job waits this long for its final epoch, then ends without it; default three times"
        " its longest recent batch, 20 seconds at least",
    )
    handle_signals: bool = Field(
        True,
        description="stop the job with a final epoch at SIGTERM and SIGINT; turn it off if the program handles the signals itself",
    )
    key_groups: int | None = Field(
        None,
        ge=1,
        le=32768,
        description="number of parts of an operator's keys; change it with `spark-ckpt rescale`; default two for "
        "each task that runs at a time, four at least",
    )
    shuffle_partitions: int | None = Field(
        None,
        ge=1,
        description="number of tasks of each operator; you may change it between runs (with Spark's own operators: "
        "`spark-ckpt rescale`); default: as many as run at a time",
    )
    max_failed_epochs: int = Field(
        3, ge=0, description="failures in a row, without a committed epoch, before the run fails"
    )
    max_unpublished: int = Field(
        4, ge=1, description="committed epochs that a sink may lack before the job stops taking new ones"
    )
    send_early: bool = Field(
        False,
        description="send rows to Kafka sinks before their epoch is committed, in an open transaction: `docs/operations.md`",
    )
    max_in_flight: int = Field(
        1_000_000,
        ge=1,
        description="rows on an edge at which the job stops reading its sources, and that one batch takes from the edge at most",
    )
    keep_epochs: int = Field(20, ge=1, description="number of newest epochs that are kept")
    keep_age_ms: Duration = _duration("keep_age", "0 seconds", "epochs younger than this are kept too")
    keep_thinned_ms: OptionalDuration = Field(
        None,
        alias="keep_thinned",
        description="keep a selection of epochs up to this age: the newest 120 of the last hour, one per minute of that hour, "
        "one per hour before; default 2 days, or none if `keep_epochs` or `keep_age` is set",
    )
    keep_for_readers_ms: Duration = _duration(
        "keep_for_readers",
        "2 days",
        "longest time that epochs are kept for jobs that have not read their rows over an edge",
    )
    line_interval_ms: Duration = Field(
        60_000,
        alias="line_interval",
        ge=1000,
        description='with `protocol="index"`, `"aligned"`, `"unaligned"`: time from one common line to the next, 1 second at least;'
        " default 60 seconds",
    )
    stages: Names = Field(
        (), description="stages of the program that this process runs: `docs/stages.md`; default: all of them"
    )
    takeover: bool = Field(False, description="replace a live driver instead of refusing to start")
    standby: bool = Field(
        False,
        description="if another driver runs the job, wait as a standby and take over when it ends: `docs/second-driver.md`",
    )
    accept_new_sink: Names = Field(
        (),
        description="names of sinks with another table or topic: each gets the rows of the next epoch and later ones",
    )
    accept_new_source: Names = Field(
        (), description="names of sources with another table, topic or folder: each is read from its configured start"
    )
    accept_moved: Names = Field(
        (), description="names of sources and sinks whose table or folder was moved: they continue at the other path"
    )
    accept_dropped_operator: Names = Field(
        (), description="names of removed operators: the job continues without their state"
    )
    accept_dropped_source: Names = Field(
        (), description="names of removed sources: the job continues without them, with the state of their rows"
    )
    accept_lost_rows: Names = Field(
        (), description="names of sources that have lost unread rows: each continues at its first row behind them"
    )
    run_dir: str | None = Field(None, description="Spark's own checkpoint, disposable; default: inside the store")
    local_dir: Path | None = Field(
        None, description="local cache of state on every host; default: the temporary folder"
    )
    trace_dir: Path | None = Field(
        None,
        description="folder for records of the driver's decisions, for `spark-ckpt trace`; default: none",
    )

    metrics: Names = Field(
        (),
        description="exporters of metrics: `prometheus`, `prometheus://HOST:PORT`, `otel`, with commas; default: none",
    )
    lag_interval_ms: Duration = _duration(
        "lag_interval",
        "10 seconds",
        "time between two measurements of the sources' lag, while metrics or the page are on",
    )
    lineage: str | None = Field(
        None,
        description="namespace of the job in OpenLineage events; configure their destination in the client; default: none",
    )
    ui: str | None = Field(
        None, description="address at which the driver shows the job's page, such as `127.0.0.1:4141`; default: none"
    )

    @property
    def thinned_ms(self) -> int:
        """Age up to which epochs are kept, ever fewer of them; 0 for none."""
        if self.keep_thinned_ms is not None:
            return self.keep_thinned_ms
        # A user who says what is kept gets that, and no more.
        return 0 if {"keep_epochs", "keep_age_ms"} & self.model_fields_set else 2 * 24 * 3_600_000

    @property
    def every_batch(self) -> bool:
        """True if each micro-batch ends an epoch."""
        return self.interval_ms == 0

    @property
    def short_batch_ms(self) -> int | None:
        """Longest batch while a standby waits, since an epoch is no shorter than one; None for any length."""
        short_ms = self.standby_interval_ms
        return short_ms if short_ms is not None and short_ms < self.interval_ms else None

    def with_page(self, ui: bool | str | None) -> Self:
        """Return a copy with the page as a start requests it: True for the default address, None to keep the setting."""
        if ui is None:
            return self
        # False or an empty text turns the page off.
        return self.model_copy(update={"ui": PAGE if ui is True else ui or None})

    @classmethod
    def of(cls, arguments: Mapping[str, object], conf: Mapping[str, str]) -> Self:
        """Merge arguments over conf keys. Raises `ConfigInvalid` with the invalid key and the allowed values."""
        settings: dict[str, object] = {
            _known(key.removeprefix(CONF_PREFIX).replace(".", "_"), written=key): value  # Spark's keys have dots
            for key, value in conf.items()
            if key.startswith(CONF_PREFIX)
        }
        # None stands for an argument that was not given, so the conf key counts.
        settings |= {_known(name): value for name, value in arguments.items() if value is not None}
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise ConfigInvalid(_first_complaint(error), hint=f"known settings: {', '.join(setting_names())}") from None


def setting_names() -> list[str]:
    """Return the names that a user may write."""
    return [field.alias or name for name, field in JobConfig.model_fields.items()]


def _known(name: str, written: str | None = None) -> str:
    if name in setting_names():
        return name
    meant = did_you_mean(snake_case(name), setting_names()) or f"known settings: {', '.join(setting_names())}"
    raise ConfigInvalid(f"there is no setting '{written or name}'", hint=meant)


def _first_complaint(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"setting '{'.'.join(str(part) for part in first['loc'])}': {first['msg']}"
