"""A network in a seed: rounds of a federation under faults of network, clocks and processes.

The code is that of `rknn serve` and `rknn join`. A seed decides which of their threads goes on,
when which bytes arrive, which connections end and how, who is killed, and how the wall clock jumps
(`_network_world`). What must hold is checked after each step (`_rounds`).

    make simulate                                          # a million steps
    make simulate NETWORK_SEED=17                          # the history of one seed
    python -m benchmarks.simulate_network --steps 10000    # so many steps, from seed 0 on
    python -m benchmarks.simulate_network --planted        # faults in the code, which must be found
"""

from benchmarks._network_faults import FAULTS
from benchmarks._network_program import Program
from benchmarks._rounds import RoundHistory

PROGRAM = Program("simulate_network", __doc__.splitlines()[0], RoundHistory, FAULTS)

if __name__ == "__main__":
    PROGRAM.main()
