"""Metrics of a run, for Prometheus and OpenTelemetry. Loaded only on request (`metrics=...`)."""
