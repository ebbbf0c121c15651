"""Measurements, as ratios within one run on one machine. Nothing here is asserted; see RESULTS.md."""
