// The last checkpoints: a bar each, with the ghost of what an aligned one would take; by click the
// parts of one, subtask by subtask.

import { h, keyed, s, say, set } from "./elements.js";
import { clock, cut, plural, size, time } from "./format.js";

const SHOWN = 60;
const TALL = 118;
const LEFT = 54;
const TOP = 8;
const PARTS = [
  ["start_delay_ms", "delay", "from the trigger to the first barrier"],
  ["alignment_ms", "alignment", "until the cut is complete"],
  ["sync_ms", "sync", "freezing the state"],
  ["async_ms", "async", "storing the state"],
];

export class Checkpoints {
  constructor(parent, detail) {
    this.parent = parent;
    this.detail = detail;
    this.selected = null;
    this.words = h("p", { class: "quiet", id: "newest" });
    this.grid = s("g", { class: "grid" });
    this.bars = s("g");
    this.svg = s("svg", { height: TALL + TOP + 18, role: "group",
      "aria-label": "The last checkpoints, oldest first; arrow keys go from one to another" },
    s("defs", null, s("pattern", { id: "crossed", width: 6, height: 6,
      patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    s("rect", { class: "crossed", width: 2, height: 6 }))),
    this.grid, this.bars);
    this.svg.addEventListener("keydown", (event) => this.key(event));
    parent.append(this.words, this.svg);
    new ResizeObserver(() => this.look && this.update(this.look)).observe(parent);
  }

  update(look) {
    this.look = look;
    const shown = look.checkpoints.slice(-SHOWN);
    say(this.words, newest(shown));
    const width = Math.max(280, this.parent.clientWidth);
    set(this.svg, "width", width);
    const decades = this.scale(shown);
    this.drawGrid(decades, width);
    const slot = Math.min(26, (width - LEFT) / Math.max(SHOWN, shown.length));
    const start = width - slot * shown.length;
    const y = (ms) => TOP + TALL - TALL * (Math.log10(Math.max(1, ms)) / decades);
    keyed(this.bars, shown, (item) => item.checkpoint, (item) => this.make(item.checkpoint),
      (bar, item) => {
        const position = shown.indexOf(item);
        set(bar, "transform", `translate(${(start + slot * position).toFixed(1)} 0)`);
        this.updateBar(bar, item, slot, y);
      });
    const focused = this.selected ?? shown.at(-1)?.checkpoint;
    for (const bar of this.bars.children) {
      const number = Number(bar.getAttribute("data-checkpoint"));
      set(bar, "tabindex", number === focused ? 0 : -1);
      set(bar, "aria-pressed", String(number === this.selected));
    }
  }

  scale(shown) {
    const times = shown.flatMap((item) => [item.duration_ms ?? 1, item.aligned_estimate_ms ?? 1]);
    return Math.max(2, Math.ceil(Math.log10(Math.max(10, ...times)) - 0.05));
  }

  drawGrid(decades, width) {
    const powers = Array.from({ length: decades + 1 }, (_, power) => power);
    keyed(this.grid, powers, (power) => power,
      () => s("g", null, s("line", { x1: LEFT }), s("text", { x: LEFT - 8, "text-anchor": "end" })),
      (line, power) => {
        const y = (TOP + TALL - (TALL * power) / decades).toFixed(1);
        const [rule, text] = line.children;
        set(rule, "x2", width);
        set(rule, "y1", y);
        set(rule, "y2", y);
        set(text, "y", Number(y) + 4);
        say(text, time(10 ** power).replace(".0", ""));
      });
  }

  make(number) {
    return s("g", { class: "checkpoint", role: "button", "data-checkpoint": number,
      onclick: () => this.choose(number) },
    s("title"), s("rect", { class: "hit", y: 0, height: TOP + TALL + 16 }),
    s("rect", { class: "ghost", rx: 2 }), s("rect", { class: "height", rx: 2 }),
    s("text", { class: "cross", y: TOP + TALL / 2 + 4, "text-anchor": "middle" }),
    s("rect", { class: "mark", y: TOP + TALL + 5, height: 3, rx: 1.5 }));
  }

  updateBar(bar, item, slot, y) {
    const [title, hit, ghost, height, cross, mark] = bar.children;
    const wide = Math.max(2, slot - Math.min(4, slot * 0.3));
    const ground = TOP + TALL;
    const ms = item.duration_ms ?? 1;
    const top = item.outcome === "failed" ? TOP : Math.min(ground - 2, y(ms));
    set(bar, "class", `checkpoint ${item.outcome} ${item.mode}`);
    place(hit, slot, 0, null);
    place(height, wide, top, ground - top);
    const estimate = item.outcome === "completed" ? item.aligned_estimate_ms ?? 0 : 0;
    const high = estimate > ms * 1.2 ? y(estimate) : ground;
    set(ghost, "visibility", high < ground ? null : "hidden");
    place(ghost, wide, high, Math.max(0, ground - high));
    set(cross, "x", wide / 2);
    say(cross, item.outcome === "failed" ? "✕" : "");
    place(mark, wide, TOP + TALL + 5, 3);
    const text = sentence(item);
    set(bar, "aria-label", text);
    say(title, text);
  }

  key(event) {
    const bars = [...this.bars.children];
    const at = bars.indexOf(event.target);
    if (at < 0) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) bars[Math.max(0, Math.min(bars.length - 1, at + step))].focus();
    else if (event.key === "Home") bars[0].focus();
    else if (event.key === "End") bars.at(-1).focus();
    else if (event.key === "Enter" || event.key === " ") {
      this.choose(Number(event.target.getAttribute("data-checkpoint")));
    } else return;
    event.preventDefault();
  }

  focus() {
    (this.bars.querySelector("[tabindex='0']") ?? this.svg).focus();
  }

  async choose(number) {
    this.selected = this.selected === number ? null : number;
    this.update(this.look);
    if (this.selected === null) return this.close();
    const response = await fetch(`/api/checkpoints/${number}`);
    const shown = this.look.checkpoints.find((item) => item.checkpoint === number);
    const item = response.ok ? await response.json() : shown;
    if (item && this.selected === number) this.showDetail(item);
  }

  close() {
    this.selected = null;
    this.detail.hidden = true;
    if (this.look) this.update(this.look);
  }

  showDetail(item) {
    this.detail.hidden = false;
    const names = this.look.tasks.map((task) => task.name);
    this.detail.replaceChildren(
      h("div", { class: "title" }, h("h3", null, title(item)), h("span", { class: "spring" }),
        h("button", { type: "button", onclick: () => this.close() }, "Close")),
      h("p", { class: item.outcome === "failed" ? "reason" : "quiet" }, facts(item)),
      item.subtasks.length ? gantt(item, names) : h("p", { class: "quiet" },
        item.outcome === "completed" ? "Its parts are not known any more." : ""),
    );
  }
}

function place(rect, width, y, height) {
  set(rect, "width", Math.max(0, width).toFixed(1));
  set(rect, "y", y.toFixed(1));
  if (height !== null) set(rect, "height", Math.max(0, height).toFixed(1));
}

const title = (item) => (item.savepoint ? "savepoint " : "chk-") + item.checkpoint;

function facts(item) {
  const parts = [`${clock(item.started_ms)}, ${item.mode}`];
  if (item.outcome === "failed") parts.push(`failed: ${item.reason ?? "no reason is known"}`);
  else parts.push(item.duration_ms === null ? "under way" : `took ${time(item.duration_ms)}`);
  if (item.state_bytes) parts.push(`${size(item.state_bytes)} of state`);
  if (item.inflight_bytes) parts.push(`${size(item.inflight_bytes)} in flight`);
  if (item.aligned_estimate_ms && item.outcome === "completed") {
    parts.push(`aligned would have taken about ${time(item.aligned_estimate_ms)}`);
  }
  return parts.join("; ");
}

const sentence = (item) => `${title(item)}: ${facts(item)}`;

function newest(shown) {
  if (!shown.length) return "There is no checkpoint yet.";
  const failed = shown.filter((item) => item.outcome === "failed").length;
  const last = shown.findLast((item) => item.outcome === "completed");
  const parts = last ? [sentence(last)] : [];
  if (failed) parts.push(`${plural(failed, "failed checkpoint")} of the last ${shown.length}`);
  return `${parts.join(". ")}.`;
}

/** Bars by subtask: delay, alignment, freezing, storing. */
function gantt(item, names) {
  const total = (part) => PARTS.reduce((sum, [field]) => sum + part[field], 0);
  const most = Math.max(0.001, ...item.subtasks.map(total));
  const legend = h("ul", { class: "legend" }, PARTS.map(([field, name, meaning]) =>
    h("li", { title: meaning }, h("i", { class: field.replace("_ms", "") }), name)));
  const rows = item.subtasks.map((part) => {
    const bars = PARTS.map(([field, name]) => {
      const bar = h("i", { class: field.replace("_ms", ""),
        title: `${name} ${time(part[field])}` });
      bar.style.width = `${(100 * part[field]) / most}%`;
      return bar;
    });
    return h("tr", null,
      h("th", { scope: "row" }, `${cut(names[part.task] ?? "?", 26)} #${part.subtask}`),
      h("td", { class: "wide" }, h("span", { class: "gantt" }, bars)),
      h("td", null, time(total(part))), h("td", null, size(part.state_bytes)),
      h("td", null, size(part.inflight_bytes)));
  });
  const head = ["subtask", `0 to ${time(most)}`, "took", "state", "in flight"];
  return h("div", null, legend, h("div", { class: "scroll tall" }, h("table", { class: "gantts" },
    h("thead", null, h("tr", null, head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, rows))));
}
