"""Observability of a job: metrics, traces, lineage, a web page, a view in a terminal. No part of a job depends on
it.
"""
