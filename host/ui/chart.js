// The last hour in four small charts, drawn from samples: [at, sessions, queue, calls, errors, created, failed, refused].

import { h, say, svg } from "./dom.js";
import { count, time } from "./format.js";

const WIDTH = 300;
const HEIGHT = 64;
const HOUR = 3600;

const CHARTS = [
  { title: "Sessions", value: (s) => s[1], now: (v) => count(v) },
  { title: "Calls a second", value: (s, step) => s[3] / step, now: (v) => count(v) },
  { title: "Created a minute", value: (s, step) => (s[5] * 60) / step, now: (v) => count(v) },
  { title: "Failed a minute", value: (s, step) => (s[6] * 60) / step, now: (v) => count(v), tone: "bad" },
];

export class Charts {
  constructor() {
    this.charts = CHARTS.map((spec) => new Chart(spec));
    this.node = h("section", { class: "charts", "aria-label": "The last hour" }, ...this.charts.map((chart) => chart.node));
  }

  show(samples, state) {
    for (const chart of this.charts) chart.show(samples, state);
  }
}

class Chart {
  constructor(spec) {
    this.spec = spec;
    this.points = [];
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line", "vector-effect": "non-scaling-stroke" });
    this.cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden", "vector-effect": "non-scaling-stroke" });
    this.now = h("span", { class: "now" });
    this.top = h("span", { class: "muted" });
    const at = (fraction) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * fraction, y2: HEIGHT * fraction });
    this.plot = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      at(0.02),
      at(0.5),
      at(0.98),
      this.area,
      this.line,
      this.cursor,
    );
    this.plot.addEventListener("pointermove", (event) => this.#point(event));
    this.plot.addEventListener("pointerleave", () => this.#rest());
    this.node = h(
      "figure",
      { class: "chart", "data-tone": spec.tone },
      h("figcaption", {}, h("span", {}, spec.title), this.now),
      this.plot,
      h("div", { class: "axis muted" }, h("span", {}, "an hour ago"), this.top, h("span", {}, "now")),
    );
  }

  show(samples, { at, step_s }) {
    // What happened is told by the sample after it: the first one counts from the host's start.
    this.points = samples.map((sample) => [sample[0], this.spec.value(sample, step_s)]);
    this.at = at;
    const most = Math.max(...this.points.map(([, value]) => value), 0);
    this.scale = nice(most);
    const x = (when) => (1 - (at - when) / HOUR) * WIDTH;
    const y = (value) => HEIGHT * (1 - 0.96 * (value / this.scale)) - 1;
    const line = this.points.map(([when, value]) => `${x(when).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
    this.line.setAttribute("d", line && `M${line}`);
    const [first, last] = [this.points[0], this.points.at(-1)];
    this.area.setAttribute("d", line && `M${x(first[0]).toFixed(1)} ${HEIGHT}L${line}L${x(last[0]).toFixed(1)} ${HEIGHT}Z`);
    say(this.top, `most ${count(most)}`);
    this.plot.setAttribute("aria-label", `${this.spec.title}: ${last ? count(last[1]) : "nothing"} now, at most ${count(most)} in the last hour`);
    if (this.cursor.getAttribute("visibility") === "hidden") this.#rest();
  }

  #rest() {
    this.cursor.setAttribute("visibility", "hidden");
    say(this.now, this.points.length ? this.spec.now(this.points.at(-1)[1]) : "–");
  }

  #point(event) {
    const box = this.plot.getBoundingClientRect();
    const when = this.at - HOUR * (1 - (event.clientX - box.left) / box.width);
    const near = this.points.reduce((best, point) => (!best || Math.abs(point[0] - when) < Math.abs(best[0] - when) ? point : best), null);
    if (!near) return;
    const x = (1 - (this.at - near[0]) / HOUR) * WIDTH;
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    this.cursor.setAttribute("visibility", "visible");
    say(this.now, `${time(near[0])} · ${this.spec.now(near[1])}`);
  }
}

/** The next round number that has room for a value. */
function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((round) => round >= value);
}
