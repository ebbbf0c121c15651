"""Docstrings, comments, names and pages follow the rules of words in CONTRIBUTING.md, in every folder that is listed here."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE: tuple[str, ...] = (
    "checkpoint_lab/__init__.py",
    "checkpoint_lab/application.py",
    "checkpoint_lab/barrier_lives.py",
    "checkpoint_lab/barrier_processes.py",
    "checkpoint_lab/barrier_storage.py",
    "checkpoint_lab/barrier_world.py",
    "checkpoint_lab/campaign.py",
    "checkpoint_lab/choosing.py",
    "checkpoint_lab/cli",
    "checkpoint_lab/clockwork.py",
    "checkpoint_lab/copying.py",
    "checkpoint_lab/diagram.py",
    "checkpoint_lab/drawing.py",
    "checkpoint_lab/drivers_node.py",
    "checkpoint_lab/drivers_oracles.py",
    "checkpoint_lab/drivers_schedules.py",
    "checkpoint_lab/drivers_world.py",
    "checkpoint_lab/durable.py",
    "checkpoint_lab/eager.py",
    "checkpoint_lab/explore.py",
    "checkpoint_lab/faults.py",
    "checkpoint_lab/graphs.py",
    "checkpoint_lab/job.py",
    "checkpoint_lab/job_recovery.py",
    "checkpoint_lab/leaks.py",
    "checkpoint_lab/lease_node.py",
    "checkpoint_lab/lease_oracles.py",
    "checkpoint_lab/lease_picture.py",
    "checkpoint_lab/lease_returns.py",
    "checkpoint_lab/lease_world.py",
    "checkpoint_lab/lines.py",
    "checkpoint_lab/long_lives.py",
    "checkpoint_lab/message_world.py",
    "checkpoint_lab/network.py",
    "checkpoint_lab/operated_driver.py",
    "checkpoint_lab/oracles.py",
    "checkpoint_lab/outside_world.py",
    "checkpoint_lab/picture.py",
    "checkpoint_lab/recovering.py",
    "checkpoint_lab/reduction.py",
    "checkpoint_lab/schedules.py",
    "checkpoint_lab/scripted.py",
    "checkpoint_lab/shrink.py",
    "checkpoint_lab/spark_batches.py",
    "checkpoint_lab/spark_deciding.py",
    "checkpoint_lab/spark_driver.py",
    "checkpoint_lab/spark_identities.py",
    "checkpoint_lab/spark_restores.py",
    "checkpoint_lab/spark_retention.py",
    "checkpoint_lab/spark_rows.py",
    "checkpoint_lab/spark_run.py",
    "checkpoint_lab/spark_sink.py",
    "checkpoint_lab/spark_store.py",
    "checkpoint_lab/spark_world.py",
    "checkpoint_lab/state.py",
    "checkpoint_lab/stored_size.py",
    "checkpoint_lab/story.py",
    "checkpoint_lab/surroundings.py",
    "checkpoint_lab/timed.py",
    "checkpoint_lab/timed_barrier.py",
    "checkpoint_lab/truth.py",
    "checkpoint_lab/verbs.py",
    "checkpoint_lab/violations.py",
    "checkpoint_lab/world.py",
    "checkpoint_lab/zombies.py",
    "checkpoint_protocols/__init__.py",
    "checkpoint_protocols/acknowledgements.py",
    "checkpoint_protocols/barrier/__init__.py",
    "checkpoint_protocols/barrier/messages.py",
    "checkpoint_protocols/barrier/operator.py",
    "checkpoint_protocols/barrier/settings.py",
    "checkpoint_protocols/barrier/sink.py",
    "checkpoint_protocols/checkpoints",
    "checkpoint_protocols/graph.py",
    "checkpoint_protocols/ids.py",
    "checkpoint_protocols/incarnation.py",
    "checkpoint_protocols/lease",
    "checkpoint_protocols/machine.py",
    "checkpoint_protocols/menu.py",
    "checkpoint_protocols/message_logging",
    "checkpoint_protocols/message_machine.py",
    "checkpoint_protocols/receipt_order.py",
    "checkpoint_protocols/receipts.py",
    "checkpoint_protocols/record_fields.py",
    "checkpoint_protocols/recovery.py",
    "checkpoint_protocols/snapshots/__init__.py",
    "checkpoint_protocols/snapshots/acyclic.py",
    "checkpoint_protocols/snapshots/coordinator.py",
    "checkpoint_protocols/snapshots/cyclic.py",
    "checkpoint_protocols/snapshots/epochs.py",
    "checkpoint_protocols/snapshots/markers.py",
    "checkpoint_protocols/snapshots/partial_recovery.py",
    "checkpoint_protocols/snapshots/records.py",
    "checkpoint_protocols/snapshots/wall_clock.py",
    "checkpoint_protocols/snapshots/worker.py",
    "checkpoint_protocols/transport.py",
    "checkpoint_protocols/vocabulary.py",
    "checkpoint_protocols/writer_fence.py",
    "connectors/spark_ckpt_delta/__init__.py",
    "connectors/spark_ckpt_delta/asking.py",
    "connectors/spark_ckpt_delta/changes.py",
    "connectors/spark_ckpt_delta/declared.py",
    "connectors/spark_ckpt_delta/fits.py",
    "connectors/spark_ckpt_delta/log.py",
    "connectors/spark_ckpt_delta/marker.py",
    "connectors/spark_ckpt_delta/merging.py",
    "connectors/spark_ckpt_delta/orphans.py",
    "connectors/spark_ckpt_delta/publisher.py",
    "connectors/spark_ckpt_delta/reading.py",
    "connectors/spark_ckpt_delta/refusals.py",
    "connectors/spark_ckpt_delta/repair.py",
    "connectors/spark_ckpt_delta/rules.py",
    "connectors/spark_ckpt_delta/sink.py",
    "connectors/spark_ckpt_delta/source.py",
    "connectors/spark_ckpt_delta/spark_offset.py",
    "connectors/spark_ckpt_delta/staged.py",
    "connectors/spark_ckpt_delta/stream.py",
    "connectors/spark_ckpt_files",
    "connectors/spark_ckpt_kafka/__init__.py",
    "connectors/spark_ckpt_kafka/avro_columns.py",
    "connectors/spark_ckpt_kafka/confluent_producer.py",
    "connectors/spark_ckpt_kafka/control.py",
    "connectors/spark_ckpt_kafka/declared.py",
    "connectors/spark_ckpt_kafka/gate.py",
    "connectors/spark_ckpt_kafka/kafka_python_producer.py",
    "connectors/spark_ckpt_kafka/lane.py",
    "connectors/spark_ckpt_kafka/lane_rows.py",
    "connectors/spark_ckpt_kafka/library.py",
    "connectors/spark_ckpt_kafka/limits.py",
    "connectors/spark_ckpt_kafka/network.py",
    "connectors/spark_ckpt_kafka/options.py",
    "connectors/spark_ckpt_kafka/positions.py",
    "connectors/spark_ckpt_kafka/producer.py",
    "connectors/spark_ckpt_kafka/protobuf_columns.py",
    "connectors/spark_ckpt_kafka/publisher.py",
    "connectors/spark_ckpt_kafka/publishing.py",
    "connectors/spark_ckpt_kafka/record_rules.py",
    "connectors/spark_ckpt_kafka/refusals.py",
    "connectors/spark_ckpt_kafka/registry.py",
    "connectors/spark_ckpt_kafka/repair.py",
    "connectors/spark_ckpt_kafka/rows.py",
    "connectors/spark_ckpt_kafka/sink.py",
    "connectors/spark_ckpt_kafka/source.py",
    "connectors/spark_ckpt_kafka/subscription.py",
    "connectors/spark_ckpt_kafka/transaction.py",
    "connectors/spark_ckpt_kafka/values.py",
    "connectors/spark_ckpt_kafka/wire.py",
    "examples/spark_ckpt_demo",
    "spark_ckpt/__init__.py",
    "spark_ckpt/__main__.py",
    "spark_ckpt/api",
    "spark_ckpt/config.py",
    "spark_ckpt/connector.py",
    "spark_ckpt/connector_parts",
    "spark_ckpt/connectors.py",
    "spark_ckpt/content.py",
    "spark_ckpt/coordination/__init__.py",
    "spark_ckpt/coordination/ack_records.py",
    "spark_ckpt/coordination/action_parts.py",
    "spark_ckpt/coordination/ahead.py",
    "spark_ckpt/coordination/epoch_builder.py",
    "spark_ckpt/coordination/holding.py",
    "spark_ckpt/coordination/incarnation.py",
    "spark_ckpt/coordination/job_shape.py",
    "spark_ckpt/coordination/manifests.py",
    "spark_ckpt/coordination/markers.py",
    "spark_ckpt/coordination/messages.py",
    "spark_ckpt/coordination/patience.py",
    "spark_ckpt/coordination/publication.py",
    "spark_ckpt/coordination/renewals.py",
    "spark_ckpt/coordination/reports.py",
    "spark_ckpt/coordination/sending.py",
    "spark_ckpt/coordination/standby.py",
    "spark_ckpt/coordination/upkeep.py",
    "spark_ckpt/coordination/watermarks.py",
    "spark_ckpt/driver/__init__.py",
    "spark_ckpt/driver/admission.py",
    "spark_ckpt/driver/announcer.py",
    "spark_ckpt/driver/answering.py",
    "spark_ckpt/driver/batch_phases.py",
    "spark_ckpt/driver/bootstrap.py",
    "spark_ckpt/driver/checkpoint_seed.py",
    "spark_ckpt/driver/companion.py",
    "spark_ckpt/driver/control_source.py",
    "spark_ckpt/driver/coordinator.py",
    "spark_ckpt/driver/dealing.py",
    "spark_ckpt/driver/edge_stream.py",
    "spark_ckpt/driver/effects.py",
    "spark_ckpt/driver/epoch_clock.py",
    "spark_ckpt/driver/follower.py",
    "spark_ckpt/driver/identities.py",
    "spark_ckpt/driver/inputs.py",
    "spark_ckpt/driver/job_plan.py",
    "spark_ckpt/driver/lag_watch.py",
    "spark_ckpt/driver/lanes.py",
    "spark_ckpt/driver/lease_keeper.py",
    "spark_ckpt/driver/local_folder.py",
    "spark_ckpt/driver/lookout.py",
    "spark_ckpt/driver/materializing.py",
    "spark_ckpt/driver/offset_log.py",
    "spark_ckpt/driver/progress.py",
    "spark_ckpt/driver/publishing.py",
    "spark_ckpt/driver/query_failures.py",
    "spark_ckpt/driver/rehearsal.py",
    "spark_ckpt/driver/rescale.py",
    "spark_ckpt/driver/run.py",
    "spark_ckpt/driver/showing.py",
    "spark_ckpt/driver/shown_cursors.py",
    "spark_ckpt/driver/signals.py",
    "spark_ckpt/driver/source_watch.py",
    "spark_ckpt/driver/stage.py",
    "spark_ckpt/driver/stage_frames.py",
    "spark_ckpt/driver/stage_query.py",
    "spark_ckpt/driver/standing_by.py",
    "spark_ckpt/driver/state_check.py",
    "spark_ckpt/driver/upkeep.py",
    "spark_ckpt/driver/warm_up.py",
    "spark_ckpt/failpoints.py",
    "spark_ckpt/json_values.py",
    "spark_ckpt/place.py",
    "spark_ckpt/plan/__init__.py",
    "spark_ckpt/plan/graph.py",
    "spark_ckpt/plan/graph_edges.py",
    "spark_ckpt/plan/graph_nodes.py",
    "spark_ckpt/plan/graph_text.py",
    "spark_ckpt/plan/join_plan.py",
    "spark_ckpt/plan/onward_plan.py",
    "spark_ckpt/plan/plan_order.py",
    "spark_ckpt/plan/session_settings.py",
    "spark_ckpt/plan/stateless.py",
    "spark_ckpt/plan/stateless_graph.py",
    "spark_ckpt/plan/users_line.py",
    "spark_ckpt/plan/window_lineage.py",
    "spark_ckpt/recovery/__init__.py",
    "spark_ckpt/recovery/plan.py",
    "spark_ckpt/recovery/text.py",
    "spark_ckpt/spark_internals",
    "spark_ckpt/spark_session",
    "spark_ckpt/storage_errors.py",
    "spark_ckpt/store/__init__.py",
    "spark_ckpt/store/acknowledged.py",
    "spark_ckpt/store/continuity.py",
    "spark_ckpt/store/ddl.py",
    "spark_ckpt/store/delta_log.py",
    "spark_ckpt/store/durable.py",
    "spark_ckpt/store/epoch_log.py",
    "spark_ckpt/store/existing.py",
    "spark_ckpt/store/folders.py",
    "spark_ckpt/store/holder.py",
    "spark_ckpt/store/inflight.py",
    "spark_ckpt/store/location.py",
    "spark_ckpt/store/log_content.py",
    "spark_ckpt/store/log_rows.py",
    "spark_ckpt/store/log_table.py",
    "spark_ckpt/store/names.py",
    "spark_ckpt/store/outbox.py",
    "spark_ckpt/store/parts.py",
    "spark_ckpt/store/proposals.py",
    "spark_ckpt/store/records.py",
    "spark_ckpt/store/retention.py",
    "spark_ckpt/store/schemas.py",
    "spark_ckpt/store/schemes.py",
    "spark_ckpt/store/sinks_ahead.py",
    "spark_ckpt/store/sinks_behind.py",
    "spark_ckpt/store/standbys.py",
    "spark_ckpt/store/state_table.py",
    "spark_ckpt/store/store.py",
    "spark_ckpt/store/torn.py",
    "spark_ckpt/store/trim.py",
    "spark_ckpt/store/turns.py",
    "spark_ckpt/store/upkeep.py",
    "spark_ckpt/store/ways_back.py",
    "spark_ckpt/store/widening.py",
    "spark_ckpt/tasks",
    "spark_ckpt/testing",
    "spark_ckpt/trace",
    "spark_ckpt/wording.py",
    "spark_rewind/__init__.py",
    "spark_rewind/adopt/__init__.py",
    "spark_rewind/adopt/adopting.py",
    "spark_rewind/adopt/operators.py",
    "spark_rewind/adopt/output.py",
    "spark_rewind/adopt/plan.py",
    "spark_rewind/adopt/sources.py",
    "spark_rewind/adopt/state.py",
    "spark_rewind/adopt/unfinished.py",
    "spark_rewind/applying.py",
    "spark_rewind/carrying.py",
    "spark_rewind/checkpoint.py",
    "spark_rewind/checkpoint_copy.py",
    "spark_rewind/cli",
    "spark_rewind/connections.py",
    "spark_rewind/declared.py",
    "spark_rewind/drafting.py",
    "spark_rewind/durable.py",
    "spark_rewind/explaining.py",
    "spark_rewind/fences.py",
    "spark_rewind/file_log_copy.py",
    "spark_rewind/folders.py",
    "spark_rewind/graph.py",
    "spark_rewind/inputs.py",
    "spark_rewind/intervals.py",
    "spark_rewind/journal.py",
    "spark_rewind/line.py",
    "spark_rewind/liveness.py",
    "spark_rewind/notes.py",
    "spark_rewind/pin_listener.py",
    "spark_rewind/pin_schedule.py",
    "spark_rewind/pinned_points.py",
    "spark_rewind/pinning.py",
    "spark_rewind/pins.py",
    "spark_rewind/places.py",
    "spark_rewind/plan.py",
    "spark_rewind/planning.py",
    "spark_rewind/point_reports.py",
    "spark_rewind/positions.py",
    "spark_rewind/reading.py",
    "spark_rewind/records.py",
    "spark_rewind/redrafting.py",
    "spark_rewind/replacing.py",
    "spark_rewind/shifts.py",
    "spark_rewind/sink_logs.py",
    "spark_rewind/sizes.py",
    "spark_rewind/source_files.py",
    "spark_rewind/stages.py",
    "spark_rewind/state_copy.py",
    "spark_rewind/state_versions.py",
    "spark_rewind/swapping.py",
    "spark_rewind/table_commits.py",
    "spark_rewind/table_content.py",
    "spark_rewind/table_holding.py",
    "spark_rewind/tables.py",
    "spark_rewind/targets.py",
    "spark_rewind/topics.py",
    "spark_rewind/verbs.py",
    "spark_ckpt/observability/__init__.py",
    "spark_ckpt/observability/aside.py",
    "spark_ckpt/observability/companions.py",
    "spark_ckpt/observability/live_view.py",
    "spark_ckpt/observability/page/__init__.py",
    "spark_ckpt/observability/page/drawn.py",
    "spark_ckpt/observability/page/going_back.py",
    "spark_ckpt/observability/page/report.py",
    "spark_ckpt/observability/page/server.py",
    "spark_ckpt/observability/page/serving.py",
    "spark_ckpt/observability/page/state_at.py",
    "spark_ckpt/observability/lineage",
    "spark_ckpt/observability/metrics",
    "spark_ckpt/cli",
    "spark_ckpt/explained",
    "spark_ckpt/pages",
)
"""Folders and modules that keep the rules."""
PAGES: tuple[str, ...] = (
    "CONTRIBUTING.md",
    "docs/design/epoch-in-nine-steps.md",
    "docs/glossary.md",
    "docs/connectors.md",
    "docs/operations.md",
    "docs/backups.md",
    "docs/moving.md",
    "docs/changing.md",
    "docs/second-driver.md",
    "docs/stores.md",
    "docs/state.md",
    "docs/operators.md",
    "docs/looking.md",
    "docs/tutorial.md",
    "docs/installing.md",
    "docs/examples.md",
)
"""Pages that keep the rules."""

OPENERS = re.compile(r"(What|Which|Whether|Who|Whoever|Whatever|Where|How|When|Why)\b")
BANNED = re.compile(
    r"\b(nobody|somebody|whoever|whatever|anew|owed|owes|beside|told|goes on|let go|given up|stands on|passed over"
    r"|way out|taken back|put out)\b",
    re.IGNORECASE,
)
NAMES = re.compile(r"(^|_)(told|born|lived|heed|took_over|let_go|owed|beside|anew|way_out|spent)(_|$)")
GLOSSARY_COLUMN = "not used"


def broken_in_code(text: str) -> Iterator[str]:
    """Places of a module that break a rule."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and NAMES.search(node.name):
            yield f"{node.lineno}: the name {node.name}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            yield from _broken_docstring(getattr(node, "lineno", 1), ast.get_docstring(node) or "")
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from _broken_docstring(node.lineno, node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (found := BANNED.search(token.string)):
            yield f"{token.start[0]}: {found.group()!r} in a comment"


def _broken_docstring(line: int, text: str) -> Iterator[str]:
    if opener := OPENERS.match(text.strip()):
        yield f"{line}: a docstring begins with {opener.group()!r}"
    if banned := BANNED.search(text):
        yield f"{line}: {banned.group()!r} in a docstring"


def broken_in_page(text: str) -> Iterator[str]:
    """Lines of a page that break a rule; code blocks are left out, and so is the glossary's column of synonyms."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        in_code ^= line.lstrip().startswith("```")
        if in_code or GLOSSARY_COLUMN in line:
            continue
        if line.startswith("#") and OPENERS.match(line.lstrip("# ")):
            yield f"{number}: a heading begins with a question word"
        if banned := BANNED.search(re.sub(r"`[^`]*`|~~[^~]*~~", "", line)):
            yield f"{number}: {banned.group()!r}"


def modules() -> list[Path]:
    """Modules of the folders that are listed."""
    return sorted(
        module
        for place in CODE
        for module in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
    )


def test_code_keeps_the_rules_of_words():
    found = [
        f"{module.relative_to(ROOT)}:{each}" for module in modules() for each in broken_in_code(module.read_text())
    ]
    assert sorted(set(found)) == []


def test_pages_keep_the_rules_of_words():
    assert [f"{page}:{each}" for page in PAGES for each in broken_in_page((ROOT / page).read_text())] == []


def test_every_listed_place_exists():
    assert [place for place in (*CODE, *PAGES) if not (ROOT / place).exists()] == []


@pytest.mark.parametrize(
    "planted",
    [
        '"""What a run owes."""',
        'def f():\n    """Whether it is there."""',
        'X = 1\n"""Rows that nobody needs."""',
        "x = 1  # the epoch is begun anew",
        "def _told(): ...",
    ],
)
def test_code_that_breaks_a_rule_is_found(planted):
    assert list(broken_in_code(planted))


@pytest.mark.parametrize("planted", ["## What it does", "The epoch goes on.", "| a | beside it |"])
def test_a_page_that_breaks_a_rule_is_found(planted):
    assert list(broken_in_page(planted))


@pytest.mark.parametrize("plain", ['"""Commit an epoch."""', "def commit(): ...", "x = 1  # a stale answer is dropped"])
def test_plain_words_are_left_alone(plain):
    assert list(broken_in_code(plain)) == []
