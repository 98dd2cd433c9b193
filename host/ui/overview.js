// The first view: is the host well, what is full, what has happened in the last hour, and the sessions.

import { get } from "./api.js";
import { Charts } from "./chart.js";
import { h, reconcile, say, mark } from "./dom.js";
import { brief, bytes, count, share, visible } from "./format.js";
import { Table } from "./table.js";

const ORDERLY = new Set(["deleted", "host_shutdown", "expired"]);

export class Overview {
  constructor(frame) {
    this.frame = frame;
    this.history = [];
    this.instance = null;
    this.charts = new Charts();
    this.table = new Table(frame.asksToEnd);
    this.tiles = h("section", { class: "tiles", "aria-label": "What is in use" });
    this.node = h(
      "div",
      {},
      h("h1", { class: "unseen" }, "Overview"),
      this.tiles,
      this.charts.node,
      this.table.node,
    );
  }

  /** Asks the host and shows what it says. */
  async refresh(signal) {
    const since = this.history.length ? this.history.at(-1)[0] : 0;
    const [state] = await Promise.all([get("state", { since }, signal), this.table.refresh(signal)]);
    if (state.instance !== this.instance) {
      if (this.instance !== null && since) {
        this.instance = null;
        this.history = [];
        return this.refresh(signal);
      }
      this.instance = state.instance;
    }
    this.history.push(...state.history);
    this.history = this.history.filter(([at]) => at > state.at - 3600);
    this.charts.show(this.history, state);
    this.table.know(state);
    this.#tiles(state);
    this.frame.health(...verdict(state, this.history), `${state.version} · up ${brief(state.up_s)}`);
  }

  close() {
    this.table.close();
  }

  key(event) {
    this.table.key(event);
  }

  #tiles(state) {
    const tiles = [places(state), processors(state), memory(state), disk(state), pool(state), ends(state), recording(state)];
    reconcile(
      this.tiles,
      tiles,
      (tile) => tile.name,
      (tile) =>
        h(
          "div",
          { class: "tile" },
          h("h2", {}, visible(tile.title ?? tile.name)),
          h("p", { class: "big" }),
          h("div", { class: "bar", hidden: true }, h("span", {})),
          h("p", { class: "muted" }),
          h("div", { class: "chips" }),
        ),
      (node, tile) => {
        const [, big, bar, note, chips] = node.children;
        say(big, tile.big);
        say(note, tile.note ?? "");
        bar.hidden = tile.part === undefined;
        bar.firstElementChild.style.width = `${Math.min(1, tile.part ?? 0) * 100}%`;
        mark(node, "data-tone", tile.tone ?? null);
        reconcile(
          chips,
          tile.chips ?? [],
          ([word]) => word,
          ([word]) => h("button", { type: "button", class: "chip", on: { click: () => this.table.showReason(word) } }),
          (chip, [word, number]) => {
            say(chip, `${word} ${count(number)}`);
            mark(chip, "data-tone", ORDERLY.has(word) ? null : "bad");
          },
        );
      },
    );
  }
}

/** How the host is, in a word and a sentence. */
function verdict(state, history) {
  const recent = history.filter(([at]) => at > state.at - 600);
  const sum = (column) => recent.reduce((total, sample) => total + sample[column], 0);
  const [created, failed] = [sum(5), sum(6)];
  if (!state.engine_up) return ["bad", visible(state.problem?.words ?? "The container engine does not answer")];
  if (state.places.free <= 0 && state.places.waiting) return ["busy", `Full: ${count(state.places.waiting)} wait for a place`];
  if (state.problem) return ["busy", visible(state.problem.words)];
  if (failed >= 3 && failed > 0.2 * (created + failed)) return ["bad", `Failing: ${failed} sessions in ten minutes`];
  return ["good", "Healthy"];
}

function places({ places: { limit, free, waiting }, sessions }) {
  const all = Object.values(sessions).reduce((a, b) => a + b, 0);
  const states = Object.entries(sessions).filter(([, number]) => number);
  const words = states.map(([name, number]) => `${number} ${name.replace("_", " ")}`).join(", ");
  return {
    name: "Sessions",
    big: `${count(all)} of ${count(limit)}`,
    part: (limit - free) / limit,
    note: waiting ? `${count(waiting)} wait for a place` : words || "none",
    tone: free <= 0 ? "busy" : null,
  };
}

function processors({ use }) {
  return {
    name: "Processors",
    big: share(use.cpus),
    part: use.cpus / use.of_cpus,
    note: `of ${use.of_cpus} × 100 % · load ${use.load.toFixed(1)}`,
    tone: use.load > 2 * use.of_cpus ? "busy" : null,
  };
}

function memory({ use }) {
  const known = use.memory_total !== null;
  return {
    name: "Memory",
    big: bytes(use.memory),
    part: known ? 1 - use.memory_free / use.memory_total : undefined,
    note: known ? `in containers · machine has ${bytes(use.memory_free)} of ${bytes(use.memory_total)} free` : "in containers",
    tone: known && use.memory_free < 0.1 * use.memory_total ? "bad" : null,
  };
}

function disk({ disk: { free, total } }) {
  return { name: "Disk", big: `${bytes(free)} free`, part: 1 - free / total, note: `of ${bytes(total)}`, tone: free < 0.05 * total ? "bad" : null };
}

function pool({ images }) {
  const wanted = images.filter((image) => image.warm);
  const missing = wanted.filter((image) => !image.waiting).map((image) => image.tag);
  return {
    name: "Waiting, started",
    big: count(images.reduce((sum, image) => sum + image.waiting, 0)),
    note: missing.length ? `none of ${visible(missing.join(", "))}` : wanted.length ? `of ${count(wanted.length)} image${wanted.length > 1 ? "s" : ""}` : "none wanted",
    tone: missing.length ? "busy" : null,
  };
}

function ends({ reasons, leftovers }) {
  const all = Object.values(reasons).reduce((a, b) => a + b, 0);
  const failed = Object.entries(reasons).reduce((sum, [reason, number]) => sum + (ORDERLY.has(reason) ? 0 : number), 0);
  return {
    name: "Ended in the last hour",
    big: count(all),
    note: [failed ? `${count(failed)} failed` : "none failed", leftovers && `${leftovers} containers not removed yet`].filter(Boolean).join(" · "),
    chips: Object.entries(reasons),
    tone: failed || leftovers ? "bad" : null,
  };
}

function recording({ record }) {
  const notes = { off: "--record memory shows inputs and outputs here", memory: "in memory, without secrets", directory: record.directory };
  return {
    name: "Recording",
    big: record.mode,
    note: record.problem ? `can't write: ${record.problem}` : record.lost ? `${count(record.lost)} steps lost` : visible(notes[record.mode]),
    tone: record.problem ? "bad" : null,
  };
}
