"""The second interface: not supported."""
