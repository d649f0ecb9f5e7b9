"""HTTP resources of one round, as docs/wire.md describes them.

Clients ask, so that phones and parties behind proxies can take part. Nothing that a client sends
decides how much memory the server uses: a body has at most as many bytes as the round's largest
answer, all unfinished bodies together have a bound, and only so many clients wait at once.
"""

import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from rknn_jax.federation import wire
from rknn_jax.federation.collector import Reply
from rknn_jax.federation.desk import Desk, Kind
from rknn_jax.federation.round_validation import MOST_RECORDS
from rknn_jax.federation.rounds import Round
from rknn_jax.federation.secure_sum_keys import MOST_CLIENTS, SEALED_BYTES

ROUND_HEADER = "rknn-round"
TICKET_HEADER = "rknn-ticket"
OCTETS = "application/octet-stream"

STATUSES = {
    "counted": 200,
    "again": 200,
    "refused": 200,
    "malformed": 400,
    "unknown": 403,
    "another round": 404,
    "late": 410,
    "too many": 413,
    "outside the alphabet": 422,
    "busy": 503,
}
"""HTTP status of each fate of a message."""

POLL_SECONDS = 20.0
"""Longest wait for news. Proxies give up a request after 30 s or more."""

MOST_WAITING = 1024
"""Clients that wait at once; all others are told to come back after `RETRY_SECONDS`."""

RETRY_SECONDS = 5
PIECE = 2**16

MOST_ANSWER = 2**28
MOST_UNFINISHED = 2**30
"""Bytes of an answer, and of all answers that are in memory at once."""


class Resources:
    """HTTP resources of a round, as an ASGI application `app`.

    Args:
      desk: Desk of the round.

    Attributes:
      fates: Number of messages that clients brought, by kind and fate.
      unfinished: Bytes of messages that have not come whole.
      waiting: Number of requests that wait for news.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.fates = Counter[tuple[Kind, str]]()
        self.most_bytes = _most_bytes(desk.round)
        self.unfinished = 0
        self.waiting = 0
        routes = [
            Route("/v1/round", self.question),
            Route("/v1/rounds/{round}/answers", self.answer, methods=["POST"]),
            Route("/v1/rounds/{round}/refusal", self.refusal, methods=["POST"]),
            Route("/v1/rounds/{round}/statement", self.statement),
        ]
        if desk.round.summed:
            routes += [
                Route("/v1/rounds/{round}/sum/{step:str}", self.sum_question),
                Route("/v1/rounds/{round}/sum/{step:str}", self.sum_answer, methods=["POST"]),
            ]

        @contextlib.asynccontextmanager
        async def attached(app: Starlette) -> AsyncIterator[None]:
            desk.attach()
            yield

        self.app = Starlette(routes=routes, lifespan=attached)
        self.app.router.redirect_slashes = False

    def serve(self, desk: Desk) -> None:
        """Serve another round from now on, and send whoever waits for news of the former one to it.

        Args:
          desk: Desk of a round with the same trust.
        """
        former = self.desk
        desk.follow(former)
        self.most_bytes = _most_bytes(desk.round)
        self.desk = desk
        former.change()

    def dismiss(self) -> None:
        """Let all who wait come again later, as the server ends."""
        self.desk.change(dismissed=True)

    async def question(self, request: Request) -> Response:
        """Send the question, or say that the round takes no more answers."""
        self._number(request)
        if self.desk.stage != "asking":
            return self._fate("late")
        data = self.desk.round.data
        headers = self._headers({"etag": f'"{self.desk.round.id}"'})
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)

        async def pieces() -> AsyncIterator[bytes]:
            # In pieces, because a slow reader then counts as one that reads.
            for start in range(0, len(data), PIECE):
                yield data[start : start + PIECE]

        headers["content-length"] = str(len(data))
        return StreamingResponse(pieces(), media_type=OCTETS, headers=headers)

    async def answer(self, request: Request) -> Response:
        """Take a client's messages, and send their fate once they are on disk."""
        return await self._bring(request, "answer")

    async def refusal(self, request: Request) -> Response:
        """Take a refusal, which has no reason."""
        return await self._bring(request, "refusal")

    async def sum_answer(self, request: Request) -> Response:
        """Take a client's answer to a step of a sum."""
        return await self._bring(request, "sum")

    async def sum_question(self, request: Request) -> Response:
        """Send the question of a step to a client, once there is one.

        A client that asks for the first step is ready for the sum.
        """
        desk = self.desk
        number = self._number(request)
        step = _step(request)
        if request.path_params["round"] != desk.round.id:
            return self._fate("another round")
        if number is None or step is None:
            return self._fate("malformed")
        if step == 0:
            desk.ready[number] = time.monotonic()

        def over() -> bool:
            return desk.step > step or desk.stage == "closed"

        def there() -> bool:
            return desk.step == step and number in desk.invited

        if not await self._wait(desk, lambda: over() or there()):
            return self._come_back()
        question = desk.question(number) if there() else None
        if question is None:
            return self._fate("late")
        return Response(question, media_type=OCTETS, headers=self._headers())

    async def statement(self, request: Request) -> Response:
        """Send the statement of what was published, once there is one."""
        desk = self.desk
        number = self._number(request)
        if request.path_params["round"] != desk.round.id:
            return self._fate("another round")

        def news() -> bool:
            return self.desk is not desk or not (desk.statement is None and desk.failure is None)

        if not await self._wait(desk, news):
            return self._come_back()
        if self.desk is not desk:
            return self._fate("another round")
        if number is not None:
            desk.told.add(number)
        if desk.statement is None:
            content = {"failure": desk.failure}
            return JSONResponse(content, 410, headers=self._headers())
        return PlainTextResponse(desk.statement, headers=self._headers())

    async def _bring(self, request: Request, kind: Kind) -> Response:
        """Take a message, count its fate and send it."""
        try:
            fate, whole = await self._judged(request, kind)
        except ClientDisconnect:
            return Response()  # nobody reads it
        self.fates[kind, fate] += 1
        return self._fate(fate, close=not whole)

    async def _judged(self, request: Request, kind: Kind) -> tuple[str, bool]:
        """Return the fate of a message, and True if all of it was read."""
        number = self._number(request)
        desk = self.desk
        if request.path_params["round"] != desk.round.id:
            return "another round", False
        step = _step(request)
        if number is None or step is None:
            return "malformed", False
        with self._body() as body:
            wrong = await self._read(request, body)
            if wrong:
                return wrong, False
            reply = Reply(number, desk.round.id, bytes(body))
            return await desk.bring(kind, reply, step), True

    async def _read(self, request: Request, body: bytearray) -> str | None:
        """Read a body into `body`, and return the reason for which it was not read whole."""
        if int(request.headers.get("content-length", 0)) > self.most_bytes:
            return "too many"
        async for chunk in request.stream():
            body += chunk
            self.unfinished += len(chunk)
            if len(body) > self.most_bytes:
                return "too many"
            if self.unfinished > MOST_UNFINISHED:
                return "busy"
        return None

    @contextlib.contextmanager
    def _body(self) -> Iterator[bytearray]:
        """Make room for a body, and give the room back."""
        body = bytearray()
        try:
            yield body
        finally:
            self.unfinished -= len(body)

    async def _wait(self, desk: Desk, ready: Callable[[], bool]) -> bool:
        if self.waiting >= MOST_WAITING:
            return ready()
        self.waiting += 1
        try:
            return await desk.wait(ready, POLL_SECONDS)
        finally:
            self.waiting -= 1

    def _number(self, request: Request) -> int | None:
        """Return the client's number: of its key, or else its ticket, or None if it has neither."""
        number: int | None = getattr(request.state, "client", None)
        ticket = request.headers.get(TICKET_HEADER, "")
        if number is None and ticket.isascii() and ticket.isdecimal() and len(ticket) <= 20:
            number = int(ticket) % 2**64
        if number is not None:
            self.desk.see(number)
        return number

    def _come_back(self) -> Response:
        full = self.waiting >= MOST_WAITING
        headers = {"retry-after": str(RETRY_SECONDS if full else 0)}
        if full:
            headers["connection"] = "close"
        return Response(status_code=204, headers=self._headers(headers))

    def _fate(self, fate: str, *, close: bool = False) -> Response:
        headers = {"connection": "close"} if close else {}
        if fate == "busy":
            headers["retry-after"] = str(RETRY_SECONDS)
        return JSONResponse({"fate": fate}, STATUSES[fate], headers=self._headers(headers))

    def _headers(self, others: dict[str, str] | None = None) -> dict[str, str]:
        return {ROUND_HEADER: self.desk.round.id, "cache-control": "no-store"} | (others or {})


def _step(request: Request) -> int | None:
    """Return the number of a sum's step in the path, 0 if there is none, or None for other text."""
    text = request.path_params.get("step", "0")
    return int(text) if len(text) == 1 and text in "0123456789" else None


def _most_bytes(round: Round) -> int:
    """Return the most bytes of a client's message."""
    if round.summed:
        return max(8 * round.num_cells, MOST_CLIENTS * SEALED_BYTES)
    largest = (round.records_per_client or MOST_RECORDS) * wire.message_bytes(round.mechanism)
    return min(MOST_ANSWER, largest)
