// Elements by calls. Whatever comes from a job is text here: nothing in this page parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function put(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else set(element, name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set an attribute; null and false remove it, true is an empty one. */
export function set(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value === true ? "" : value);
  }
}

/** Make an HTML element; children are elements or texts. */
export const h = (tag, attributes, ...children) =>
  put(document.createElement(tag), attributes, children);

/** Make an SVG element. */
export const s = (tag, attributes, ...children) =>
  put(document.createElementNS(SVG, tag), attributes, children);

/** Change a text, unless it is the same: a selection stays, a screen reader stays quiet. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Give `parent` a child for each item, in order; children are kept by key, and so is the focus.
 *  `make(item)` returns a new child, `update(child, item)` brings it up to date. */
export function keyed(parent, items, key, make, update) {
  const old = (parent.keyedChildren ??= new Map());
  const now = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const name = String(key(item));
    const child = old.get(name) ?? make(item);
    now.set(name, child);
    update(child, item);
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
  }
  for (const [name, child] of old) if (now.get(name) !== child) child.remove();
  parent.keyedChildren = now;
}

export const byId = (id) => document.getElementById(id);
