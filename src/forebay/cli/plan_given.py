"""What was typed to `forebay plan`, and what files, the catalogue and the ledger have to say to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from forebay.hardware.memory import Deployment
    from forebay.plan.capacity_ledger import Recorded
    from forebay.plan.capacity_lengths import Floats, Lengths
    from forebay.plan.capacity_question import Question, Traffic

PROMPT: Final = "lognormal(512;1.0;131072)"
OUTPUT: Final = "lognormal(200;0.8;16384)"
"""What made-up workloads have, too (docs/workloads.md)."""


class Given:
    """What was typed that files or the catalogue have to be asked about."""

    def __init__(
        self,
        model: str | None,
        gpu: str | None,
        prompt: str | None,
        output: str | None,
        lengths: str | None,
        workload: str | None,
        growth: float,
    ) -> None:
        self.model, self.gpu = model, gpu
        self.prompt, self.output, self.lengths = prompt, output, lengths
        self.workload, self.growth = workload, growth
        self.recorded: Recorded | None = None

    def deployment(self, **settings: Any) -> Deployment:
        """Raises PlanError, LookupError and ValueError of the catalogue."""
        from forebay.hardware.catalogue import find_any, find_any_gpu
        from forebay.hardware.memory import Deployment
        from forebay.plan.capacity_question import PlanError

        for option, value in (("--model", self.model), ("--gpu", self.gpu)):
            if not value:
                raise PlanError(f"{option} is missing: name the {option[2:]} that is planned for")
        assert self.model and self.gpu
        return Deployment(find_any(self.model), find_any_gpu(self.gpu), **settings)

    def question(
        self,
        deployment: Deployment,
        traffic: Traffic,
        hours: str | None,
        slo: tuple[float, float, float],
        **more: Any,
    ) -> Question:
        """Raises PlanError, WorkloadError, LengthError."""
        from dataclasses import replace

        from forebay.plan.capacity_question import PlanError, Promise, Question
        from forebay.plan.capacity_traffic import hours as read_hours
        from forebay.plan.capacity_traffic import of_arrivals

        if not 0 < self.growth <= 1e6:
            raise PlanError(f"--growth must be more than 0 and at most 1,000,000, not {self.growth:g}")
        ways: dict[str, object] = {
            "--users": traffic.users,
            "--qps": traffic.peak,
            "--hours": hours,
            "--traffic": self.workload,
        }
        ways["--from-ledger"] = self.recorded
        named = [option for option, value in ways.items() if value is not None]
        if len(named) != 1 and named != ["--qps", "--traffic"]:
            what = " and ".join(named) + " say the same twice" if named else "there is no traffic to plan for"
            raise PlanError(f"{what}: give one of {', '.join(ways)}")
        found, arrivals, notes = self._lengths()
        if self.recorded is not None:
            traffic = replace(self.recorded.traffic, think=traffic.think)
        elif hours is not None:
            traffic = replace(traffic, hours=tuple(rate * self.growth for rate in read_hours(hours)), text="by hour")
        elif arrivals is not None and traffic.peak is None:
            seen = of_arrivals(arrivals, found.text, self.growth)
            traffic, notes = replace(seen.traffic, think=traffic.think), [*notes, *seen.notes]
        else:
            users, peak = traffic.users, traffic.peak
            traffic = replace(
                traffic,
                users=None if users is None else users * self.growth,
                peak=None if peak is None else peak * self.growth,
            )
        return Question(
            deployment=deployment, lengths=found, promise=Promise(*slo), traffic=traffic, notes=tuple(notes), **more
        )

    def hits(self, given: float | None) -> float:
        if given is not None:
            return given
        return self.recorded.cache_hit if self.recorded is not None else 0.0

    def _lengths(self) -> tuple[Lengths, Floats | None, list[str]]:
        """(lengths, arrivals where a workload was given, notes)."""
        from forebay.plan.capacity_lengths import independent, of_workload, together
        from forebay.plan.capacity_question import PlanError
        from forebay.sim.workloads import open_workload

        marginal = self.prompt is not None or self.output is not None
        if marginal and self.lengths is not None:
            raise PlanError("--lengths stands for both --prompt and --output; give it or these")
        if self.recorded is not None:
            if marginal or self.lengths is not None:
                raise PlanError("--from-ledger has lengths of its own; leave --prompt, --output and --lengths out")
            return self.recorded.lengths, None, list(self.recorded.notes)
        arrivals = None
        of_trace = None
        if self.workload is not None:
            of_trace, arrivals = of_workload(open_workload(self.workload))
        if self.lengths is not None:
            found = (
                together(self.lengths)
                if self.lengths.endswith(".json")
                else of_workload(open_workload(self.lengths))[0]
            )
            return found, arrivals, []
        if of_trace is not None and not marginal:
            return of_trace, arrivals, []
        notes = [
            f"{option} was not given: {default} tokens are assumed"
            for option, value, default in (("--prompt", self.prompt, PROMPT), ("--output", self.output, OUTPUT))
            if value is None
        ]
        return independent(self.prompt or PROMPT, self.output or OUTPUT), arrivals, notes


class Books:
    """The ledger, and what of it is asked for."""

    def __init__(
        self,
        config: Path | None,
        state_dir: Path | None,
        since: str,
        until: str | None,
        zone: str | None,
        where: list[str],
        tiers: list[str],
    ) -> None:
        self._config, self._state_dir = config, state_dir
        self._given = {"since": [since], "where": where}
        self._given |= {name: [text] for name, text in (("until", until), ("zone", zone)) if text is not None}
        self._tiers = tiers

    def read(self, growth: float) -> Recorded:
        """Raises PlanError, ConfigError."""
        import time

        from forebay.cli.usage import configured
        from forebay.ledger.asked import Wrong, asked
        from forebay.ledger.database import Database, DatabaseError
        from forebay.ledger.reports import BadQuery
        from forebay.plan.capacity_ledger import recorded, tiers_of
        from forebay.plan.capacity_question import PlanError

        where = configured(self._config, self._state_dir)
        try:
            span = asked({name: texts for name, texts in self._given.items() if texts}, time.time(), where.ledger.zone)
            chosen: dict[str, tuple[str, ...]] = {}
            for name, value in span.where:
                chosen[name] = (*chosen.get(name, ()), value)
            tiers = tiers_of(self._tiers)
            database = Database(where.database, where.state_dir)
            if database.file is not None and not database.file.exists():
                raise PlanError(f"there is no database {database.file}; is --config or --state-dir the right one?")
            try:
                database.check()
                with database.read() as connection:
                    return recorded(
                        connection, since=span.since, until=span.until, zone=span.zone, where=chosen, tiers=tiers,
                        growth=growth,
                    )  # fmt: skip
            finally:
                database.close()
        except (Wrong, BadQuery) as e:
            raise PlanError(f"--{e}") from None
        except DatabaseError as e:
            raise PlanError(str(e)) from None
