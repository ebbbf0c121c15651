"""Property tests are bounded by their number of examples, never by wall time: machines are shared."""

from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
