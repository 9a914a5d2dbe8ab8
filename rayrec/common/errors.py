"""Errors that are the user's to fix: one line that names the file or field and the fix."""


class UserError(ValueError):
    """A failure whose message alone tells the user what to change; printed without a traceback, exit code 1."""


class ConfigError(UserError):
    """Wrong usage or configuration, found before any work was done; exit code 2."""


class SmallClusterError(ConfigError):
    """The cluster has not the CPUs or GPUs, now: with more nodes the same would work."""


class DiskFullError(UserError):
    """No space is left on a disk: work that is half done can go on once there is."""
