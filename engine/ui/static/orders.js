// Orders to the job. The token came behind `#` in the link, which no server and no log sees.

import { byId, h, say } from "./elements.js";

const KEPT = "headrace-token";

/** The token of this page's address; empty: the page only looks. */
export function token() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(KEPT, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEPT) ?? "";
}

/** Send an order; returns its outcome, or throws an Error with the server's sentence. */
async function order(kind, body) {
  const response = await fetch(`/api/${kind}`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-headrace-token": token() },
    body: JSON.stringify(body),
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `the page's server says ${response.status}`);
  return answer;
}

let toastEnds;
function toast(text) {
  const element = byId("toast");
  say(element, text);
  element.hidden = false;
  clearTimeout(toastEnds);
  toastEnds = setTimeout(() => (element.hidden = true), 12e3);
}

/** Send an order, and say how it went. */
export async function give(kind, body, doing, done) {
  toast(doing);
  try {
    toast(done(await order(kind, body)));
  } catch (error) {
    toast(error.message);
  }
}

export const rescale = (parallelism) =>
  give("rescale", { parallelism }, `The job goes to parallelism ${parallelism} …`,
    (answer) => `The job runs at parallelism ${answer.parallelism}; it stood still for ` +
      `${Math.round(answer.standstill_ms)} ms.`);

/** Fill the dialog of orders. */
export function prepareOrders(dialog) {
  const send = (event, ...args) => {
    event.preventDefault();
    dialog.close();
    give(...args);
  };
  const folder = h("input", { name: "path", placeholder: "the job's own directory" });
  const mode = h("select", { name: "mode" }, ["", "aligned", "unaligned"].map((name) =>
    h("option", { value: name }, name || "as the job's checkpoints")));
  const wide = h("input", { type: "number", min: 1, max: 32768, required: true, value: 2 });
  const how = h("select", null,
    h("option", { value: "stop" }, "after a last checkpoint"),
    h("option", { value: "drain" }, "drained: all records read are worked on"),
    h("option", { value: "now" }, "now: what no checkpoint covers is not committed"));
  dialog.append(
    h("div", { class: "title" }, h("h2", { id: "orders-title" }, "Orders"),
      h("span", { class: "spring" }),
      h("button", { type: "button", onclick: () => dialog.close() }, "Close")),
    h("form", { onsubmit: (event) => send(event, "checkpoint", {}, "Taking a checkpoint …",
      (answer) => `chk-${answer.checkpoint} is complete.`) },
    h("button", null, "Take a checkpoint")),
    h("form", { onsubmit: (event) => send(event, "savepoint",
      { path: folder.value || null, mode: mode.value || null }, "Taking a savepoint …",
      (answer) => `The savepoint is ${answer.savepoint}.`) },
    h("label", null, "Directory ", folder), h("label", null, "Mode ", mode),
    h("button", null, "Take a savepoint")),
    h("form", { onsubmit: (event) => {
      event.preventDefault();
      dialog.close();
      rescale(Number(wide.value));
    } }, h("label", null, "Parallelism ", wide), h("button", null, "Rescale")),
    h("form", { onsubmit: (event) => send(event, "stop",
      { now: how.value === "now", drain: how.value === "drain" }, "The job stops …",
      () => "The job stops.") },
    h("label", null, "End ", how), h("button", { class: "danger" }, "Stop the job")),
  );
}
