"""Faults of clients that sum under masks: what they open, and to whom."""

from benchmarks._faults._known import CLIENT, MASKS, Known

FAULTS = (
    Known(
        "roles",
        "a client adds itself to a sum twice",
        "rknn_jax/federation/client.py",
        "            if self.client._path(self.round, NOTED).exists() or "
        "self.client._begun(self.round):",
        "            if False:",
        CLIENT,
    ),
    Known(
        "roles",
        "a client opens a sum that it is not in",
        "rknn_jax/federation/secure_sum.py",
        "if not inside <= self._shares.keys() or self._number not in inside:",
        "if not inside <= self._shares.keys():",
        MASKS,
    ),
    Known(
        "roles",
        "a client opens a sum of few",
        "rknn_jax/federation/secure_sum.py",
        "        if len(inside) < self._threshold:",
        "        if not inside:",
        MASKS,
    ),
    Known(
        "roles",
        "the share of the other secret is opened",
        "rknn_jax/federation/secure_sum.py",
        "self._shares[number][number in inside]",
        "self._shares[number][number not in inside]",
        MASKS,
    ),
    Known(
        "roles",
        "a client accepts any threshold",
        "rknn_jax/federation/secure_sum.py",
        "        if self._threshold < least:",
        "        if self._threshold < 1:",
        MASKS,
    ),
    Known(
        "roles",
        "a server may list keys of its own for a client",
        "rknn_jax/federation/secure_sum.py",
        "        if own != (self._keys.channel, self._keys.mask):",
        "        if own is None:",
        MASKS,
    ),
    Known(
        "sharing",
        "shares need one client fewer",
        "rknn_jax/federation/secure_sum_keys.py",
        "for _ in range(threshold - 1)]",
        "for _ in range(threshold - 2)]",
        MASKS,
    ),
    Known(
        "sharing",
        "coefficients of shares are small",
        "rknn_jax/federation/secure_sum_keys.py",
        "secrets.randbelow(PRIME) for _",
        "secrets.randbelow(2) for _",
        MASKS,
    ),
    Known(
        "sharing",
        "masks are the same in every sum of two clients",
        "rknn_jax/federation/secure_sum_keys.py",
        'return NAME + b" " + purpose + transcript + struct.pack("<QQ", first, second)',
        'return NAME + b" " + purpose + struct.pack("<QQ", first, second)',
        MASKS,
    ),
    Known(
        "sharing",
        "a client has no mask of its own",
        "rknn_jax/federation/secure_sum.py",
        "mask = own_mask(self._seed, self._transcript, self._number, self._length)",
        "mask = np.zeros(self._length, np.uint64)",
        MASKS,
    ),
)
