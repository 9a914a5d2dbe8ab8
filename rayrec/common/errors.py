"""Errors that are the user's to fix: one line that names the file or field and the fix."""


class UserError(ValueError):
    """A failure whose message alone tells the user what to change; printed without a traceback, exit code 1."""


class ConfigError(UserError):
    """Wrong usage or configuration, found before any work was done; exit code 2."""


class SmallClusterError(ConfigError):
    """The cluster lacks CPUs or GPUs at present; with more nodes the same would work."""


class DiskFullError(UserError):
    """A disk is full; unfinished work can continue once there is space."""
