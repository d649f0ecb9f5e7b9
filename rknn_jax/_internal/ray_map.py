"""Map over numbered pieces of work on a Ray cluster, or on this machine if no address is given.

A worker or a machine that dies is replaced, and its pieces are done again. So the work on a piece
must be a pure function of its number. An error in a piece is not retried and ends the job.
"""

import importlib
import json
import logging
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from rknn_jax._internal.extras import install
from rknn_jax._internal.option_names import current_names, option, option_names
from rknn_jax._internal.private_warnings import warn_owner

STORE_BYTES = 2**28
"""Memory of the object store of an embedded cluster; what passes through it is a few tables."""

_WARNED = "warned"
"""Column of the warnings of a piece."""

WAVE = 10_000
"""Pieces of one job. Their names and results lie in memory until the job ends."""


def results(
    worker: type, arguments: tuple[Any, ...], count: int, address: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the result of each piece, as they are done.

    Args:
      worker: Class whose instances map `{"number": i}` to a dict of numbers, text and arrays. An
        instance lives in a process of the cluster, and does one piece at a time.
      arguments: Arguments of the class.
      count: Number of pieces.
      address: Address of a cluster, such as `ray://head:10001` or `auto`; None for one that is
        started on this machine and ends with the work.

    Raises:
      ValueError: If Ray is not installed, the cluster cannot be reached, or the job ends.
    """
    ray = _library()
    started = not ray.is_initialized()
    with ExitStack() as own:
        if started:
            place = None
            if address is None:
                own.enter_context(_secret_token())
                place = own.enter_context(_own_folder())
            with _hushed():
                _connect(ray, address, place)
        yield from _done(ray, worker, arguments, count, ends=started)


def _done(
    ray: Any, worker: type, arguments: tuple[Any, ...], count: int, *, ends: bool
) -> Iterator[dict[str, Any]]:
    """Yield the results of `results`, and leave the cluster if it `ends`."""
    try:
        with _hushed():
            _quiet(ray)
        for first in range(0, count, WAVE):
            numbers = range(first, min(first + WAVE, count))
            for row in _mapped(ray, worker, arguments, numbers).iter_rows():
                for words in json.loads(row.pop(_WARNED)):
                    warn_owner(words)
                yield row
    except (ray.exceptions.RayError, ray.data.exceptions.UserCodeException) as error:
        raise ValueError(f"The work on Ray ended: {' '.join(str(error).split())}.") from error
    finally:
        if ends:
            with _hushed():
                ray.shutdown()


@contextmanager
def _hushed() -> Iterator[None]:
    """Show no warning of Ray about its own forks, files, processes and options."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _secret_token() -> Iterator[None]:
    """Let a cluster that is started inside take calls of this process and its children alone.

    Its servers listen on all of the machine's addresses. Without a token, whoever reaches a port
    can run code in the workers, which read the records.
    """
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        _read_token()
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        _read_token()


def _own_folder() -> TemporaryDirectory[str]:
    """Return a folder of this user alone, for what a cluster that is started here writes.

    Ray's own is open to all, and results that its memory has no room for are spilled there. Paths
    of sockets may have 103 characters, so a system whose usual folder has a long name has another.
    """
    usual = None if sys.platform == "linux" else "/tmp"
    above = os.environ.get("RAY_TMPDIR", usual)
    try:
        return TemporaryDirectory(prefix="r", dir=above, ignore_cleanup_errors=True)
    except OSError as error:
        raise ValueError(
            f"Expected a folder that can be written in RAY_TMPDIR, got {above}: {error.strerror}."
        ) from error


def _read_token() -> None:
    """Let Ray read the environment again, which it does once when it is imported."""
    core = importlib.import_module("ray._raylet")
    try:
        core.AuthenticationTokenLoader.instance().reset_cache()
        core.Config.initialize("")
    except AttributeError as error:
        raise ValueError(
            "Expected a Ray whose clusters have tokens, got one that has none, and whose cluster "
            f"on this machine would be open to its network; {install('ray')}."
        ) from error


def _quiet(ray: Any) -> None:
    """End the job at the first error, and print nothing."""
    context = ray.data.DataContext.get_current()
    context.max_errored_blocks = 0
    context.actor_task_retry_on_errors = False
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


class _Named:
    """A worker whose messages name settings as the process does that asks for its work.

    Its warnings are sent there. They may tell of private records, and others can read Ray's logs.
    """

    def __init__(self, names: Callable[[str], str], worker: type, *arguments: Any) -> None:
        self._names = names
        self._worker = worker(*arguments)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        with option_names(self._names), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result: dict[str, Any] = self._worker(row)
        told = [str(one.message) for one in caught if one.category is UserWarning]
        return result | {_WARNED: json.dumps(told)}


def _mapped(ray: Any, worker: type, arguments: tuple[Any, ...], numbers: range) -> Any:
    """Return a data set with a row for each piece, which is worked on when it is read."""
    rows = [{"number": number} for number in numbers]
    gpus = int(ray.cluster_resources().get("GPU", 0))
    most = gpus or int(ray.cluster_resources().get("CPU", 1))
    each = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    return ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        _Named,
        fn_constructor_args=(current_names(), worker, *arguments),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=max(1, min(most, len(rows)))),
        **each,
    )


def _library() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.data
        import ray.data.exceptions
    except ImportError as error:
        raise ValueError(
            f"Expected Ray with {option('engine')} ray, got none; {install('ray')}."
        ) from error
    return ray


def _connect(ray: Any, address: str | None, place: str | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    embedded: dict[str, Any] = {
        "include_dashboard": False,
        "object_store_memory": STORE_BYTES,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": f"{place}/r",  # which Ray opens to all
    }
    try:
        if address is None:
            ray.init(address="local", **embedded, **quiet)
        else:
            ray.init(address=address, **quiet)
    except Exception as error:  # a cluster that cannot be reached fails in many ways
        raise ValueError(
            f"The Ray cluster {option('address')} {address} cannot be reached: {error}; start it, "
            f"or leave {option('address')} out."
        ) from error
