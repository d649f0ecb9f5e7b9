"""Server's side of a secure sum: it takes what clients send, whatever it is, and opens the sum.

`secure_sum` has the protocol and the client's side.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rknn_jax.federation.secure_sum_keys import (
    MOST_CLIENTS,
    STEPS,
    Keys,
    SumRefusedError,
    _public,
    combine,
    own_mask,
    pair_mask,
    transcript,
)
from rknn_jax.federation.secure_sum_layout import (
    decode_keys,
    decode_sealed,
    decode_shares,
    decode_vector,
    encode_dealt,
    encode_invitation,
    encode_key_list,
    encode_numbers,
)


class Summation:
    """Server side of one sum, of clients known by their numbers.

    Calls must not overlap.

    Attributes:
      step: Current step, 0 to 3; 4 when the sum is open.
      result: `(sum, count)`, int64 `[length]` modulo 2^64 and the number of vectors in it; None
        until the sum is open.
    """

    def __init__(self, round_id: str, length: int, clients: Sequence[int], threshold: int) -> None:
        """Begin a sum.

        Args:
          round_id: Id of the round.
          length: Length of each vector.
          clients: Distinct numbers below 2^64, at most `MOST_CLIENTS`.
          threshold: Least number of clients that open the sum, 2 to `len(clients)`.

        Raises:
          ValueError: If the threshold or the clients are out of range, or if one is listed twice.
        """
        if not 2 <= threshold <= len(set(clients)) == len(clients) <= MOST_CLIENTS:
            raise ValueError(
                f"Expected 2 <= threshold <= clients <= {MOST_CLIENTS}, each client once, got "
                f"threshold={threshold} of {len(clients)} clients."
            )
        if not 0 <= min(clients) <= max(clients) < 2**64:
            raise ValueError("Expected client numbers from 0 to 2^64 - 1, got others.")
        self.step = 0
        self.result: tuple[np.ndarray, int] | None = None
        self._round_id = round_id
        self._length = length
        self._threshold = threshold
        self._members = [sorted(clients)]  # of each step so far, those asked in it
        self._answered: list[set[int]] = [set() for _ in range(STEPS)]
        self._keys: dict[int, Keys] = {}
        self._sealed: dict[int, list[bytes]] = {}
        self._total = np.zeros(length, np.uint64)
        self._shares: dict[int, list[int]] = {}

    def waiting(self) -> set[int]:
        """Return the clients whose bytes for the current step are missing."""
        if self.step == STEPS:
            return set()
        return set(self._members[self.step]) - self._answered[self.step]

    def question(self, client: int) -> bytes | None:
        """Return the server's bytes for a client in the current step.

        None means that the client has dropped out, that it is unknown, or that the sum is open.
        """
        if self.step == STEPS or client not in self._members[self.step]:
            return None
        match self.step:
            case 0:
                return encode_invitation(client, self._threshold, len(self._members[0]))
            case 1:
                return encode_key_list({number: self._keys[number] for number in self._members[1]})
            case 2:
                return encode_dealt(
                    {
                        sender: self._sealed[sender][_position(self._members[1], sender, client)]
                        for sender in self._members[2]
                        if sender != client
                    }
                )
            case _:
                return encode_numbers(self._members[3])

    def receive(self, client: int, step: int, data: bytes) -> str:
        """Take a client's bytes, which may be anything.

        Returns:
          The fate of the bytes: `counted`; `again` if the client has already answered this step;
          `late` if the step is over or the client has dropped out; `unknown` if the client was not
          invited; else `malformed`.
        """
        if client not in self._members[0]:
            return "unknown"
        if step not in range(STEPS) or step > self.step or not isinstance(data, bytes):
            return "malformed"
        # One answer a step. A second vector of a client would be in the sum twice.
        if client in self._answered[step]:
            return "again"
        if step < self.step or client not in self._members[step]:
            return "late"
        try:
            (self._take_keys, self._take_sealed, self._take_vector, self._take_shares)[step](
                client, data
            )
        except SumRefusedError:
            return "malformed"
        self._answered[step].add(client)
        return "counted"

    def _take_keys(self, client: int, data: bytes) -> None:
        keys = decode_keys(data)
        # A copied key would make two clients agree on one mask, which then would not cancel.
        known = {key for other in self._keys.values() for key in other[:2]}
        if known & set(keys[:2]):
            raise SumRefusedError("Expected keys of its own, got those of another client.")
        self._keys[client] = keys

    def _take_sealed(self, client: int, data: bytes) -> None:
        self._sealed[client] = decode_sealed(data, len(self._members[1]) - 1)

    def _take_vector(self, client: int, data: bytes) -> None:
        # Masks are added up with the vectors, modulo 2^64; pairs of them cancel.
        self._total += decode_vector(data, self._length)

    def _take_shares(self, client: int, data: bytes) -> None:
        shares = decode_shares(data)
        if len(shares) != len(self._members[2]):
            raise SumRefusedError(f"Expected {len(self._members[2])} shares, got {len(shares)}.")
        self._shares[client] = shares

    def advance(self) -> None:
        """End the current step with those who answered; the last step opens the sum.

        Raises:
          ValueError: If too few clients are left, or if shares do not fit.
        """
        if self.step == STEPS:
            raise ValueError("Expected a sum that is not open yet, got one that is.")
        left = sorted(self._answered[self.step])
        if len(left) < self._threshold:
            raise ValueError(
                f"The sum could not be opened: expected {self._threshold} clients to stay, got "
                f"{len(left)} in step {self.step} of 0 to {STEPS - 1}; begin another round."
            )
        if self.step == STEPS - 1:
            self.result = self._opened(), len(self._members[3])
        self._members.append(left)
        self.step += 1

    def _opened(self) -> np.ndarray:
        """Return the sum of the vectors without their masks, int64 `[length]`."""
        listed = encode_key_list({number: self._keys[number] for number in self._members[1]})
        hashed = transcript(
            self._round_id,
            self._length,
            self._threshold,
            clients=len(self._members[0]),
            key_list=listed,
        )
        inside = self._members[3]
        total = self._total.copy()
        for index, owner in enumerate(self._members[2]):
            shares = {opener: found[index] for opener, found in self._shares.items()}
            if owner in inside:
                seed = self._recovered(owner, shares, _fits_seed)
                total -= own_mask(seed, hashed, owner, self._length)
                continue
            key = self._recovered(owner, shares, _fits_mask_key)
            for other in inside:
                total += pair_mask(
                    key,
                    self._keys[other].mask,
                    hashed,
                    client=owner,
                    peer=other,
                    length=self._length,
                )
        return total.view(np.int64)

    def _recovered(
        self, owner: int, shares: Mapping[int, int], fits: Callable[[bytes, Keys], bool]
    ) -> bytes:
        """Return a secret from the first circular run of shares that fits the announced keys."""
        numbers = sorted(shares)
        runs = len(numbers) if len(numbers) > self._threshold else 1
        for start in range(runs):
            chosen = sorted((numbers + numbers)[start : start + self._threshold])
            secret = combine({number: shares[number] for number in chosen})
            if secret is not None and fits(secret, self._keys[owner]):
                return secret
        raise ValueError(
            f"The sum could not be opened: the shares of client {owner} do not fit its keys; begin "
            "another round."
        )


def _fits_seed(seed: bytes, keys: Keys) -> bool:
    return hashlib.sha256(seed).digest() == keys.commitment


def _fits_mask_key(key: bytes, keys: Keys) -> bool:
    return _public(key) == keys.mask


def _position(members: Sequence[int], sender: int, receiver: int) -> int:
    """Return the index of the receiver among the members without the sender."""
    index = members.index(receiver)
    return index - (sender < receiver)
