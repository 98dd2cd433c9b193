// Numbers and times for people.

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const reward = new Intl.NumberFormat("en", { maximumFractionDigits: 3, signDisplay: "negative" });
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export const count = (value) => number.format(value);

/** Seconds → "0.12 s", "42 s", "3 min 10 s", "5 h 3 min". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Seconds, short enough for a table: "42s", "3m", "5h". */
export function brief(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${Math.floor(seconds % 60)}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h ${Math.floor((seconds % 3600) / 60)}m`;
  return `${Math.floor(seconds / 86400)}d ${Math.floor((seconds % 86400) / 3600)}h`;
}

/** Bytes → "12 MiB". */
export function bytes(value) {
  if (value === null || value === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** Processors → "40 %": of one. */
export const share = (cpus) => `${Math.round(cpus * 100)} %`;

export const reward_ = (value) => (value === null || value === undefined ? "" : reward.format(value));

/** A point in time → "22:41:07" (this browser's time). */
export const time = (at) => clock.format(new Date(at * 1000));

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Makes characters visible that would change how other text looks: controls, and those that turn its direction. */
export const visible = (text) =>
  String(text).replace(HIDDEN, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);

const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

/** A terminal's output as text: colours are left out, a line that was written over is what it was last. */
export const terminal = (text) => visible(text.replace(ANSI, "").replace(/\r\n/g, "\n"));
