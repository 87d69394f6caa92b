"""What the workers of a stage ask Spark for: profiles of task resources, and how many fit.

A profile asks for resources of tasks only, so it needs no dynamic allocation. Spark on one machine
(`local[n]`) has no profiles: there a stage runs in plain slots, and a line says so.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

from headrace.errors import UsageError
from headrace.pipeline.contract import StagePlan
from headrace.spark.pipelines.slot_shares import SLOTS, WorkerNeeds
from headrace.spark.query_failure import GONE, is_gone
from headrace.spark.slots import has_cluster, until_executors

_CPUS = ("cpu", "cpus")

_log = logging.getLogger("headrace")


def task_requests(resources: Mapping[str, float]) -> TaskResourceRequests:
    """Return what a task asks for: one CPU, unless `resources` say otherwise, and all they name."""
    requests = TaskResourceRequests()
    requests.cpus(_cpus(resources))
    for name, amount in resources.items():
        if name not in _CPUS:
            requests.resource(name, amount)
    return requests


class TaskResources:
    """The profiles of one run."""

    def __init__(self, spark: SparkSession, job: str) -> None:
        self._spark = spark
        self._job = job
        self._has_profiles = has_cluster(spark)
        self._task_cpus = int(spark.sparkContext.getConf().get("spark.task.cpus", "1") or 1)
        self._profiles: dict[str, ResourceProfile] = {}
        self._warned: set[str] = set()

    def needs(self, plan: StagePlan) -> WorkerNeeds:
        """Return what the workers of a stage hold while they run."""
        if not plan.resources or not self._has_profiles:
            self._tell_ignored(plan)
            return WorkerNeeds(plan.workers)
        slots = math.ceil(_cpus(plan.resources) / self._task_cpus)
        others = {name: amount for name, amount in plan.resources.items() if name not in _CPUS}
        return WorkerNeeds(plan.workers, {SLOTS: slots, **others})

    def _tell_ignored(self, plan: StagePlan) -> None:
        if not plan.resources or plan.stage in self._warned:
            return
        self._warned.add(plan.stage)
        named = ", ".join(f"{name} {amount:g}" for name, amount in plan.resources.items())
        _log.warning(
            "job %s: %s has no resources to give: stage %s runs in plain slots, without %s",
            *(self._job, self._spark.sparkContext.master, plan.stage, named),
        )

    def profile(self, plan: StagePlan) -> ResourceProfile | None:
        """Return what the Spark job of a stage is run with; None for plain slots."""
        if not plan.resources or not self._has_profiles:
            return None
        if plan.stage not in self._profiles:
            builder = ResourceProfileBuilder().require(task_requests(plan.resources))
            self._profiles[plan.stage] = builder.build
        return self._profiles[plan.stage]

    def capacity(self, plans: Sequence[StagePlan]) -> dict[str, float]:
        """Return how much there is of each resource that the stages name, but for slots.

        Raises UsageError if not one worker of a stage fits into the executors.
        """
        found: dict[str, float] = {}
        for plan in plans:
            profile = self.profile(plan)
            if profile is None:
                continue
            tasks = self._tasks_at_once(plan, profile)
            for name, amount in plan.resources.items():
                if name not in _CPUS:
                    found[name] = max(found.get(name, 0.0), tasks * amount)
        return found

    def _tasks_at_once(self, plan: StagePlan, profile: ResourceProfile) -> int:
        """Ask Spark how many workers fit; wait for executors that are still starting."""
        context: Any = self._spark.sparkContext._jsc.sc()
        failure = ""
        for _ in until_executors(self._spark):
            try:
                java = profile._java_resource_profile
                context.resourceProfileManager().addResourceProfile(java)
                if tasks := int(context.maxNumConcurrentTasks(java)):
                    return tasks
            except Py4JError as error:
                if is_gone(self._spark):
                    raise GONE from None
                failure = _first_line(error)
        named = ", ".join(f"{name} {amount:g}" for name, amount in plan.resources.items())
        raise UsageError(
            f"no executor of {self._spark.sparkContext.master} can run a worker of stage"
            f" {plan.stage!r}, which needs {named}{f': {failure}' if failure else ''}",
            do="give Spark's executors more, or the stage less in `resources`",
        )


def _cpus(resources: Mapping[str, float]) -> int:
    return max([1, *(math.ceil(amount) for name, amount in resources.items() if name in _CPUS)])


def _first_line(error: Py4JError) -> str:
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    return text.partition("\n")[0][:300]
