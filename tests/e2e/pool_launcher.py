"""A launcher that the kill tests kill: prints the pids of its pool, then runs a function that waits for ever."""

import json
import sys

from tdist.platforms.sim.process.pool import RankPool

if __name__ == "__main__":
    with RankPool(2) as pool:
        print(json.dumps(pool.pids), flush=True)
        pool.run(sys.argv[1])
