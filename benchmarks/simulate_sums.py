"""Secure sums in a seed: clients and servers that leave at each step, in a faulty network.

The code is that of `rknn serve --trust central` and `rknn join`, with one round or two. It runs in
the world of `simulate_network` (`_network_world`). Each sum is compared with the votes and the
noise of the clients in it, which are made anew (`_sum_watch`); what else must hold is in `_sums`.

    make simulate                                       # a million steps of this world too
    make simulate SUMS_SEED=17                          # the history of one seed
    python -m benchmarks.simulate_sums --steps 10000    # so many steps, from seed 0 on
    python -m benchmarks.simulate_sums --planted        # faults in the code, which must be found
"""

from benchmarks._network_program import Program
from benchmarks._sum_faults import FAULTS
from benchmarks._sums import SumHistory

PROGRAM = Program("simulate_sums", __doc__.splitlines()[0], SumHistory, FAULTS)

if __name__ == "__main__":
    PROGRAM.main()
