"""The sentence about a worker that lives and sends no messages of its own: user code in it holds
the GIL.
"""

from __future__ import annotations

from ..contract.execution import ExecutionPlan, OperatorPlan
from ..contract.messages import Call, Pulse


def unanswered(plan: ExecutionPlan, pulse: Pulse, silence_ns: int) -> str:
    """Name the operators whose calls may hold the GIL, and a remedy where one exists."""
    head = f"worker {pulse.worker} has not answered for {silence_ns // 10**9} s"
    found = [_operator(plan, call) for call in pulse.calls]
    operators = {operator.name: operator for operator in found if operator is not None}
    if not operators:
        return f"{head}: its process lives, and something in it holds the GIL"
    text = f"{head}: {' or '.join(map(_place, operators.values()))} holds the GIL"
    if all(map(_can_be_isolated, operators.values())):
        text += "; isolate=True runs its function in a process of its own"
    return text


def _operator(plan: ExecutionPlan, call: Call) -> OperatorPlan | None:
    """Find the operator; None: the companion read a record that was being written."""
    if not 0 <= call.task < len(plan.tasks):
        return None
    operators = plan.tasks[call.task].operators
    return operators[call.operator] if 0 <= call.operator < len(operators) else None


def _place(operator: OperatorPlan) -> str:
    return f"{operator.name} ({operator.built_at})" if operator.built_at else operator.name


def _can_be_isolated(operator: OperatorPlan) -> bool:
    return operator.operator is not None and not operator.stateful
