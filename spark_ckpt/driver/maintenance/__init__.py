"""Work that no batch waits for: tables, retention, and changes of the state between two runs."""
