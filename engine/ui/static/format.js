// Numbers for people, in few characters and one unit each.

const NONE = "–";

/** 950, 12.3k, 1.2M */
export function rate(value) {
  if (value === null || value === undefined) return NONE;
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= limit) return (value / (unit === "k" ? 1e3 : limit)).toFixed(1) + unit;
  }
  return value >= 10 || value === 0 ? value.toFixed(0) : value.toFixed(1);
}

/** 512 B, 3.1 KiB, 12.4 MiB */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return NONE;
  if (bytes < 1024) return `${Math.round(bytes)} B`;
  let amount = bytes / 1024;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    if (amount < 1024) return `${amount.toFixed(amount < 100 ? 1 : 0)} ${unit}`;
    amount /= 1024;
  }
  return `${amount.toFixed(1)} TiB`;
}

/** 0.4 ms, 38 ms, 8.9 s, 3 min, 2.5 h */
export function time(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  if (ms < 100e3) return `${(ms / 1e3).toFixed(1)} s`;
  if (ms < 5400e3) return `${(ms / 60e3).toFixed(0)} min`;
  return ms < 172800e3 ? `${(ms / 3600e3).toFixed(1)} h` : `${(ms / 86400e3).toFixed(0)} d`;
}

export const seconds = (value) =>
  value === null || value === undefined ? NONE : time(value * 1000);
export const percent = (share) => `${Math.round(100 * share)} %`;
export const count = (value) =>
  value === null || value === undefined ? NONE : value.toLocaleString("en").replaceAll(",", " ");

/** 12:03:09, in the reader's time zone */
export function clock(ms) {
  if (ms === null || ms === undefined) return NONE;
  return new Date(ms).toLocaleTimeString("en-GB");
}

export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
export const plural = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
