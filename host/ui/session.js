// One session: what it is, how it goes, and its steps.

import { get } from "./api.js";
import { error, input, json, output } from "./blocks.js";
import { h, mark, reconcile, say } from "./dom.js";
import { brief, bytes, count, duration, reward_, share, time, visible } from "./format.js";

const TRIES = 5;
const KINDS = { created: "Container ready, environment constructed", set_up: "setup()", prompt: "Prompt", score_group: "score_group", ended: "Ended" };
const TONES = { ok: "good", refused: "busy", error: "bad", running: "busy", cut: "unknown" };
const ORDERLY = new Set(["deleted", "host_shutdown"]);

export class SessionView {
  constructor(ref, frame) {
    this.ref = ref;
    this.frame = frame;
    this.revision = 0;
    this.steps = new Map();
    this.title = h("h1", { class: "sid" }, "Loading …");
    this.badge = h("span", { class: "badge" });
    this.ender = h("button", { type: "button", class: "danger", hidden: true, on: { click: () => frame.asksToEnd(this.session) } }, "End session");
    this.facts = h("dl", { class: "facts-list" });
    this.failure = h("p", { class: "failure", role: "status", hidden: true });
    this.note = h("p", { class: "note", hidden: true });
    this.earlier = h("p", { class: "muted", hidden: true });
    this.list = h("ol", { class: "steps", "aria-label": "Steps" });
    this.node = h(
      "article",
      { class: "session" },
      h("a", { class: "back", href: "#/" }, "← All sessions"),
      h("div", { class: "head" }, this.title, this.badge, this.ender),
      this.facts,
      this.failure,
      this.note,
      this.earlier,
      this.list,
    );
    // What was said is asked for when it comes into view: an episode can hold megabytes.
    this.watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) this.#load(entry.target);
    }, { rootMargin: "600px" });
  }

  async refresh(signal) {
    this.signal = signal;
    if (this.over) return;
    const [state, told] = await Promise.all([
      get("state", { since: Date.now() / 1000 + 60 }, signal),
      get(`sessions/${this.ref}`, { since: this.revision }, signal),
    ]);
    const tone = state.engine_up ? (state.problem ? "busy" : "good") : "bad";
    this.frame.health(tone, state.problem ? visible(state.problem.words) : "Healthy", `${state.version} · up ${brief(state.up_s)}`);
    this.revision = told.revision;
    this.kept = told.kept;
    for (const step of told.steps) this.steps.set(step.number, step);
    for (const number of this.steps.keys()) if (number < told.left_out) this.steps.delete(number);
    this.#show(told);
    this.over = told.session.state === "ended" && [...this.list.children].every((node) => node.loaded || !node.wanted);
  }

  close() {
    this.watcher.disconnect();
  }

  #show({ session, limits, left_out, kept }) {
    const first = !this.session;
    this.session = session;
    const ended = session.state === "ended";
    document.title = `${session.sid.slice(0, 12)} · ors-host`;
    say(this.title, visible(session.sid));
    say(this.badge, ended ? "ended" : session.running ? `in ${visible(session.running.name)} for ${brief(session.running.for)}` : session.state.replace("_", " "));
    mark(this.badge, "data-tone", ended ? "unknown" : session.running ? "busy" : session.state === "ready" ? "good" : "unknown");
    this.ender.hidden = ended;
    this.ender.disabled = session.state === "closing";
    this.#facts(session, limits);
    const why = session.reason !== null;
    this.failure.hidden = !why;
    mark(this.failure, "data-tone", ORDERLY.has(session.reason) ? null : session.reason === "expired" ? "busy" : "bad");
    say(this.failure, why ? `${session.reason}: ${visible(session.words ?? "")}` : "");
    this.note.hidden = kept;
    say(this.note, kept ? "" : "What was said is not recorded: names, times and rewards only. Start the host with --record memory, or directory, to see prompts, inputs and outputs here.");
    this.earlier.hidden = !left_out;
    say(this.earlier, left_out ? `${count(left_out)} earlier steps are no longer kept.` : "");
    const follows = !first && innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
    reconcile(this.list, [...this.steps.values()].sort((a, b) => a.number - b.number), (step) => step.number, () => this.#card(), (node, step) => this.#fill(node, step));
    if (follows && !ended) scrollTo({ top: document.documentElement.scrollHeight });
  }

  #facts(session, limits) {
    const used = session.memory === null ? "–" : `${bytes(session.memory)} of ${bytes(limits.memory)}`;
    const facts = [
      ["Environment", visible(session.environment)],
      ["Task", visible(session.task || "–")],
      ["Image", visible(session.image)],
      ["Container", visible(session.container || "–")],
      ["Started", session.start ?? "–"],
      [session.state === "ended" ? "Lived" : "Age", duration(session.age)],
      ["CPU", session.cpu === null ? "–" : `${share(session.cpu)} of ${share(limits.cpus)}`],
      ["Memory", used],
      ["Calls", count(session.calls) + (session.errors ? `, ${count(session.errors)} failed` : "")],
      ["Reward so far", (reward_(session.reward) || "–") + (session.finished ? ", finished" : "")],
    ];
    reconcile(this.facts, facts, ([name]) => name.replace("Lived", "Age"), ([name]) => h("div", {}, h("dt", {}, name), h("dd", {})), (node, [name, value]) => {
      say(node.children[0], name);
      say(node.children[1], value);
    });
  }

  #card() {
    const node = h(
      "li",
      { class: "step" },
      h("div", { class: "line" }, h("span", { class: "when muted" }), h("strong", { class: "what" }), h("span", { class: "badge" }), h("span", { class: "took muted" }), h("span", { class: "earned" })),
      h("p", { class: "wrong", hidden: true }),
      h("div", { class: "said" }),
    );
    node.tries = 0;
    return node;
  }

  #fill(node, step) {
    const [line, words] = node.children;
    const [when, what, badge, took, earned] = line.children;
    node.step = step;
    say(when, `+${duration(Math.max(0, step.at - (this.steps.get(0)?.at ?? step.at)))}`);
    mark(when, "title", time(step.at));
    const call = step.kind === "call";
    mark(node, "data-kind", step.kind);
    say(what, call ? visible(step.name || "(a call from before this host's start)") : KINDS[step.kind] + (step.name && step.kind !== "ended" ? ` (${visible(step.name)})` : ""));
    const running = step.state === "running";
    const plain = !call && step.state === "ok";
    badge.hidden = plain && step.kind !== "ended";
    say(badge, step.kind === "ended" ? visible(step.name) : step.state === "cut" ? "goes on in the next host" : step.state);
    mark(badge, "data-tone", step.kind === "ended" ? (ORDERLY.has(step.name) ? "unknown" : "bad") : TONES[step.state]);
    say(took, running ? `for ${brief(Math.max(0, Date.now() / 1000 - step.at))}` : step.kind === "ended" ? "" : duration(step.seconds));
    say(earned, [step.reward === null ? "" : `reward ${reward_(step.reward)}`, step.finished ? "finished" : ""].filter(Boolean).join(" · "));
    words.hidden = !step.words;
    say(words, visible(step.words));
    node.wanted = this.kept && ["created", "prompt", "call", "score_group"].includes(step.kind);
    if (node.wanted && !node.loaded) {
      this.watcher.unobserve(node);
      this.watcher.observe(node); // tells anew whether it is in view
    }
  }

  async #load(node) {
    const { step } = node;
    if (!node.wanted || node.loaded || node.loading) return;
    node.loading = true;
    try {
      const said = await get(`sessions/${this.ref}/steps/${step.number}`, {}, this.signal);
      const key = Object.keys(said).join() + Object.keys(said.left_out).join();
      const done = step.state !== "running";
      const complete = ["output", "error", "task"].some((name) => name in said || name in said.left_out) || step.state === "cut";
      node.tries += done ? 1 : 0;
      node.loaded = done && (complete || node.tries >= TRIES);
      if (key !== node.shown || node.loaded) node.lastElementChild.replaceChildren(...this.#said(said, node.loaded && !complete, step));
      node.shown = key;
    } catch (problem) {
      if (!this.signal?.aborted) console.warn("a step was not loaded", problem.message); // asked again with the next change
    } finally {
      node.loading = false;
    }
  }

  #said(said, lost, step) {
    const parts = [];
    const part = (title, ...nodes) => parts.push(h("section", {}, h("h2", {}, title), ...nodes));
    if ("task" in said) parts.push(h("details", {}, h("summary", {}, "Task"), json(said.task)));
    if ("input" in said) part("Input", input(said.input));
    if ("output" in said) {
      if (step.kind === "prompt") part("What the agent is told", ...output(said.output));
      else part("Output", ...output(said.output));
    }
    if ("error" in said) part("Error", error(said.error));
    for (const [name, why] of Object.entries(said.left_out)) part(name === "input" ? "Input" : "Output", h("p", { class: "muted" }, `not kept: ${visible(why)}`));
    if (lost && step.kind !== "created") parts.push(h("p", { class: "muted" }, "not kept any more: newer steps took its room"));
    return parts;
  }
}
