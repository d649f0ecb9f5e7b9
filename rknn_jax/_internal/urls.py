"""What a path or a URL names: a file of this machine, or one elsewhere in one spelling."""

import glob
import itertools
import os
import posixpath
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from rknn_jax._internal.disk import files_below, is_below, walk

_HTTP = ("http://", "https://")
_PORTS = {"http": 80, "https": 443, "ftp": 21, "sftp": 22, "ssh": 22, "smb": 445, "webhdfs": 50070}

SIGNS = re.compile(r"[*?[]")
"""Signs by which a path is a pattern."""


def local_path(name: str) -> str | None:
    """Return the path on this machine that a path or a URL names, or None if it names none.

    Args:
      name: Path, also one that begins with `~`, or a URL that fsspec knows, such as
        `file:///data/a.npz`, `file:/data/a.npz` or `simplecache::/data/a.npz`.
    """
    if ":" not in name and not name.startswith("~"):
        return name.rstrip("/") or name  # fsspec takes no notice of a slash after a file
    from fsspec.implementations.local import LocalFileSystem  # late: most programs meet no URL

    system, path = _located(name)
    return path if isinstance(system, LocalFileSystem) else None


def matching(pattern: str, system: Any = None) -> list[str]:
    """Return what matches a pattern, in order: files and folders, and with `**` files alone.

    On this machine, links to folders are followed.

    Args:
      pattern: Path in the file system. One without `*`, `?` or `[` matches nothing.
      system: File system of fsspec. Defaults to None, that of this machine.

    Raises:
      ValueError: If it is no pattern that fsspec knows.
    """
    if not SIGNS.search(pattern):
        return []
    from fsspec.implementations.local import LocalFileSystem  # late: most names are no patterns

    if not (system is None or isinstance(system, LocalFileSystem)):
        return sorted(system.glob(pattern))
    pattern = os.path.abspath(pattern)
    if "**" not in pattern:
        found: Iterable[str] = glob.iglob(pattern, include_hidden=True)
    else:
        above = _above(pattern)
        found = files_below(above) if os.path.isdir(above) else ()
    return sorted(filter(_expression(pattern).match, found))


def would_match(pattern: str, files: Iterable[str]) -> bool:
    """Return whether a pattern of this machine matches one of the files, that may not be there yet.

    Args:
      pattern: As for `matching`.
      files: Absolute paths behind all links.
    """
    if not SIGNS.search(pattern):
        return False
    pattern = os.path.abspath(pattern)
    above = _above(pattern)
    # Folders that are there by which the pattern may come to a file.
    if "**" in pattern:
        known = [place for place, _ in walk(above)] if os.path.isdir(above) else []
    else:
        parts = itertools.takewhile(SIGNS.search, map(str, PurePosixPath(pattern).parents))
        known = [each for part in parts for each in glob.iglob(part, include_hidden=True)]
    matches, files = _expression(pattern).match, [*files]
    for place in (above, *known):
        real = os.path.realpath(place)
        inside = (file for file in files if is_below(file, real))
        if any(matches(os.path.join(place, os.path.relpath(file, real))) for file in inside):
            return True
    return False


def _above(pattern: str) -> str:
    """Return the folder above the first sign of a pattern."""
    return SIGNS.split(pattern)[0].rpartition("/")[0] or "/"


def _expression(pattern: str) -> re.Pattern[str]:
    from fsspec.utils import glob_translate

    return re.compile(glob_translate(pattern))


def is_url(name: str) -> bool:
    """Return whether a name is a URL, or a path behind a cache."""
    return "://" in name or "::" in name


def plain_url(name: str) -> str:
    """Return a URL in the spelling of its file system, without a cache before it.

    Those of HTTP are normalized (RFC 3986, section 6.2.2), without user and fragment. Others have
    the host of the given URL, if their file system leaves it out of its paths.

    Args:
      name: URL. One that fsspec does not know, or cannot use here, stays as it is.
    """
    system, path = _located(name)
    url = name if system is None else str(system.unstrip_protocol(path))
    if url.startswith(_HTTP):
        return _normalized(url)
    return url if system is None else _with_place(url, named_in(name), system)


def named_in(name: str) -> str:
    """Return the part of a URL that names a path, without the caches before it.

    Args:
      name: URL, or path behind a cache.
    """
    return next((one for one in name.split("::") if "://" in one), name)


def _with_place(url: str, given: str, system: Any) -> str:
    """Return a URL with the place that was given, such as a host, if it has lost it."""
    scheme, _, path = url.partition("://")
    place, path = given.partition("://")[2].partition("/")[0], path.strip("/")
    if "host" in system.storage_options:  # where else a name before an @ is no user's
        place = place.rpartition("@")[2].lower().removesuffix(f":{_PORTS.get(scheme)}")
    elif path.startswith(place):
        return url.rstrip("/") if path else url
    return f"{scheme}://{place}/{path}".rstrip("/")


def _normalized(url: str) -> str:
    with suppress(ValueError):  # a host or port that is none is refused when it is read
        found = urlsplit(url)
        host = f"[{found.hostname}]" if ":" in str(found.hostname) else found.hostname
        port = "" if found.port in (None, _PORTS[found.scheme]) else f":{found.port}"
        steps = posixpath.normpath("/" + unquote(found.path).lstrip("/"))
        return urlunsplit((found.scheme, f"{host}{port}", steps, found.query, ""))
    return url


def _located(name: str) -> tuple[Any, str]:
    """Return the file system of a URL, or None if it cannot be used here, and the path in it."""
    import fsspec
    from fsspec.implementations.cached import CachingFileSystem

    try:
        system, path = fsspec.core.url_to_fs(name)
    except Exception:  # a file system that is not installed or set up fails in many ways
        return None, name
    while isinstance(system, CachingFileSystem):
        system = system.fs
    return system, str(path)
