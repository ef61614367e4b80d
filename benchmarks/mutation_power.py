"""How many planted faults verification catches, beside plain comparison with the golden.

Every mutant of every kernel of both forms of both operators, at 3 ranks, judged under the profile `ascend` (fences have
no other effect there is to catch). Plain comparison is one run on the default schedule without detection, of which only
the outputs count and whether it ends.

    python benchmarks/mutation_power.py [--profile seed] [--operator ag_gemm] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import measure  # noqa: F401  (one torch thread)

from tdist.verify.loader import load_operator
from tdist.verify.mutation.mutate import CAUGHT, EQUIVALENT, FAULT, HANG, MISSED, WRONG, Judged, mutate_operator
from tdist.verify.mutation.report import mutation_json
from tdist.verify.options import Options

OPERATORS = ("all_gather", "ag_gemm")
NRANKS = 3


def row(label: str, judged: Sequence[Judged]) -> str:
    """Counts of some mutants in a line."""
    verdicts, plain = Counter(each.verdict for each in judged), Counter(each.golden for each in judged)
    seen = plain[WRONG] + plain[HANG]
    ratio = f"{verdicts[CAUGHT] / seen:.2f}" if seen else "-"
    counts = [len(judged), *(verdicts[name] for name in (CAUGHT, EQUIVALENT, MISSED)), seen, plain[FAULT], ratio]
    return f"{label:28}" + "".join(f"{count:>12}" for count in counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=("seed", "ascend"), default="ascend")
    parser.add_argument("--operator", choices=OPERATORS, action="append")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    heads = ("mutants", "caught", "equivalent", "missed", "plain", "at address", "ratio")
    print(f"{'kernel':28}" + "".join(f"{head:>12}" for head in heads), flush=True)
    reports = []
    for name in given.operator or OPERATORS:
        report = mutate_operator(load_operator(name), Options(name, nranks=NRANKS, profile=given.profile))
        for kernel in dict.fromkeys(each.mutant.kernel for each in report.judged):
            print(row(kernel, [each for each in report.judged if each.mutant.kernel == kernel]), flush=True)
        reports.append(report)
    everything = [each for report in reports for each in report.judged]
    print(row("all", everything))
    for each in everything:
        if each.verdict != CAUGHT:
            where = f"{each.mutant.kernel}/{each.mutant.name}"
            print(f"{each.verdict}: {where}: {each.mutant.what}: {each.proof or each.remark}")
    if given.json is not None:
        given.json.write_text(json.dumps([mutation_json(report) for report in reports], indent=1))
    return max(report.exit_code for report in reports)


if __name__ == "__main__":
    sys.exit(main())
