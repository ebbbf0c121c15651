"""What was tried on the simulator, measured by one command and written on one page: `python -m integration_tests.proof`."""
