"""The peers' side of `benchmarks.peers`, in the interpreter that has the peers installed.

A line of JSON goes in; measurements come out.
"""

import json
import sys
import time
from importlib.metadata import version

import numpy as np
from multi_freq_ldpy.pure_frequency_oracles import LH, UE
from pure_ldp.frequency_oracles.local_hashing import LHClient, LHServer
from pure_ldp.frequency_oracles.unary_encoding import UEClient, UEServer

EPSILON = 1.0


def pure_ldp(mechanism: str, d: int, values: list[int]) -> np.ndarray:
    """Randomize and estimate with pure-ldp, whose values count from 1."""
    if mechanism == "local_hashing":
        client = LHClient(EPSILON, d, use_olh=True)
        server = LHServer(EPSILON, d, use_olh=True)
    else:
        oue = mechanism == "optimized_unary_encoding"
        client = UEClient(EPSILON, d, use_oue=oue)
        server = UEServer(EPSILON, d, use_oue=oue)
    server.aggregate_all([client.privatise(value + 1) for value in values])
    return server.estimate_all(range(1, d + 1), suppress_warnings=True)


def multi_freq_ldpy(mechanism: str, d: int, values: list[int]) -> np.ndarray:
    """Randomize and estimate with multi-freq-ldpy, already compiled by numba."""
    if mechanism == "local_hashing":
        return LH.LH_Aggregator_MI(
            [LH.LH_Client(value, d, EPSILON, True) for value in values], d, EPSILON, True
        )
    oue = mechanism == "optimized_unary_encoding"
    return UE.UE_Aggregator_MI(
        [UE.UE_Client(value, d, EPSILON, oue) for value in values], EPSILON, oue
    )


PEERS = {"pure-ldp": pure_ldp, "multi-freq-ldpy": multi_freq_ldpy}

if __name__ == "__main__":
    print(json.dumps({peer: version(peer) for peer in PEERS}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        run = PEERS[asked["peer"]]
        d = asked["d"]
        values = np.random.default_rng(0).integers(0, d, asked["clients"]).tolist()
        run(asked["mechanism"], d, values[:10])  # compile before the clock starts
        wall = time.perf_counter()
        cpu = time.process_time()
        estimates = run(asked["mechanism"], d, values)
        seconds = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        print(json.dumps(seconds | {"estimates": len(estimates)}), flush=True)
