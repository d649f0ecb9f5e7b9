"""Faults that the histories of secure sums must find: masks that stay, early charges."""

from benchmarks._world_faults import WorldFault
from rknn_jax.cli import serving
from rknn_jax.federation import hosting, participation, round_folder, round_sequence
from rknn_jax.federation.client_payments import Payments
from rknn_jax.federation.secure_sum import Participant
from rknn_jax.federation.secure_sum_server import Summation

FAULTS = (
    WorldFault(
        "a vector that comes twice is added twice",
        Summation,
        "receive",
        "if client in self._answered[step]:",
        "if False:",
    ),
    WorldFault(
        "the masks of a client that left stay in the sum",
        Summation,
        "_opened",
        "for other in inside:",
        "for other in ():",
    ),
    WorldFault(
        "a client shows a share of the mask key of one that is in the sum",
        Participant,
        "_open",
        "[number in inside]",
        "[number == self._number]",
    ),
    WorldFault(
        "nothing is charged for a sum",
        Payments,
        "_pay",
        'self.ledger.charge(cost, f"{once}{round.subject}{roles}{name}", once=once)',
        "pass",
    ),
    WorldFault(
        "a client pays when it is ready",
        participation,
        "_add",
        "length = prepared.round.num_cells\n",
        "length = prepared.round.num_cells\n    vector = prepared.vector()\n",
    ),
    WorldFault(
        "clients pay before the server has noted the sum",
        hosting,
        "sum_up",
        "        begin()\n",
        "        pass\n",
    ),
    WorldFault(
        "a sum that was begun is begun again",
        round_folder,
        "kept_sum",
        "if (folder / BEGUN).exists():",
        "if False:",
    ),
    WorldFault(
        "a sum is published before it is on disk",
        serving,
        "_answers",
        "hosting.when_there_is_room(keep, say)",
        "pass",
    ),
    WorldFault(
        "a step of a sum waits for a lost client",
        hosting,
        "_take_step",
        "(left := ends - time.monotonic()) > 0",
        "(left := TICK)",
    ),
    WorldFault(
        "a sum waits for clients beyond the deadline",
        hosting,
        "_wait_for_clients",
        "or time.time() >= desk.closes",
        "or False",
    ),
    WorldFault(
        "a client that was stopped in a sum is told that it spent nothing",
        participation,
        "_question",
        "PAID if client.has_paid(told) else part",
        "APART",
    ),
    WorldFault(
        "a sum that is over is taken for one that goes on",
        round_sequence,
        "finished",
        "if not (step.folder / OVER).exists():",
        "if True:",
    ),
)
