"""Lineage for catalogues: the inputs and outputs of a job as OpenLineage events. Loaded only on request
(`lineage=...`).
"""
