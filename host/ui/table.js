// The sessions: one page of them, sorted and filtered by the host, so that it makes no difference how many there are.

import { get } from "./api.js";
import { h, mark, reconcile, say } from "./dom.js";
import { brief, bytes, count, duration, reward_, share, visible } from "./format.js";

const PAGE = 50;
const ORDERLY = new Set(["deleted", "host_shutdown"]);
const COLUMNS = {
  live: [
    ["Session", null],
    ["Environment", "environment"],
    ["Task", "task"],
    ["State", "state"],
    ["Age", "age"],
    ["CPU", "cpu"],
    ["Memory", "memory"],
    ["Calls", "calls"],
    ["Reward", "reward"],
    ["", null],
  ],
  ended: [
    ["Session", null],
    ["Environment", "environment"],
    ["Task", "task"],
    ["Why it ended", "reason"],
    ["Ended", "ended"],
    ["Lived", "age"],
    ["Calls", "calls"],
    ["Reward", "reward"],
  ],
};
const ASCENDING = new Set(["environment", "task", "state", "reason", "age"]);

export class Table {
  constructor(asksToEnd) {
    this.asksToEnd = asksToEnd;
    this.limits = new Map();
    this.asked = { which: "live", text: "", sort: "age", descending: false, offset: 0 };
    this.tabs = ["live", "ended"].map((which) =>
      h("button", { type: "button", role: "tab", id: `tab-${which}`, "aria-controls": "sessions", on: { click: () => this.#choose(which) } }),
    );
    this.filter = h("input", {
      type: "search",
      placeholder: "Filter: id, environment, task, state, reason",
      "aria-label": "Filter sessions",
      "aria-keyshortcuts": "/",
      maxlength: 200,
      spellcheck: "false",
      on: { input: () => this.#ask({ text: this.filter.value, offset: 0 }) },
    });
    this.head = h("tr", {});
    this.body = h("tbody", {});
    this.empty = h("p", { class: "empty", role: "status" }, "Loading …");
    this.where = h("span", { class: "muted", role: "status" });
    this.pages = [
      h("button", { type: "button", on: { click: () => this.#turn(-1) } }, "Previous"),
      h("button", { type: "button", on: { click: () => this.#turn(1) } }, "Next"),
    ];
    this.panel = h(
      "div",
      { id: "sessions", role: "tabpanel" },
      h("div", { class: "scroll" }, h("table", {}, h("caption", { class: "unseen" }, "Sessions"), h("thead", {}, this.head), this.body)),
      this.empty,
    );
    this.node = h(
      "section",
      { class: "sessions", "aria-label": "Sessions" },
      h("div", { class: "tools" }, h("div", { role: "tablist", class: "tabs", "aria-label": "Which sessions", on: { keydown: (e) => this.#tabKey(e) } }, ...this.tabs), this.filter),
      this.panel,
      h("div", { class: "pager" }, this.where, ...this.pages),
    );
    this.#head();
  }

  async refresh(signal) {
    this.signal = signal;
    const asked = this.asked;
    const page = await get("sessions", { ...asked, limit: PAGE }, signal);
    if (asked === this.asked) this.#show(page);
  }

  close() {
    clearTimeout(this.timer);
  }

  /** Takes note of what the state says: limits of images, and how many there are. */
  know(state) {
    for (const image of state.images) this.limits.set(image.tag, image);
    const live = Object.values(state.sessions).reduce((a, b) => a + b, 0);
    const ended = Object.values(state.reasons).reduce((a, b) => a + b, 0);
    say(this.tabs[0], `Live ${count(live)}`);
    say(this.tabs[1], `Ended in the last hour ${count(ended)}`);
  }

  showReason(reason) {
    this.filter.value = reason;
    this.#choose("ended", reason);
    this.filter.focus();
  }

  key(event) {
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === "/" && !typing) {
      event.preventDefault();
      this.filter.focus();
    } else if (event.key === "Escape" && event.target === this.filter) {
      this.filter.value = "";
      this.#ask({ text: "", offset: 0 });
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && (this.body.contains(event.target) || event.target === this.filter)) {
      const links = [...this.body.querySelectorAll("a")];
      const here = links.indexOf(event.target.closest?.("tr")?.querySelector("a"));
      const next = links[here + (event.key === "ArrowDown" ? 1 : -1)];
      if (next) {
        event.preventDefault();
        next.focus();
      }
    }
  }

  #tabKey(event) {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = this.tabs.find((tab) => tab !== event.target);
    other.focus();
    other.click();
  }

  #choose(which, text = this.asked.text) {
    const sort = which === "live" ? { sort: "age", descending: false } : { sort: "ended", descending: true };
    if (which !== this.asked.which) this.body.replaceChildren();
    this.#ask({ which, text, offset: 0, ...sort });
    this.#head();
  }

  #sort(key) {
    const turn = this.asked.sort === key;
    this.#ask({ sort: key, descending: turn ? !this.asked.descending : !ASCENDING.has(key), offset: 0 });
    this.#head();
  }

  #turn(pages) {
    this.#ask({ offset: Math.max(0, this.asked.offset + pages * PAGE) });
  }

  #ask(changes) {
    this.asked = { ...this.asked, ...changes };
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(this.signal).catch(() => {}), 80); // what fails is asked again, and told, by the frame
  }

  #head() {
    for (const tab of this.tabs) {
      const chosen = tab.id === `tab-${this.asked.which}`;
      mark(tab, "aria-selected", chosen);
      mark(tab, "tabindex", chosen ? 0 : -1);
    }
    mark(this.panel, "aria-labelledby", `tab-${this.asked.which}`);
    reconcile(
      this.head,
      COLUMNS[this.asked.which],
      ([title, key]) => title + key,
      ([title, key]) =>
        h("th", { scope: "col", class: key ?? "" }, key ? h("button", { type: "button", on: { click: () => this.#sort(key) } }, title) : title || h("span", { class: "unseen" }, "End it")),
      (cell, [, key]) => {
        const sorted = key !== null && key === this.asked.sort;
        mark(cell, "aria-sort", sorted ? (this.asked.descending ? "descending" : "ascending") : null);
      },
    );
  }

  #show(page) {
    if (page.offset && page.offset >= page.matching) return this.#ask({ offset: 0 });
    const live = this.asked.which === "live";
    reconcile(this.body, page.rows, (row) => row.ref, () => (live ? liveRow() : endedRow()), (node, row) => {
      node.session = row;
      (live ? fillLive : fillEnded)(node, row, this);
    });
    this.empty.hidden = page.rows.length > 0;
    this.panel.firstElementChild.hidden = !page.rows.length;
    const none = live ? "No session is live." : "No session ended within the last hour.";
    say(this.empty, page.total ? "No session fits the filter." : none);
    const last = page.offset + page.rows.length;
    say(this.where, page.rows.length ? `${count(page.offset + 1)}–${count(last)} of ${count(page.matching)}` : "");
    this.pages[0].disabled = page.offset === 0;
    this.pages[1].disabled = last >= page.matching;
    for (const button of this.pages) button.hidden = page.matching <= PAGE;
  }
}

const cell = (title, ...children) => h("td", { "data-title": title }, ...children);

function row(...cells) {
  const link = h("a", { class: "sid" });
  const node = h("tr", {}, h("th", { scope: "row" }, link), ...cells);
  node.addEventListener("click", (event) => {
    if (!event.target.closest("a, button") && !getSelection().toString()) link.click();
  });
  return node;
}

function liveRow() {
  const node = row(
    cell("Environment"),
    cell("Task"),
    cell("State", h("span", { class: "badge" }), h("span", { class: "doing" })),
    cell("Age"),
    cell("CPU"),
    cell("Memory", h("span", {}), h("span", { class: "bar small" }, h("span", {}))),
    cell("Calls", h("span", {}), h("span", { class: "errors" })),
    cell("Reward"),
  );
  const button = h("button", { type: "button", class: "quiet end" }, "End");
  node.append(h("td", { class: "act" }, button));
  return node;
}

function fillCommon(node, row) {
  const link = node.firstElementChild.firstElementChild;
  mark(link, "href", `#/session/${row.ref}`);
  mark(link, "title", visible(row.sid));
  say(link, visible(row.sid.length > 13 ? `${row.sid.slice(0, 12)}…` : row.sid));
  say(node.children[1], visible(row.environment));
  say(node.children[2], visible(row.task || "–"));
  mark(node.children[2], "title", visible(row.task ?? ""));
}

function fillLive(node, row, table) {
  fillCommon(node, row);
  const [, , , state, age, cpu, memory, calls, reward, act] = node.children;
  const closing = row.state === "closing";
  say(state.children[0], row.running ? "in a call" : row.finished && !closing ? "finished" : row.state.replace("_", " "));
  mark(state.children[0], "data-tone", closing ? "bad" : row.running ? "busy" : row.state === "ready" ? "good" : "unknown");
  say(state.children[1], row.running ? `${visible(row.running.name)} ${brief(row.running.for)}${row.in_flight > 1 ? ` +${row.in_flight - 1}` : ""}` : closing ? visible(row.reason ?? "") : "");
  say(age, brief(row.age));
  say(cpu, row.cpu === undefined ? "–" : share(row.cpu));
  say(memory.children[0], row.memory === undefined ? "–" : bytes(row.memory));
  const part = row.memory === undefined ? 0 : row.memory / (table.limits.get(row.image)?.memory ?? Infinity);
  memory.children[1].hidden = !part;
  memory.children[1].firstElementChild.style.width = `${Math.min(1, part) * 100}%`;
  mark(memory.children[1], "data-tone", part > 0.9 ? "bad" : null);
  fillCalls(calls, row);
  say(reward, reward_(row.reward) || "–");
  const button = act.firstElementChild;
  mark(button, "aria-label", `End session ${visible(row.sid)}`);
  button.disabled = closing;
  button.onclick = () => table.asksToEnd(node.session);
}

function endedRow() {
  return row(
    cell("Environment"),
    cell("Task"),
    cell("Why it ended", h("span", { class: "badge" }), h("span", { class: "words" })),
    cell("Ended"),
    cell("Lived"),
    cell("Calls", h("span", {}), h("span", { class: "errors" })),
    cell("Reward"),
  );
}

function fillEnded(node, row) {
  fillCommon(node, row);
  const [, , , why, ended, lived, calls, reward] = node.children;
  say(why.children[0], row.reason ?? "");
  mark(why.children[0], "data-tone", ORDERLY.has(row.reason) ? "unknown" : row.reason === "expired" ? "busy" : "bad");
  say(why.children[1], ORDERLY.has(row.reason) ? "" : visible(row.words));
  mark(why.children[1], "title", visible(row.words));
  say(ended, `${brief(Math.max(0, Date.now() / 1000 - row.ended))} ago`);
  say(lived, duration(row.age));
  fillCalls(calls, row);
  say(reward, reward_(row.reward) || "–");
}

function fillCalls(node, row) {
  say(node.children[0], count(row.calls));
  say(node.children[1], row.errors ? `${count(row.errors)} failed` : "");
}
