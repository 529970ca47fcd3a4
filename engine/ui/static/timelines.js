// Numbers over one axis of time, with one cursor for all, and marks for what happened.

import { h, keyed, s, say, set } from "./elements.js";
import { clock, cut, rate, seconds, size, time } from "./format.js";

const TALL = 92;
const TOP = 6;
const LEFT = 60;
const STRIP = 20;
/** Points further apart than this are not joined: nobody looked in between. */
const GAP_MS = 75e3;

const PLOTS = [
  { name: "rows/s", format: rate, series: [
    { name: "in", class: "one", read: (point) => point.in_per_s },
    { name: "out", class: "two", read: (point) => point.out_per_s }] },
  { name: "queued", format: size, binary: true, series: [
    { name: "on edges", class: "one", area: true, read: (point) => point.queued_bytes }] },
  { name: "latency", format: time, series: [
    { name: "p50", class: "one", read: (point) => point.latency_p50_ms },
    { name: "p99", class: "two", read: (point) => point.latency_p99_ms }] },
  { name: "watermark lag", format: seconds, series: [
    { name: "most", class: "one", area: true, read: (point) => point.watermark_lag_s }] },
];

const SPANS = [["2 min", 120e3], ["15 min", 900e3], ["all", Infinity]];

const MARKS = {
  attempt_failed: "bad", worker_lost: "bad", checkpoint_failed: "bad", failover: "bad",
  rescaled: "change", running: "good", savepoint: "change",
};

export class Timelines {
  constructor(parent, choice, now) {
    this.now = now;
    this.parent = parent;
    this.span = SPANS[1][1];
    this.at = null;
    this.points = [];
    this.plots = PLOTS.map((plot) => this.makePlot(plot));
    this.strips = h("div", { class: "strips" });
    parent.append(h("div", { class: "plots" }, this.plots.map((plot) => plot.element)),
      this.strips);
    choice.append(...SPANS.map(([name, span]) => h("button", { type: "button",
      "aria-pressed": String(span === this.span), onclick: (event) => {
        this.span = span;
        for (const other of choice.children) {
          set(other, "aria-pressed", String(other === event.target));
        }
        this.draw();
      } }, name)));
    new ResizeObserver(() => this.draw()).observe(parent);
  }

  update(points, events, checkpoints, tasks) {
    Object.assign(this, { points, events, checkpoints, tasks });
    this.draw();
  }

  makePlot(plot) {
    const made = { ...plot, values: h("span", { class: "values" }), lines: [] };
    made.grid = s("g", { class: "grid" });
    made.marks = s("g", { class: "marks" });
    made.lines = plot.series.map((series) => ({
      area: series.area ? s("path", { class: `area ${series.class}` }) : null,
      line: s("path", { class: `line ${series.class}` }),
    }));
    made.cursor = s("line", { class: "cursor", y1: 0, y2: TOP + TALL });
    made.svg = s("svg", { height: TOP + TALL + 16 }, made.grid, made.marks,
      made.lines.map((line) => [line.area, line.line]).flat().filter(Boolean), made.cursor);
    made.element = h("figure", { tabindex: 0, "aria-label": `${plot.name} over time` },
      h("figcaption", null, h("b", null, plot.name), made.values), made.svg);
    made.element.addEventListener("pointermove", (event) => this.point(event, made));
    made.element.addEventListener("pointerleave", () => this.move(null));
    made.element.addEventListener("keydown", (event) => this.key(event));
    return made;
  }

  window() {
    const end = this.points.at(-1).at_ms;
    const start = Math.max(this.points[0].at_ms, end - this.span);
    // A young job's line grows to the right before it scrolls.
    return [start, Math.max(end, start + 30e3)];
  }

  draw() {
    if (!this.points.length || !this.parent.clientWidth) return;
    const [start, end] = this.window();
    this.shown = this.points.filter((point) => point.at_ms >= start);
    for (const plot of this.plots) this.drawPlot(plot, start, end);
    this.drawStrips(start, end);
    this.drawCursor();
  }

  drawPlot(plot, start, end) {
    const width = plot.element.clientWidth;
    set(plot.svg, "width", width);
    const x = (at) => LEFT + ((width - LEFT - 4) * (at - start)) / (end - start);
    plot.x = x;
    plot.time = (px) => start + ((px - LEFT) * (end - start)) / (width - LEFT - 4);
    const values = plot.series.flatMap((series) => this.shown.map(series.read))
      .filter((value) => value !== null);
    const most = nice(Math.max(0, ...values), plot.binary);
    const y = (value) => TOP + TALL - (TALL * value) / most;
    plot.series.forEach((series, index) => {
      const runs = this.runs(series.read);
      const path = runs.map((run) => `M${run.map((point) =>
        `${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join("L")}`).join("");
      const { line, area } = plot.lines[index];
      set(line, "d", path);
      if (area) set(area, "d", runs.map((run) => filled(run, x, y, TOP + TALL)).join(""));
    });
    this.drawGrid(plot, most, y, width, start, end);
    this.drawMarks(plot.marks, x, start, end, TOP + TALL);
  }

  /** Neighbouring points with a value, as runs of [time, value]. */
  runs(read) {
    const runs = [];
    let last = -Infinity;
    for (const point of this.shown) {
      const value = read(point);
      if (value === null || value === undefined) {
        last = -Infinity;
        continue;
      }
      if (point.at_ms - last > GAP_MS) runs.push([]);
      runs.at(-1).push([point.at_ms, value]);
      last = point.at_ms;
    }
    return runs;
  }

  drawGrid(plot, most, y, width, start, end) {
    const rules = [0, most / 2, most];
    keyed(plot.grid, [...rules.map((value, index) => ({ value, index })),
      { index: "start", at: start }, { index: "end", at: end }], (item) => item.index,
    (item) => (item.at ? s("text", { class: "clock", y: TOP + TALL + 14 })
      : s("g", null, s("line", { x1: LEFT }), s("text", { x: LEFT - 7, "text-anchor": "end" }))),
    (line, item) => {
      if (item.at) {
        set(line, "x", item.index === "start" ? LEFT : width - 4);
        set(line, "text-anchor", item.index === "start" ? "start" : "end");
        say(line, clock(item.at));
        return;
      }
      const [rule, text] = line.children;
      const at = y(item.value).toFixed(1);
      set(rule, "x2", width - 4);
      set(rule, "y1", at);
      set(rule, "y2", at);
      set(text, "y", Number(at) + 4);
      say(text, plot.format(item.value).replace(".0 ", " "));
    });
  }

  drawMarks(parent, x, start, end, ground) {
    const marks = [
      ...this.events.filter((event) => MARKS[event.kind]).map((event) => ({
        at: event.at_ms, kind: MARKS[event.kind], text: event.text, key: `e${event.number}` })),
      ...this.checkpoints.map((item) => ({ at: item.started_ms, kind: "tick",
        text: `checkpoint ${item.checkpoint}`, key: `c${item.checkpoint}` })),
    ].filter((mark) => mark.at >= start && mark.at <= end);
    keyed(parent, marks, (mark) => mark.key,
      (mark) => s("g", { class: `mark ${mark.kind}` }, s("line"), s("title", null, mark.text)),
      (group, mark) => {
        const line = group.firstChild;
        set(line, "x1", x(mark.at).toFixed(1));
        set(line, "x2", x(mark.at).toFixed(1));
        set(line, "y1", mark.kind === "tick" ? ground - 4 : 0);
        set(line, "y2", ground);
      });
  }

  drawStrips(start, end) {
    const width = this.strips.clientWidth - this.gutter();
    const x = (at) => (width * (at - start)) / (end - start);
    keyed(this.strips, this.tasks.slice(0, 64), (task) => task.index,
      () => h("div", { class: "strip" }, h("span"),
        s("svg", { height: STRIP, "aria-hidden": "true" }, s("path", { class: "idle" }),
          s("path", { class: "busy" }), s("path", { class: "backpressured" }))),
      (row, task) => {
        const [name, svg] = row.children;
        say(name, cut(task.name, 28));
        set(svg, "width", width);
        const busy = (point) => point.busy[task.index] ?? null;
        const both = (point) => (busy(point) === null ? null
          : Math.min(100, busy(point) + (point.backpressured[task.index] ?? 0)));
        const y = (value) => STRIP - (STRIP * value) / 100;
        const area = (read) => this.runs(read).map((run) => filled(run, x, y, STRIP)).join("");
        const [ground, low, high] = svg.children;
        set(ground, "d", area((point) => (busy(point) === null ? null : 100)));
        set(low, "d", area(busy));
        set(high, "d", band(this.runs(busy), this.runs(both), x, y));
      });
  }

  /** Room for names beside the strips; in a narrow window they stand above. */
  gutter() {
    return this.strips.clientWidth < 700 ? 0 : 190;
  }

  point(event, plot) {
    const at = plot.time(event.clientX - plot.svg.getBoundingClientRect().left);
    this.move(at);
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") return this.move(null);
    if (!step || !this.shown) return undefined;
    const here = this.at === null ? this.shown.length - 1 : this.shown.indexOf(this.nearest());
    const next = Math.max(0, Math.min(this.shown.length - 1, here + step));
    event.preventDefault();
    return this.move(this.shown[next].at_ms);
  }

  move(at) {
    this.at = at;
    this.drawCursor();
  }

  nearest() {
    if (this.at === null || !this.shown?.length) return this.points.at(-1);
    return this.shown.reduce((best, point) =>
      (Math.abs(point.at_ms - this.at) < Math.abs(best.at_ms - this.at) ? point : best));
  }

  drawCursor() {
    const point = this.nearest();
    if (!point) return;
    say(this.now, this.at === null ? "" : `at ${clock(point.at_ms)}, attempt ${point.attempt}`);
    for (const plot of this.plots) {
      set(plot.cursor, "visibility", this.at === null ? "hidden" : null);
      if (this.at !== null && plot.x) {
        set(plot.cursor, "x1", plot.x(point.at_ms).toFixed(1));
        set(plot.cursor, "x2", plot.x(point.at_ms).toFixed(1));
      }
      keyed(plot.values, plot.series, (series) => series.name,
        (series) => h("span", { class: series.class }, h("i"), h("span")),
        (value, series) => say(value.lastChild,
          `${series.name} ${plot.format(series.read(point))}`));
    }
  }
}

function filled(run, x, y, ground) {
  const line = run.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
  return `M${x(run[0][0]).toFixed(1)} ${ground}L${line}L${x(run.at(-1)[0]).toFixed(1)} ${ground}Z`;
}

function band(lower, upper, x, y) {
  return upper.map((run, index) => {
    const there = run.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`);
    const back = lower[index].map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`);
    return `M${there.join("L")}L${back.reverse().join("L")}Z`;
  }).join("");
}

/** The end of an axis: a round number, of bytes a power of two. */
function nice(most, binary) {
  if (binary) return 2 ** Math.ceil(Math.log2(Math.max(2048, most)));
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  for (const step of [1, 2, 4, 5, 10]) if (power * step >= most) return power * step;
  return most;
}
