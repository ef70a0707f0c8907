"""Before a run: requests that are not counted, and how many tokens the server takes a word for."""

from __future__ import annotations

from dataclasses import replace

from forebay.plan.load.callers import Callers
from forebay.plan.load.plan import Plan
from forebay.plan.load.run import Load
from forebay.plan.target import LoadError, Target
from forebay.sim.workloads.distributions import Constant

FEW, MANY = 16, 272
"""Words of the two prompts that are measured."""
AT_ONCE = 8
OTHER_SEED = 1_000_003
"""Added, so that a warm-up with words of the seed's does not say what the run will."""


def _plain(plan: Plan) -> Plan:
    """The plan as one request of a made-up prompt."""
    return replace(
        plan,
        rate=None,
        concurrency=1,
        requests=1,
        speed=1.0,
        seconds=None,
        workload=None,
        texts=None,
        lengths=None,
        shared_prefix=0,
        retries=0,
        seed=plan.seed + OTHER_SEED,
    )


async def warm_up(target: Target, plan: Plan, callers: Callers, n: int) -> None:
    """Send `n` requests as the plan's are, AT_ONCE at a time. Raises LoadError where none of them completes."""
    wide = min(n, AT_ONCE, plan.max_in_flight)
    warm = replace(plan, rate=None, speed=1.0, seconds=None, concurrency=wide, requests=n, seed=plan.seed + OTHER_SEED)
    result = await Load(target, warm, callers=callers).run()
    if not result.completed:
        kind = max(result.errors, key=lambda k: result.errors[k])
        raise LoadError(f"none of {n:,} requests to warm up with completed: {kind}")


async def tokens_of_words(target: Target, plan: Plan, callers: Callers) -> tuple[float, float]:
    """Tokens of a word, and of a prompt without any, by the server's usage. Raises LoadError where it tells none."""
    counts = []
    for words in (FEW, MANY):
        one = replace(
            _plain(plan),
            prompt_tokens=words,
            max_tokens=1,
            words=(1.0, 0.0),
            lengths=(Constant(words), Constant(1)),
        )
        result = await Load(target, one, callers=callers).run()
        if not result.completed:
            raise LoadError(f"a prompt to count tokens with failed: {next(iter(result.errors), 'interrupted')}")
        counts.append(result.prompt_tokens)
    each = (counts[1] - counts[0]) / (MANY - FEW)
    if each <= 0:
        raise LoadError("the server's usage does not tell how many tokens a prompt has; leave --fit-lengths out")
    return each, counts[0] - each * FEW
