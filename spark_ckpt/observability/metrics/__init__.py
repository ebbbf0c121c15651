"""A run in numbers, for Prometheus and OpenTelemetry. Nothing here is loaded unless a job asks for it (`metrics=...`)."""
