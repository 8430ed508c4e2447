"""What a plan names, looked up before vLLM is loaded: that takes 20 s, and a slip none."""

from pathlib import Path

from ullage_tune import generated
from ullage_tune.engine_file import EngineError, engine_of
from ullage_tune.gpu import Engine
from ullage_tune.plan import SCENARIO_NAMES, Plan, PlanError
from ullage_tune.policies import POLICIES


def looked_up(plan: Plan) -> Engine:
    """The engine. Raises `PlanError`: no such policy, scenario, engine or workload."""
    for kind, wanted, there in (
        ("policy", plan.policies, tuple(POLICIES)),
        ("scenario", plan.scenarios, SCENARIO_NAMES),
    ):
        for name in wanted:
            if name not in there:
                raise PlanError(f"--{kind} {name!r}: wanted one of {', '.join(there)}")
    for name in plan.workloads:
        if name not in generated.WORKLOADS and not Path(name).exists():
            known = ", ".join(generated.WORKLOADS)
            raise PlanError(f"--workload {name!r}: wanted a file, or one of {known}")
    try:
        return engine_of(plan.engine)
    except EngineError as error:
        raise PlanError(f"--engine {error}") from None
