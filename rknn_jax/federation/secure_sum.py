"""Sum of clients' integer vectors that shows the server the sum alone, in four steps.

This is the protocol of Bonawitz et al. on the complete graph. Every client hides its vector under a
mask for each other client, which cancels in the sum of all, and under a mask of its own. The seeds
of all masks are shared among the clients, so that a threshold of them opens the sum, whoever drops
out after any step. Numbers are added modulo 2^64, so integers come back exactly.

| step | client sends | then the server sends |
| --- | --- | --- |
| 0 | its keys (`encode_keys`) | the keys of all (`encode_key_list`) |
| 1 | encrypted shares for the others (`encode_sealed`) | the shares for it (`encode_dealt`) |
| 2 | its masked vector (`encode_vector`) | the clients in the sum (`encode_numbers`) |
| 3 | a share for each client that dealt shares (`encode_shares`) | nothing |

The server begins with an invitation (`encode_invitation`). All numbers on the wire are
little-endian and of fixed size, in one order: ascending client numbers.

**Keys.** Key agreement is X25519. `derived_key` is HKDF-SHA256, bound to the purpose, to the two
clients, and to a hash of the round and of everybody's keys. Shares are sealed with
ChaCha20-Poly1305, each under a key of its own. A mask is the key stream of ChaCha20.

**Refusals.** A client takes part in one sum. It accepts only a threshold that its owner agreed to,
deals shares to the listed clients alone, and helps to open once. It opens for a set of clients that
has the threshold's size, holds itself, and dealt it shares. Of each client it reveals one share: of
the seed if that client is in the sum, else of the mask key.

**Remaining trust.** Keys are not signed. A server that follows the protocol learns the sum alone,
also together with fewer clients than the threshold. A server that lies about keys can surround a
client with clients of its own making, and sees that client's vector, with its own share of the
noise alone. So does one that tells clients of different lists in steps 2 and 3: they do not compare
lists, as in the paper's version against active adversaries. Vectors cannot be checked: a dishonest
client moves any number by any amount. A client whose sealed shares cannot be opened is refused by
those that they were for, before they spend: so one client can stop a sum. A client that deals false
shares, or commits to another seed, makes the sum fail after all have spent; leave it out of the
next round. One that reveals false shares is outvoted if more than the threshold answer the last
step; of several, not always.

`secure_sum_server` has the server's side.

Reference: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
CCS 2017.
"""

import secrets
from collections.abc import Callable

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from rknn_jax._internal.option_names import option
from rknn_jax.federation.secure_sum_keys import (
    KEY_BYTES,
    STEPS,
    SumRefusedError,
    agree,
    derived_key,
    key_info,
    own_mask,
    pair_mask,
    public_keys,
    split,
    transcript,
)
from rknn_jax.federation.secure_sum_layout import (
    decode_dealt,
    decode_invitation,
    decode_key_list,
    decode_numbers,
    decode_shares,
    encode_keys,
    encode_sealed,
    encode_shares,
    encode_vector,
)


class Participant:
    """One client's part in one sum: four steps, each once, in order.

    A refusal ends the client's part. Calls must not overlap.
    """

    def __init__(
        self,
        round_id: str,
        length: int,
        least_threshold: Callable[[int], int],
        vector: Callable[[], np.ndarray],
    ) -> None:
        """Draw nothing yet; keys are made in step 0.

        Args:
          round_id: Id of the round, which every derived key is bound to.
          length: Length of the vector.
          least_threshold: Function from the number of invited clients to the least threshold that
            the owner agrees to.
          vector: Function that returns the vector, int64 `[length]`. It is called once, in step 2,
            after everything else was checked. Its errors end the client's part.
        """
        self._round_id = round_id
        self._length = length
        self._least_threshold = least_threshold
        self._vector = vector
        self._next: int | None = 0
        self._last: tuple[int, bytes, bytes] | None = None

    def step(self, number: int, data: bytes) -> bytes:
        """Take one step.

        Asked again for the last step with the same bytes, the client returns the same answer.

        Args:
          number: Step, 0 to 3.
          data: The server's bytes for this client and step.

        Returns:
          The client's bytes for the server.

        Raises:
          SumRefusedError: If the step is out of order, malformed, or not agreed to.
        """
        if self._last is not None and self._last[:2] == (number, data):
            return self._last[2]
        expected, self._next = self._next, None  # an error ends the client's part
        if number != expected or number >= STEPS:
            raise SumRefusedError(
                f"Expected step {expected} of the sum, got step {number}; begin another round."
            )
        steps = (self._announce, self._deal, self._mask, self._open)
        reply = steps[number](data)
        self._last = number, data, reply
        self._next = number + 1
        return reply

    def _announce(self, data: bytes) -> bytes:
        self._number, self._threshold, self._clients = decode_invitation(data)
        least = self._least_threshold(self._clients)
        if self._threshold < least:
            raise SumRefusedError(
                f"Expected a threshold of {least} or more of {self._clients} clients, got "
                f"{self._threshold}; raise {option('quorum')}."
            )
        # Two keys: a share of the mask key may be revealed later, and must open no sealed share.
        self._channel_key = secrets.token_bytes(KEY_BYTES)
        self._mask_key = secrets.token_bytes(KEY_BYTES)
        self._seed = secrets.token_bytes(KEY_BYTES)
        self._keys = public_keys(self._channel_key, self._mask_key, self._seed)
        return encode_keys(self._keys)

    def _deal(self, data: bytes) -> bytes:
        self._peers = decode_key_list(data)
        own = self._peers.pop(self._number, None)
        if own != (self._keys.channel, self._keys.mask):
            raise SumRefusedError("Expected this client's keys in the list, got others.")
        if not self._threshold <= len(self._peers) + 1 <= self._clients:
            raise SumRefusedError(
                f"Expected keys of {self._threshold} to {self._clients} clients, got "
                f"{len(self._peers) + 1}."
            )
        # All later keys are bound to it, so that clients who were shown different lists cannot open
        # each other's shares, and the sum stops.
        self._transcript = transcript(
            self._round_id, self._length, self._threshold, clients=self._clients, key_list=data
        )
        everybody = [self._number, *self._peers]
        # Shamir: fewer than the threshold of shares say nothing of a key.
        mask_shares = split(self._mask_key, self._threshold, everybody)
        seed_shares = split(self._seed, self._threshold, everybody)
        self._shares = {self._number: (mask_shares[self._number], seed_shares[self._number])}
        sealed = []
        for peer in self._peers:
            plain = encode_shares([mask_shares[peer], seed_shares[peer]])
            cipher, info = self._cipher(self._number, peer)
            sealed.append(cipher.encrypt(bytes(12), plain, info))
        return encode_sealed(sealed)

    def _cipher(self, sender: int, receiver: int) -> tuple[ChaCha20Poly1305, bytes]:
        """Return the cipher for one pair in one direction, used once, and its associated data."""
        peer = receiver if sender == self._number else sender
        agreed = agree(self._channel_key, self._peers[peer][0])
        info = key_info(b"shares", self._transcript, sender, receiver)
        # A key for one message alone, which is why a nonce of zeros is safe.
        return ChaCha20Poly1305(derived_key(agreed, info)), info

    def _mask(self, data: bytes) -> bytes:
        dealt = decode_dealt(data)
        if not dealt.keys() <= self._peers.keys() or len(dealt) + 1 < self._threshold:
            raise SumRefusedError(
                f"Expected shares of {self._threshold - 1} or more of the listed clients, got "
                f"{len(dealt)}."
            )
        for peer, sealed in dealt.items():
            self._shares[peer] = self._unsealed(peer, sealed)
        mask = own_mask(self._seed, self._transcript, self._number, self._length)
        for peer in dealt:
            # Added by one of the pair and subtracted by the other, modulo 2^64.
            mask += pair_mask(
                self._mask_key,
                self._peers[peer][1],
                self._transcript,
                client=self._number,
                peer=peer,
                length=self._length,
            )
        vector = np.asarray(self._vector())  # charges the client's ledger
        if vector.shape != (self._length,) or vector.dtype != np.int64:
            raise ValueError(
                f"Expected an int64 vector of {self._length} numbers, got {vector.dtype} "
                f"{vector.shape}."
            )
        # Uniform without the mask's seeds, so that the server learns nothing of this vector alone.
        return encode_vector(vector.view(np.uint64) + mask)

    def _unsealed(self, sender: int, sealed: bytes) -> tuple[int, int]:
        """Return the sender's shares for this client: of its mask key, and of its seed."""
        cipher, info = self._cipher(sender, self._number)
        try:
            plain = cipher.decrypt(bytes(12), sealed, info)
        except InvalidTag as error:
            raise SumRefusedError(
                f"Expected shares that client {sender} sealed for this client, got others."
            ) from error
        mask_share, seed_share = decode_shares(plain)
        return mask_share, seed_share

    def _open(self, data: bytes) -> bytes:
        inside = set(decode_numbers(data))
        if not inside <= self._shares.keys() or self._number not in inside:
            raise SumRefusedError(
                "Expected to open a sum of this client and of others that dealt it shares, got "
                "another."
            )
        if len(inside) < self._threshold:
            raise SumRefusedError(
                f"Expected {self._threshold} or more clients in the sum, got {len(inside)}."
            )
        # Index 1, the seed, for those in the sum, and 0, the mask key, for those who left. Both of
        # one client would open its vector.
        chosen = [self._shares[number][number in inside] for number in sorted(self._shares)]
        return encode_shares(chosen)
