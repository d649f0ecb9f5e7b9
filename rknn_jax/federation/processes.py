"""One operating-system process for a server or a client, with our app in a thread of it.

The process is Flower's SuperLink or SuperNode. By default, Flower ships an app's code from the
server to the clients and runs it there. That code runs in processes of their own, which outlive a
`kill -9` of their parent. Whoever reaches a SuperLink's port may start apps and register keys. None
of that suits parties that trust nobody with their votes. Three things are different here:

- Both sides run their installed code (`--isolation process` with an executor that never unpacks the
  code of a run).
- A server's port answers SuperNodes alone. Everything else needs a secret of the process, and so
  does a client's own port (`rknn_jax.federation.access`).
- A client that was killed and comes back takes its place again at once, and a server that comes
  back finds its clients (`rknn_jax.federation.pace`).

Everything here that reaches into Flower is written for flwr 1.41;
`tests/test_federation_processes.py` runs all of it.
"""

import hashlib
import logging
import os
import secrets
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rknn_jax.federation.access import Gate, Pass, check_name, public_key
from rknn_jax.federation.pace import POLL, come_back_soon, no_waiting

APP = """[project]
name = "rknn"
version = "1.0.0"
description = "no code: both sides run their own"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]
[tool.flwr.app]
publisher = "local"
[tool.flwr.app.components]
serverapp = "rknn:app"
clientapp = "rknn:app"
"""

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def serve(
    app: Callable[..., None],
    folder: Path,
    host: str,
    port: int,
    certificates: Path | None,
    keys: Sequence[str],
) -> NoReturn:
    """Run a ServerApp behind a SuperLink, and end this process with it.

    Args:
      app: ServerApp, called with a grid and a context.
      folder: Folder of Flower's database.
      host: Host name or address that clients reach.
      port: Port that clients reach.
      certificates: Folder of `ca.pem`, `server.pem` and `server.key`; None for a plain connection.
      keys: Public keys of the clients that may take part, as OpenSSH writes them; needs
        certificates.
    """
    _quiet()
    import flwr.superlink.extensions as extensions
    from starlette.middleware import Middleware

    gate = secrets.token_hex(32)
    ready = threading.Event()
    extensions.get_middleware = lambda: (
        Middleware(Gate, secret=gate, open_to="/v1/fleet/", ready=ready),
    )
    no_waiting()
    own = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    if certificates:
        check_name(certificates / "server.pem", own)
    files = (
        [str(certificates / name) for name in ("ca.pem", "server.pem", "server.key")]
        if certificates
        else []
    )
    address = {
        "server_address": f"{own}:{port}",
        "insecure": not files,
        "root_certificates": files[0] if files else None,
    }
    arguments = [
        "--isolation",
        "process",
        "--host",
        host,
        "--port",
        str(port),
        "--database",
        str(folder / "flower.db"),
    ]
    if files:
        arguments += [
            "--ssl-ca-certfile",
            files[0],
            "--ssl-certfile",
            files[1],
            "--ssl-keyfile",
            files[2],
        ]
    else:
        arguments += ["--insecure"]
    if keys:
        arguments += ["--enable-supernode-auth"]
    _beside(lambda: _run_server_app(app, address, gate, keys, ready), own, port)
    from flwr.superlink.cli.flower_superlink import flower_superlink

    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()
    raise KeyboardInterrupt  # flower_superlink returns only after one


def join(
    app: Any,
    folder: Path,
    server: str,
    ca: Path | None,
    key: Path | None,
    over: threading.Event,
    status: Callable[[], int],
) -> NoReturn:
    """Run a ClientApp behind a SuperNode, and end this process when the round is over.

    Args:
      app: ClientApp to run.
      folder: Folder of the client.
      server: Address of the server, host:port.
      ca: Root certificate of the server; None for a plain connection.
      key: Private key by which the server knows this client; None for none.
      over: Event that the app sets when the server says that the round is over.
      status: Function that returns the exit status then.
    """
    _quiet()
    import flwr.supernode.main as supernode

    gate = secrets.token_hex(32)
    port = _free_port()
    create = supernode.create_app

    def gated(*arguments: Any, **named: Any) -> Any:
        made = create(*arguments, **named)
        made.add_middleware(Gate, secret=gate)
        return made

    supernode.create_app = gated
    no_waiting()
    folder.mkdir(parents=True, exist_ok=True)
    come_back_soon(folder / "node" if key else None)
    arguments = [
        "--isolation",
        "process",
        "--superlink",
        server,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    arguments += ["--root-certificates", str(ca)] if ca else ["--insecure"]
    arguments += ["--auth-supernode-private-key", str(key)] if key else []
    _beside(
        lambda: _run_client_app(app, f"127.0.0.1:{port}", gate, over, status), "127.0.0.1", port
    )
    from flwr.supernode.cli.flower_supernode import flower_supernode

    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()
    raise KeyboardInterrupt


def _run_server_app(
    app: Callable[..., None],
    address: dict[str, Any],
    gate: str,
    keys: Sequence[str],
    ready: threading.Event,
) -> None:
    """Register the keys, admit the clients, start a run and act as its ServerApp."""
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    def interceptors(name: str) -> list[Any]:
        return [RuntimeVersionHttpInterceptor(component_name=name), Pass(gate)]

    control = ControlHttpClient.from_server_address(
        **address, interceptors=interceptors("flwr-cli")
    )
    for key in keys:
        _register(control, key)
    # Clients are let in only now, when their keys are known.
    ready.set()
    run_id = _start_run(control)
    boss = RuntimeHttpClient.from_server_address(**address, interceptors=interceptors("SuperExec"))
    token = _server_task(boss, run_id)
    _act_as_server_app(app, address, gate, token)


def _register(control: Any, key: str) -> None:
    """Admit a client by its public key, unless an earlier process of this server did."""
    import httpx
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    request = RegisterNodeRequest(public_key=public_key_to_bytes(public_key(key)))
    try:
        control.RegisterNode(request)
    except httpx.HTTPStatusError as error:
        if error.response.status_code != 409 and "already" not in error.response.text.lower():
            raise


def _start_run(control: Any) -> int:
    """Start a run of an app without code, and return its number."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    with tempfile.TemporaryDirectory() as stub:
        (Path(stub) / "pyproject.toml").write_text(APP)
        fab = build_fab_from_disk(Path(stub))
    whole = Fab(hashlib.sha256(fab).hexdigest(), fab, {})
    run_id: int = control.StartRun(StartRunRequest(fab=fab_to_proto(whole))).run_id
    return run_id


def _server_task(boss: Any, run_id: int) -> str:
    """Wait for the task of the run's ServerApp, and return its token."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    while True:
        task = boss.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
        if task.HasField("task") and task.token and task.task.run_id == run_id:
            token: str = task.token
            return token
        time.sleep(POLL)


def _act_as_server_app(
    app: Callable[..., None], address: dict[str, Any], gate: str, token: str
) -> None:
    """Run the app with a grid of the task's clients, and tell the SuperLink how it ended."""
    from flwr.common.constant import SubStatus
    from flwr.common.serde import context_from_proto, run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    root = address["root_certificates"]
    grid = HttpGrid(
        address["server_address"],
        insecure=address["insecure"],
        root_certificates=Path(root).read_bytes() if root else None,
        token=token,
    )
    runtime = grid._runtime_client
    runtime._interceptors += (Pass(gate),)
    heart = HeartbeatSender(make_task_heartbeat_fn_http(runtime))
    heart.start()
    status = SubStatus.FAILED
    try:
        given = runtime.PullTaskInput(PullTaskInputRequest())
        context = context_from_proto(given.context)
        TaskIdentity.task_id = given.task_id
        TaskIdentity.run_id = given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid.set_run(run_from_proto(given.run))
        app(grid, context)
        status = SubStatus.COMPLETED
    finally:
        runtime.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
        heart.stop()
        grid.close()


def _run_client_app(
    app: Any, address: str, gate: str, over: threading.Event, status_of: Callable[[], int]
) -> None:
    """Take tasks from this process's SuperNode and answer them by `app`.

    The code that comes with a task is ignored.
    """
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    def connected(*interceptors: Any) -> Any:
        return RuntimeHttpClient.from_server_address(
            server_address=address,
            insecure=True,  # within this host
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
                Pass(gate),
                *interceptors,
            ],
            retry_invoker=make_simple_http_retry_invoker(),
        )

    boss = connected()
    while not over.is_set():
        task = boss.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
        if not (task.HasField("task") and task.token):
            time.sleep(POLL)
            continue
        client = connected(RuntimeTokenHttpInterceptor(task.token))
        heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heart.start()
        context = None
        status = SubStatus.COMPLETED
        details = ""
        try:
            message, context, _, _ = pull_task_input(client)
            try:
                reply = app(message=message, context=context)
            except Exception:
                traceback.print_exc()
                # The server gets no details, because an error may depend on the data.
                status = SubStatus.FAILED
                details = "failed"
                reply = Message(
                    Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=details),
                    reply_to=message,
                )
            push_message(client, reply, context)
        finally:
            push_task_output(client, context, status, details)
            heart.stop()
            client.close()
    time.sleep(20 * POLL)  # until the SuperNode has sent the reply
    raise SystemExit(status_of())


def _beside(run: Callable[[], None], host: str, port: int) -> None:
    """Run a function in a thread once the port answers, and end the process with it.

    The exit status is that of a SystemExit, else 0, or 1 if the function failed.
    """

    def wait_and_run() -> None:
        status = 1
        try:
            while True:
                try:
                    socket.create_connection((host, port), 1).close()
                    break
                except OSError:
                    time.sleep(POLL)
            run()
            status = 0
        except SystemExit as done:
            status = done.code if isinstance(done.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    threading.Thread(target=wait_and_run, daemon=True).start()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _quiet() -> None:
    """Turn off Flower's telemetry, its installation of dependencies, and logs below errors."""
    os.environ.update(ENVIRONMENT)
    logging.disable(logging.WARNING)
