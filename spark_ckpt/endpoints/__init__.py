"""Endpoints of a program, compared with the log: the identities of tables and topics, the markers in sinks."""
