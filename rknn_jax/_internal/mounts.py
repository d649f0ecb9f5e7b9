"""Mounted file systems on which a lock of one machine does not keep out another one."""

import os
import re
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mountinfo")

LOCAL_LOCKS = {
    "nfs": ("nolock", "local_lock=flock", "local_lock=all"),
    "nfs4": ("nolock", "local_lock=flock", "local_lock=all"),
    "cifs": ("nobrl",),
    "smb3": ("nobrl",),
    "lustre": ("localflock",),
}
"""Mount options under which a network file system locks files on one machine alone."""

NO_LOCKS = re.compile(r"fuse\.(sshfs|s3fs|gcsfuse|rclone|goofys|blobfuse2?|mount-s3)")
"""File systems that never tell a lock to other machines."""


class Mount(NamedTuple):
    """Line of /proc/self/mountinfo.

    Attributes:
      folder: Folder of the mount.
      kind: Type of the file system.
      options: Options of the mount and of the file system.
    """

    folder: str
    kind: str
    options: frozenset[str]


def without_locks(path: Path) -> Mount | None:
    """Return the mount of a file or folder if other machines do not see its locks.

    Returns None if they do, if no other machine has the mount, and if the system does not say.
    """
    real = os.path.realpath(path)
    above = [mount for mount in _mounts() if _is_inside(real, mount.folder)]
    if not above:
        return None
    _, _, mount = max((len(each.folder), i, each) for i, each in enumerate(above))
    local = NO_LOCKS.fullmatch(mount.kind) is not None
    local = local or not mount.options.isdisjoint(LOCAL_LOCKS.get(mount.kind, ()))
    return mount if local else None


def _mounts() -> list[Mount]:
    """Return the mounts in order; a later one hides an earlier one of the same folder."""
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return []
    found = []
    for line in lines:
        before, _, after = line.partition(" - ")
        head, tail = before.split(), after.split()
        if len(head) >= 6 and len(tail) >= 3:
            options = frozenset([*head[5].split(","), *tail[2].split(",")])
            found.append(Mount(_unescaped(head[4]), tail[0], options))
    return found


def _unescaped(text: str) -> str:
    """Return a path whose spaces and other signs are octal numbers after a backslash."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
