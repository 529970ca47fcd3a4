// The selected task: its numbers, its operators, and a strip for each subtask.

import { h, keyed, say, set } from "./elements.js";
import { count, plural, rate, seconds, size, time } from "./format.js";
import { bar, hottest, updateBar } from "./graph.js";

const NUMBERS = [
  ["rows/s in", (task) => rate(task.in_per_s)],
  ["rows/s out", (task) => rate(task.out_per_s)],
  ["queued", (task) => size(task.queued_bytes)],
  ["state", (task) => size(task.state_bytes)],
  ["watermark lag", (task) => seconds(task.watermark_lag_s)],
  ["call p50", (task) => time(task.call_p50_ms)],
  ["call p99", (task) => time(task.call_p99_ms)],
  ["late", (task) => count(task.late)],
  ["failed", (task) => count(task.failed)],
];

export class TaskPanel {
  constructor(parent) {
    this.parent = parent;
    this.title = h("h2");
    this.bar = bar();
    this.wide = h("span", { class: "quiet" });
    this.numbers = NUMBERS.map(([name]) => {
      const value = h("dd");
      return { value, row: h("div", null, h("dt", null, name), value) };
    });
    this.operators = h("p", { class: "operators" });
    this.body = h("tbody");
    parent.append(
      h("div", { class: "title" }, this.title, this.wide),
      this.bar,
      h("dl", { class: "numbers" }, this.numbers.map((number) => number.row)),
      h("div", { class: "scroll tall" }, h("table", { class: "subtasks" },
        h("thead", null, h("tr", null, ["#", "worker", "time", "rows/s", "queued", "call"].map(
          (name) => h("th", { scope: "col" }, name)))),
        this.body)),
      this.operators,
    );
  }

  update(task, facts) {
    say(this.title, task.name);
    say(this.wide, plural(task.parallelism, "subtask"));
    updateBar(this.bar, task);
    NUMBERS.forEach(([, read], index) => say(this.numbers[index].value, read(task)));
    const built = facts?.tasks[task.index]?.operators ?? [];
    const places = built.map((operator) => operator.name +
      (operator.built_at ? ` (${operator.built_at})` : ""));
    say(this.operators, (places.length ? places : task.operators).join(" → "));
    const hot = hottest(task);
    keyed(this.body, task.subtasks, (subtask) => subtask.subtask, makeRow, (row, subtask) => {
      const [, worker, , flow, queued, call] = row.children;
      set(row, "class", subtask.subtask === hot ? "hot" : null);
      say(worker, String(subtask.worker));
      updateBar(row.bar, subtask);
      say(flow, rate(task.kind === "source" ? subtask.out_per_s : subtask.in_per_s));
      say(queued, size(subtask.queued_bytes));
      say(call, subtask.call_s ? seconds(subtask.call_s) : "");
    });
  }
}

function makeRow(subtask) {
  const part = bar();
  const row = h("tr", { "data-subtask": subtask.subtask },
    h("th", { scope: "row" }, `#${subtask.subtask}`), h("td"), h("td", { class: "wide" }, part),
    h("td"), h("td"), h("td"));
  row.bar = part;
  return row;
}
