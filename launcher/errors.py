"""The launcher's errors.

LauncherError
 +-- BadSetting       a flag or an environment variable breaks a rule
 +-- ChildFailed      a shard, the router or the download stopped, or did not become ready
"""


class LauncherError(Exception):
    """Root of everything that the launcher raises on purpose."""


class BadSetting(LauncherError):
    """A flag or an environment variable breaks a rule."""


class ChildFailed(LauncherError):
    """A shard, the router or the download stopped by itself, or did not become ready."""
