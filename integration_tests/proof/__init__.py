"""Schedules of the simulator, measured by one command and reported on one page: `python -m integration_tests.proof`."""
