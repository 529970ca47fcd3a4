// The graph of tasks: a node's bar shows where its time goes, its cells the subtasks; an edge is a
// pipe that fills from the consumer's end as records wait in it.

import { h, keyed, s, say, set } from "./elements.js";
import { count, cut, percent, rate, size } from "./format.js";
import { layered } from "./layout.js";

const NODE = { width: 196, height: 84 };
const GAP = { along: 96, across: 26 };
/** Many layers stand closer together. */
const CLOSE = { from: 5, along: 64 };
/** Room below all tasks for the back-edges of loops. */
const LOOPS = 46;
const BEND = 26;
const EDGE_MARGIN = 14;
const HOT = 0.6;

export class Graph {
  /** `select(index)` is called when the reader chooses a task. */
  constructor(parent, select) {
    this.parent = parent;
    this.select = select;
    this.shape = "";
    this.resized = new ResizeObserver(() => this.look && this.update(this.look, this.selected));
    this.resized.observe(parent);
  }

  update(look, selected) {
    this.look = look;
    this.selected = selected;
    const upright = this.parent.clientWidth < 640;
    const shape = JSON.stringify([
      upright,
      look.tasks.map((task) => task.name),
      look.edges.map((edge) => [edge.producer, edge.consumer]),
    ]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.draw(look, upright);
    }
    look.edges.forEach((edge, index) => this.updateEdge(this.edges[index], edge, look));
    look.tasks.forEach((task, index) => this.updateNode(this.nodes[index], task, look));
  }

  draw(look, upright) {
    const { places, ways, width, height } = placed(look, upright);
    // Shrink a little rather than scroll; below that, scroll.
    const room = (this.parent.clientWidth - 4) / width;
    const fit = Math.max(upright ? 0.85 : 0.6, Math.min(1.15, room));
    const small = fit < 0.8;
    this.edges = look.edges.map((edge, index) => drawEdge(edge, ways[index], upright));
    this.nodes = look.tasks.map((task, index) =>
      this.drawNode(task, places[index], small ? 18 : 23));
    const svg = s(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, role: "group", class: small ? "small" : null,
        width: Math.floor(width * fit), height: Math.floor(height * fit),
        "aria-label": "Tasks and edges; arrow keys go from task to task" },
      patterns(),
      this.edges.map((edge) => edge.group),
      this.nodes.map((node) => node.group),
    );
    svg.addEventListener("keydown", (event) => this.key(event));
    this.parent.replaceChildren(svg);
  }

  drawNode(task, { x, y }, letters) {
    const node = {
      title: s("title"),
      ring: s("rect", { class: "ring", x: -3, y: -3, rx: 12, width: NODE.width + 6,
        height: NODE.height + 6 }),
      numbers: s("text", { class: "numbers", x: 12, y: 40 }),
      wide: s("text", { class: "wide", x: NODE.width - 12, y: 22, "text-anchor": "end" }),
      badge: s("text", { class: "badge", x: NODE.width - 12, y: 40, "text-anchor": "end" }),
      bar: ["busy", "backpressured", "idle"].map((kind) =>
        s("rect", { class: kind, x: 12, y: 50, height: 9 })),
      cells: s("g", { transform: "translate(12 65)" }),
    };
    node.group = s(
      "g",
      { class: `node ${task.kind}`, transform: `translate(${x} ${y})`, tabindex: 0,
        role: "button", "data-task": task.index, onclick: () => this.select(task.index) },
      node.title,
      node.ring,
      s("rect", { class: "box", rx: 9, width: NODE.width, height: NODE.height }),
      s("text", { class: "name", x: 12, y: 22 }, cut(task.name, letters)),
      node.numbers, node.wide, node.badge, node.bar, node.cells,
    );
    return node;
  }

  updateNode(node, task, look) {
    const inner = NODE.width - 24;
    const shares = [task.busy, task.backpressured];
    shares.push(Math.max(0, 1 - shares[0] - shares[1]));
    let x = 12;
    node.bar.forEach((part, index) => {
      set(part, "x", x.toFixed(1));
      set(part, "width", (inner * shares[index]).toFixed(1));
      x += inner * shares[index];
    });
    const flow = task.kind === "source" ? task.out_per_s : task.in_per_s;
    say(node.numbers, `${rate(flow)} rows/s`);
    say(node.wide, `×${task.parallelism}`);
    const hot = hottest(task);
    say(node.badge, hot === null ? "" : `hot #${hot}`);
    this.updateCells(node, task, inner);
    const slow = look.finding.task === task.name && look.finding.severity !== "ok";
    set(node.group, "class", `node ${task.kind}${slow ? ` culprit ${look.finding.severity}` : ""}`);
    set(node.group, "aria-pressed", String(this.selected === task.index));
    const text = `${task.name}, ${count(task.parallelism)} subtasks, ${percent(task.busy)} busy, ` +
      `${percent(task.backpressured)} backpressured, ${rate(flow)} rows/s`;
    set(node.group, "aria-label", text);
    say(node.title, text);
  }

  updateCells(node, task, inner) {
    const wide = inner / Math.max(1, task.subtasks.length);
    const gap = wide > 4 ? 1.5 : 0;
    keyed(
      node.cells, task.subtasks, (subtask) => subtask.subtask,
      () => s("g", null, s("rect", { class: "cell", height: 9, rx: 1.5 }),
        s("rect", { class: "cell-busy", rx: 1.5 })),
      (cell, subtask) => {
        const [frame, level] = cell.children;
        const width = Math.max(0.5, wide - gap).toFixed(2);
        const tall = 9 * Math.min(1, subtask.busy);
        set(cell, "transform", `translate(${(subtask.subtask * wide).toFixed(2)} 0)`);
        set(frame, "width", width);
        set(level, "width", width);
        set(level, "height", tall.toFixed(1));
        set(level, "y", (9 - tall).toFixed(1));
      },
    );
  }

  updateEdge(edge, { queued_bytes, window_bytes, key, partitioner }, look) {
    const fill = window_bytes > 0 ? Math.min(1, queued_bytes / window_bytes) : 0;
    set(edge.fill, "stroke-dasharray", `${(100 * fill).toFixed(1)} 200`);
    set(edge.fill, "class", fill > 0.8 ? "fill full" : "fill");
    set(edge.fill, "visibility", fill > 0.005 ? null : "hidden");
    say(edge.label, queued_bytes >= 1024 ? size(queued_bytes) : "");
    say(edge.title, `${key} (${partitioner}): ${size(queued_bytes)} queued, window ` +
      `${size(window_bytes)}, ${percent(fill)} full`);
  }

  key(event) {
    const at = Number(event.target.getAttribute("data-task") ?? -1);
    if (at < 0) return;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) this.nodes[(at + step + this.nodes.length) % this.nodes.length].group.focus();
    else if (event.key === "Enter" || event.key === " ") this.select(at);
    else return;
    event.preventDefault();
  }

  focus() {
    this.nodes?.[this.selected ?? 0]?.group.focus();
  }
}

/** The subtask that is busy while most others are not; null: there is none. */
export function hottest(task) {
  if (task.subtasks.length < 2) return null;
  const busy = task.subtasks.map((subtask) => subtask.busy).sort((a, b) => a - b);
  const [median, most] = [busy[(busy.length - 1) >> 1], busy.at(-1)];
  if (most < HOT || median > HOT * most) return null;
  return task.subtasks.find((subtask) => subtask.busy === most).subtask;
}

function placed(look, upright) {
  const { layers, ways } = layered(look.tasks.length, look.edges);
  const between = layers.length > CLOSE.from ? CLOSE.along : GAP.along;
  const along = upright ? NODE.height + 46 : NODE.width + between;
  const thick = (place) =>
    "task" in place ? (upright ? NODE.width : NODE.height) : BEND;
  const gap = GAP.across;
  const span = (layer) => layer.reduce((sum, place) => sum + thick(place) + gap, -gap);
  const across = Math.max(...layers.map(span));
  const places = [];
  for (const layer of layers) {
    let at = (across - span(layer)) / 2 + EDGE_MARGIN;
    for (const place of layer) {
      place.middle = at + thick(place) / 2;
      place.start = place.layer * along + EDGE_MARGIN;
      if ("task" in place) {
        places[place.task] = upright ? { x: at, y: place.start } : { x: place.start, y: at };
      }
      at += thick(place) + gap;
    }
  }
  const deep = (layers.length - 1) * along + (upright ? NODE.height : NODE.width) + 2 * EDGE_MARGIN;
  const broad = across + 2 * EDGE_MARGIN;
  const loops = ways.some((way) => way.back) ? LOOPS : 0;
  return upright
    ? { places, ways, width: broad + loops, height: deep }
    : { places, ways, width: deep, height: broad + loops };
}

function drawEdge(edge, { way, back }, upright) {
  const d = back ? backPath(way, upright) : forwardPath(way, upright);
  const drawn = {
    title: s("title"),
    // From the consumer to the producer: it fills from the consumer's end.
    fill: s("path", { class: "fill", d: d.reversed, pathLength: 100 }),
    label: s("text", { class: "queued", x: d.x, y: d.y - 11, "text-anchor": "middle" }),
  };
  drawn.group = s("g", { class: "edge" }, drawn.title, s("path", { class: "casing", d: d.path }),
    s("path", { class: "pipe", d: d.path }), drawn.fill, drawn.label);
  return drawn;
}

function forwardPath(way, upright) {
  const length = upright ? NODE.height : NODE.width;
  const points = [];
  way.forEach((place, index) => {
    const isNode = "task" in place;
    const [start, end] = [place.start, place.start + length];
    if (index > 0) points.push([isNode ? start : start + length * 0.25, place.middle]);
    if (index < way.length - 1) points.push([isNode ? end : start + length * 0.75, place.middle]);
  });
  const at = ([along, across]) => (upright ? [across, along] : [along, across]);
  const curve = (list) => {
    let path = `M${at(list[0]).join(" ")}`;
    for (let i = 1; i < list.length; i++) {
      const half = (list[i - 1][0] + list[i][0]) / 2;
      const [a, b] = [at([half, list[i - 1][1]]), at([half, list[i][1]])];
      path += ` C${a.join(" ")} ${b.join(" ")} ${at(list[i]).join(" ")}`;
    }
    return path;
  };
  const last = points.length - 1;
  const half = [(points[last - 1][0] + points[last][0]) / 2,
    (points[last - 1][1] + points[last][1]) / 2];
  const [x, y] = at(half);
  return { path: curve(points), reversed: curve([...points].reverse()), x, y };
}

function backPath(way, upright) {
  const [from, to] = [way[0], way.at(-1)];
  const low = Math.max(...way.map((place) => place.middle)) +
    (upright ? NODE.width : NODE.height) / 2 + 22;
  const length = upright ? NODE.height : NODE.width;
  const ends = [from.start + length * 0.75, to.start + length * 0.25];
  const half = (upright ? NODE.width : NODE.height) / 2;
  const at = (along, across) => (upright ? `${across} ${along}` : `${along} ${across}`);
  const path = ([a, ma], [b, mb]) =>
    `M${at(a, ma + half)} C${at(a, low)} ${at(a, low)} ${at((a + b) / 2, low)} ` +
    `S${at(b, low)} ${at(b, mb + half)}`;
  const [start, end] = [[ends[0], from.middle], [ends[1], to.middle]];
  const along = (ends[0] + ends[1]) / 2;
  return { path: path(start, end), reversed: path(end, start), x: upright ? low : along,
    y: upright ? along : low + 6 };
}

function patterns() {
  // The parts of a bar differ without colours, too.
  return s("defs", null,
    s("pattern", { id: "hatched", width: 5, height: 5, patternUnits: "userSpaceOnUse",
      patternTransform: "rotate(45)" },
      s("rect", { class: "hatched-ground", width: 5, height: 5 }),
      s("rect", { class: "hatched-line", width: 1.6, height: 5 })));
}

/** A bar of three parts, for tables. */
export function bar() {
  const parts = ["busy", "backpressured", "idle"].map((kind) => h("i", { class: kind }));
  const element = h("span", { class: "bar", role: "img" }, parts);
  element.parts = parts;
  return element;
}

export function updateBar(element, { busy, backpressured }) {
  const shares = [busy, backpressured, Math.max(0, 1 - busy - backpressured)];
  element.parts.forEach((part, index) => {
    part.style.width = `${(100 * shares[index]).toFixed(1)}%`;
  });
  set(element, "aria-label",
    `${percent(busy)} busy, ${percent(backpressured)} backpressured`);
}
