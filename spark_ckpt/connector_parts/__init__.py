"""Building blocks of most connectors, in addition to the contract in `connector`."""
