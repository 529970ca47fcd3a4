"""The plan as a mermaid flowchart, for terminals, documentation and bug reports."""

from __future__ import annotations

from ..contract.execution import ExecutionPlan, TaskPlan


def mermaid(plan: ExecutionPlan) -> str:
    """Draw tasks with their parallelism, and edges with their partitioner; back-edges dashed.

    Returns: text that starts with "flowchart LR" and ends without a line break.
    """
    lines = ["flowchart LR"]
    lines += [f"    t{task.index}{_box(task)}" for task in plan.tasks]
    for edge in plan.edges:
        arrow = "-.->" if edge.feedback else "-->"
        lines.append(f"    t{edge.producer} {arrow}|{edge.partitioner.name}| t{edge.consumer}")
    lines += [f"    t{writer} -.->|{log}| t{reader}" for writer, log, reader in logged_edges(plan)]
    return "\n".join(lines)


def logged_edges(plan: ExecutionPlan) -> list[tuple[int, str, int]]:
    """Return the logged edges between regions: (task that writes, name, task that reads)."""
    writers = {task.operators[-1].name: task.index for task in plan.tasks if task.is_sink}
    heads = [(task.operators[0].name, task) for task in plan.tasks if task.is_source]
    return [(writers[name], name, task.index) for name, task in heads if name in writers]


def _box(task: TaskPlan) -> str:
    # A quotation mark would end the label; mermaid writes it as an entity.
    name = task.name.replace('"', "#quot;")
    label = f'"{name} x{task.parallelism}"'
    if task.is_source or task.is_sink:
        return f"([{label}])"
    return f"[{label}]"
