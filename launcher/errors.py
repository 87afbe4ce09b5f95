"""The launcher's errors.

LauncherError
 +-- BadSetting       a flag or an environment variable breaks a rule
 +-- BadInput         stdin cannot be read, or brings a line that is too long
 +-- PlaceTaken       nothing can be listened at where a server is to be
 +-- ChildFailed      a shard, the router or the download stopped, or did not become ready
"""


class LauncherError(Exception):
    """Root of everything that the launcher raises on purpose."""


class BadSetting(LauncherError):
    """A flag or an environment variable breaks a rule."""


class BadInput(LauncherError):
    """What is to be read from stdin cannot be read, or breaks a rule."""


class PlaceTaken(LauncherError):
    """A port, an address or a socket's path is another one's; later it may be free."""


class ChildFailed(LauncherError):
    """A shard, the router or the download stopped by itself, or did not become ready."""
