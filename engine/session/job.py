"""A job: sinks, and the options of a run.

A `Job` is a value. It can be planned and drawn without running, run many times, and shipped. Its
options in code are the lowest layer: headrace.toml, HEADRACE_* variables and the command line
override them (see `settings`).
"""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from ..api.write import SinkHandle
from ..contract.connectors import Delivery
from ..contract.errors import UserError
from ..contract.execution import ExecutionPlan
from ..contract.extras import extra
from ..contract.options import Checkpoints, Runner, RunOptions, Stated
from ..contract.outcomes import JobResult
from ..contract.region import Region
from ..contract.suggestion import did_you_mean
from ..plan.builder import build_plan
from ..plan.mermaid import mermaid
from ..plan.regions import has_regions
from ..plan.svg import EMBEDDED, svg
from ..plan.validate import check_name, check_parallelism
from .handle import JobHandle, Session, Successor
from .settings import find_settings_file, layered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..connectors.memory import CollectSink
    from ..coordinator.autoscale import AutoscaleRules
    from .region_plan import RegionsPlan


class Overrides(Stated, total=False):
    """Options that `run` and `start` take besides the runner; each replaces the job's own."""

    claim: bool
    allow_unclaimed_state: bool
    renamed: Mapping[str, str] | str


class Job:
    """Sinks under one name.

    Attributes:
        name: the job's identity; its checkpoints lie in a folder of this name.
        sinks: in the order given.
        max_parallelism: number of key groups: the limit of every rescale, which no restore can
            change.
        options: as stated in code.
        regions: settings of single regions.
    """

    __slots__ = ("max_parallelism", "name", "options", "regions", "sinks")

    def __init__(
        self,
        name: str,
        *sinks: SinkHandle,
        max_parallelism: int = 128,
        regions: Sequence[Region] = (),
        **stated: Unpack[Stated],
    ) -> None:
        """State a job.

        Args:
            max_parallelism: number of key groups.
            regions: settings of the parts into which logged edges cut the job (`Stream.logged`).
            stated: options: `parallelism` of operators that set none (None: one subtask per CPU),
                `restore` and `fresh` (where a run starts, see `start`), `checkpoints` (None: none;
                a path or URL: there, with the default options), and the other groups, such as
                `network=hr.Network(...)`.

        Raises: UserError when an argument does not fit.
        """
        known = [*Stated.__annotations__, "max_parallelism", "regions"]
        for option in stated:
            if option not in known:
                raise UserError(f"Job has no option {option!r}; {did_you_mean(option, known)}")
        for sink in sinks:
            if not isinstance(sink, SinkHandle):
                raise UserError(f"Job takes sinks such as stream.write.parquet(...), got {sink!r}")
        check_parallelism(max_parallelism, where="max_parallelism")
        self.name = check_name(name, kind="Job")
        self.sinks = sinks
        self.max_parallelism = max_parallelism
        self.regions = tuple(regions)
        for region in self.regions:
            if not isinstance(region, Region):
                raise UserError(f"Job: regions= takes hr.Region(...), got {region!r}")
        given = {option: value for option, value in stated.items() if value is not None}
        self.options = RunOptions(**_options(given))

    @property
    def deliveries(self) -> Mapping[str, Delivery]:
        """{sink's name: its promise when checkpoints are on}."""
        return {sink.name: sink.delivery for sink in self.sinks}

    def plan(self, parallelism: int | None = None) -> ExecutionPlan:
        """Validate the job and lay it out.

        Args:
            parallelism: of operators that set none; None: the job's.

        Returns: of a job of several regions, all of them as one plan.

        Raises: UserError.
        """
        parallelism = parallelism or self.options.parallelism
        return self.plan_with(replace(self.options, parallelism=parallelism))

    def plan_with(self, options: RunOptions) -> ExecutionPlan:
        """Lay the job out with exactly these options, as `start_with` does. Raises: UserError."""
        nodes = [sink.node for sink in self.sinks]
        if has_regions(nodes):
            return self._regions_plan(options).whole
        if self.regions or options.regions:
            raise UserError(
                f"Job {self.name!r} has settings of regions, and no edge of it is logged; cut it"
                " with stream.logged(name=...), or leave them out"
            )
        return build_plan(
            self.name,
            nodes,
            parallelism=options.parallelism,
            max_parallelism=self.max_parallelism,
        )

    def _regions_plan(self, options: RunOptions) -> RegionsPlan:
        """Lay each region out. Raises: UserError."""
        from .region_planning import plan_regions

        nodes = [sink.node for sink in self.sinks]
        return plan_regions(self.name, nodes, self.regions, options, self.max_parallelism)

    def describe(self) -> str:
        """Draw the plan as a mermaid flowchart. Raises: UserError as `plan` does."""
        return mermaid(self.plan())

    def __repr__(self) -> str:
        """Name the job and its sinks."""
        return f"<Job {self.name!r}: {', '.join(sink.name for sink in self.sinks) or 'no sink'}>"

    def _repr_html_(self) -> str:
        """Draw the plan for a notebook; a job that cannot be planned shows the reason."""
        try:
            return f'<div class="{EMBEDDED}">{svg(self.plan())}</div>'
        except UserError as reason:
            return f"<pre>{html.escape(f'{self!r}: {reason}')}</pre>"

    def _repr_svg_(self) -> str | None:
        """Draw the plan as a picture of its own; None: the job cannot be planned."""
        try:
            return svg(self.plan())
        except UserError:
            return None

    def run(
        self,
        runner: Runner = "spark",
        *,
        master: str | None = None,
        spark: SparkSession | None = None,
        **overrides: Unpack[Overrides],
    ) -> JobResult:
        """Run the job to its end; see `start` for the arguments, and `JobHandle.wait` for Ctrl-C.

        Raises: UserError or StorageUnreachable, before anything starts; JobFailed;
        KeyboardInterrupt.
        """
        handle = self.start(runner, master=master, spark=spark, **overrides)
        return handle.wait()

    def start(
        self,
        runner: Runner = "spark",
        *,
        master: str | None = None,
        spark: SparkSession | None = None,
        **overrides: Unpack[Overrides],
    ) -> JobHandle:
        """Start the job and return at once.

        Args:
            runner: "spark" (embedded unless `master` or `spark` says otherwise), or "threads" or
                "processes" of this machine.
            master: Spark master URL.
            spark: a session to use; it is not stopped.
            overrides: see `Overrides`. Among them `restore`: "auto" (the job's newest complete
                checkpoint, or the beginning while there is none), "latest" (the newest, which must
                exist), a checkpoint's number (7 or "7") or a path; and `fresh`: begin anew.

        Raises: UserError or StorageUnreachable, before anything starts.
        """
        stated = self.run_options(runner, master=master, spark=spark, **overrides)
        options, _ = layered(stated, {}, os.environ, find_settings_file(Path.cwd()))
        handle = self.start_with(options)
        if handle.page is not None:
            # A program that asked for a page wants to find it.
            print(f"headrace: the page of job {self.name!r} is {handle.page}", file=sys.stderr)
        return handle

    def run_options(
        self,
        runner: Runner = "spark",
        *,
        master: str | None = None,
        spark: SparkSession | None = None,
        **overrides: Unpack[Overrides],
    ) -> RunOptions:
        """The options that `start` with these arguments states, before settings files and
        environment override them.
        """
        for option in overrides:
            known = [*Overrides.__annotations__, "runner", "master", "spark"]
            if option not in known:
                raise UserError(f"a run has no option {option!r}; {did_you_mean(option, known)}")
        return replace(
            self.options,
            runner=runner,
            master=master,
            spark=spark,
            **_options(overrides),
        )

    def start_with(self, options: RunOptions) -> JobHandle:
        """Start with exactly these options: the last step of `start`, for callers that layer
        options themselves.
        """
        # Here, not above: it brings the launchers, for which a program that only plans need not
        # wait.
        from ..control.server import open_control
        from .autoscaling import autoscale as start_autoscale
        from .launchers import make_launcher
        from .pages import open_page, place_of_page
        from .session import start_job
        from .watching import watch

        if has_regions([sink.node for sink in self.sinks]):
            return self._start_regions(options)
        plan = self.plan_with(options)
        rules = self._autoscale_rules(options)
        collected = self._collected()

        def rescaling(parallelism: int | None, running: Session) -> Successor:
            if options.checkpoints is None:
                raise UserError(f"job {self.name!r} keeps no checkpoints; give it checkpoints=DIR")
            other = self.plan(parallelism)
            return running.successor(other, replace(options, parallelism=parallelism))

        with place_of_page(options) as place:
            session = start_job(plan, options, make_launcher)
        handle = JobHandle(
            self.name,
            session,
            collected=collected,
            rescaling=rescaling,
            parallelism=options.parallelism,
            deliveries=self.deliveries,
            durable=options.checkpoints is not None,
        )
        open_control(handle)
        open_page(place, handle, plan, options, self.deliveries)
        watch(handle)
        if rules is not None:
            start_autoscale(handle, rules, plan.slots)
        return handle

    def _start_regions(self, options: RunOptions) -> JobHandle:
        from ..control.server import open_control
        from .launchers import region_launchers
        from .pages import open_page, place_of_page
        from .regions import start_regions
        from .watching import watch

        if options.checkpoints is None:
            raise UserError(
                f"job {self.name!r} has logged edges, whose logs lie in the checkpoint directory;"
                " give it checkpoints=DIR"
            )
        if options.autoscale.most is not None:
            raise UserError(
                f"job {self.name!r} has several regions, which autoscale does not know; leave"
                " autoscale.most out"
            )
        plan = self._regions_plan(options)
        with (
            place_of_page(options) as place,
            region_launchers(self.name, options, plan.whole.slots) as make_launcher,
        ):
            session = start_regions(plan, options, make_launcher)

        def rescaling(parallelism: int | None, running: Session) -> Successor:
            return running.successor(plan.whole, options)

        handle = JobHandle(
            self.name,
            session,
            collected=self._collected(),
            rescaling=rescaling,
            parallelism=options.parallelism,
            deliveries=self.deliveries,
        )
        open_control(handle)
        open_page(place, handle, plan.whole, options, self.deliveries)
        watch(handle)
        return handle

    def to_dataframe(self, sink: str, *, spark: SparkSession | None = None) -> DataFrame:
        """Read the visible output of a sink as a DataFrame of Spark.

        Args:
            sink: its name; a sink of files or `write.collect`.
            spark: a session; None: the active one.

        Raises: UserError.
        """
        with extra("spark", "to_dataframe"):
            from .dataframes import dataframe_of

        handles = {handle.name: handle for handle in self.sinks}
        if sink not in handles:
            raise UserError(
                f"job {self.name!r} has no sink {sink!r}; {did_you_mean(sink, list(handles))}"
            )
        return dataframe_of(handles[sink], self._collected().get(sink), spark)

    def _autoscale_rules(self, options: RunOptions) -> AutoscaleRules | None:
        """Return automatic rescaling for the policy; None: off. Raises: UserError."""
        from ..coordinator.autoscale import AutoscaleRules

        stated = options.autoscale
        if stated.most is None:
            return None
        if options.checkpoints is None:
            raise UserError("autoscale.most needs a checkpoint directory; give checkpoints=DIR")
        check_parallelism(stated.most, where="autoscale.most", limit=self.max_parallelism)
        return AutoscaleRules(
            stated.least, stated.most, stated.after_ns, stated.idle_after_ns, stated.pause_ns
        )

    def _collected(self) -> dict[str, Callable[[], pa.Table]]:
        """Return {name of a collect sink: reads its table}."""
        from ..connectors.memory import CollectSink

        return {
            handle.name: partial(_table, handle.sink, handle.node.schema)
            for handle in self.sinks
            if isinstance(handle.sink, CollectSink)
        }


def _table(sink: CollectSink, schema: pa.Schema) -> pa.Table:
    table = sink.table()
    # A sink that was given no record does not know its columns.
    return table if table.num_columns else pa.Table.from_batches([], schema)


def _options(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Options as `RunOptions` takes them: checkpoints may be a path or URL alone."""
    if isinstance(checkpoints := stated.get("checkpoints"), str):
        return {**stated, "checkpoints": Checkpoints(checkpoints)}
    return dict(stated)
