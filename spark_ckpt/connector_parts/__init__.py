"""What most connectors are built from, beside the contract in `connector`."""
