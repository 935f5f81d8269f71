"""python -m chaos: plays rounds for some minutes, and prints what was found."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from chaos.plan import PROFILES, draw
from chaos.rounds import Outcome, as_json, play, total

EXAMPLES = """examples (in the directory tests):
  python -m chaos                                        ten minutes, all profiles in turn
  python -m chaos --minutes 60 --json                    one JSON object for each round, and one for all
  python -m chaos --profile keep --seed 7 --round 100    one plan again
  python -m chaos --profile keep --seed 7 --plan         print the plan, play nothing
"""


def main() -> int:
    parser = _parser()
    a = parser.parse_args()
    if a.out is not None and a.out.exists() and any(a.out.iterdir()):
        parser.error(f"--out {a.out} is not empty: name another directory")
    seed = a.seed if a.seed is not None else random.randrange(10**6)
    profiles = [a.profile] if a.profile else [*PROFILES]
    if a.plan:
        print(draw(seed, profiles[0], a.round).text())
        return 0
    directory = a.out or Path(tempfile.mkdtemp(prefix="chaos-"))
    # A seed with a profile names one plan: play that one, unless more was asked for.
    minutes = (
        a.minutes if a.minutes is not None else (0 if a.seed is not None and a.profile else 10)
    )
    outcomes: list[Outcome] = []
    try:
        asyncio.run(_play(outcomes, seed, profiles, minutes, a.round, directory, as_lines=a.json))
    except KeyboardInterrupt:
        print(f"interrupted; what was written is in {directory}", file=sys.stderr)
        return 130
    print(json.dumps(_summary(outcomes)) if a.json else _text(outcomes))
    return 0 if all(one.is_good for one in outcomes) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description="Play random faults on real brokers and clients, and check every delivery.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, help="rounds begin within this time (default 10)")
    parser.add_argument("--seed", type=int, help="of the first round (default random)")
    parser.add_argument(
        "--profile", choices=[*PROFILES], help="only this one (default all in turn)"
    )
    parser.add_argument(
        "--round", type=float, default=100.0, metavar="SECONDS", help="of faults (default 100)"
    )
    parser.add_argument("--plan", action="store_true", help="print the plan, and play nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where logs and journals go")
    return parser


async def _play(
    outcomes: list[Outcome],
    seed: int,
    profiles: list[str],
    minutes: float,
    seconds: float,
    directory: Path,
    *,
    as_lines: bool,
) -> None:
    end = time.monotonic() + 60 * minutes
    while not outcomes or time.monotonic() < end:
        number = len(outcomes)
        profile = profiles[number % len(profiles)]
        place = directory / f"{profile}-{seed + number}"
        outcome = await play(draw(seed + number, profile, seconds), place)
        outcomes.append(outcome)
        if as_lines:
            print(as_json(outcome), flush=True)
        else:
            said = "good" if outcome.is_good else f"BAD\n{outcome.text()}"
            print(f"seed {seed + number}, profile {profile}: {said}", flush=True)


def _summary(outcomes: list[Outcome]) -> dict[str, object]:
    acts = Counter[str]()
    for one in outcomes:
        acts.update(one.played)
    return {
        "rounds": len(outcomes),
        "bad": [[one.plan.profile, one.plan.seed] for one in outcomes if not one.is_good],
        "confirmed": sum(one.confirmed for one in outcomes),
        **total(outcomes)._asdict(),
        "acts": dict(sorted(acts.items())),
    }


def _text(outcomes: list[Outcome]) -> str:
    facts = _summary(outcomes)
    acts = facts.pop("acts")
    assert isinstance(acts, dict)
    lines = [f"{name:>12}  {value}" for name, value in facts.items()]
    return "\n".join([*lines, "acts", *(f"{name:>12}  {count}" for name, count in acts.items())])


if __name__ == "__main__":
    sys.exit(main())
