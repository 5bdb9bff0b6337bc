"""The second interface, function by function: not supported."""
