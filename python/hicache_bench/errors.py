"""The errors that a user of the benchmark can see."""


class BenchError(Exception):
    """The run could not give a result. Says what, where, what was expected, what to type next."""

    exit_code = 1


class UsageError(BenchError):
    """An option's value cannot be used."""

    exit_code = 2


class NoAnswer(BenchError):
    """A request got no answer at all: the server is dying, or dead, or stuck."""


class Cancelled(BenchError):
    """The run was ended from outside (Ctrl-C, or another server of the same run failed)."""
