"""Bugs planted in deferred rows, which an epoch keeps for a later publish."""

from __future__ import annotations

from spark_ckpt.coordination.publication import DeferredRows


class Forgetful(DeferredRows):
    """Deferred rows of the epoch before are not in the next one."""

    def divided(self, staged, reason, now_ms):
        self.held = {}
        return super().divided(staged, reason, now_ms)


class Repeating(DeferredRows):
    """Published rows are deferred as well."""

    def divided(self, staged, reason, now_ms):
        outputs, held = super().divided(staged, reason, now_ms)
        return outputs, {**held, **outputs}


class Hasty(DeferredRows):
    """An epoch's own rows are published at once, earlier ones stay deferred."""

    def divided(self, staged, reason, now_ms):
        before = dict(self.held)
        outputs, held = super().divided(staged, reason, now_ms)
        early = {sink: staged[sink] for sink in held if sink in before}
        return {**outputs, **early}, {sink: before.get(sink, each) for sink, each in held.items()}


class Endless(DeferredRows):
    """A final epoch defers rows like any other."""

    def divided(self, staged, reason, now_ms):
        return super().divided(staged, "interval", now_ms)


class Backwards(DeferredRows):
    """Deferred rows are published last."""

    def divided(self, staged, reason, now_ms):
        held, self.held = self.held, {}
        outputs, kept = super().divided(staged, reason, now_ms)
        self.held = held
        return {sink: _behind(held, each) for sink, each in outputs.items()}, {
            sink: _behind(held, each) for sink, each in kept.items()
        }


def _behind(held, output):
    files = held[output.sink].files if output.sink in held else ()
    return output.model_copy(update={"files": (*output.files, *files)})


def what_the_restored_epoch_holds_back_is_forgotten(core):
    core.publication.deferred.held = {}


def an_epoch_of_held_rows_counts_as_unpublished(core):
    core.publication.is_deferred = lambda sink, epoch: False


def in_place(kind):
    """The core with another `DeferredRows`."""

    def plant(core):
        core.publication.deferred = kind(core.shape.sinks, core.cut.base)

    plant.__name__ = kind.__name__
    return plant


PLANTED = [
    what_the_restored_epoch_holds_back_is_forgotten,
    an_epoch_of_held_rows_counts_as_unpublished,
    *map(in_place, (Forgetful, Repeating, Hasty, Endless, Backwards)),
]
