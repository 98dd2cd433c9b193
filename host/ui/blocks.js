// What was said in a step: values as text, images from a list of types, nothing as markup.

import { h } from "./dom.js";
import { terminal, visible } from "./format.js";

// What each type's file begins with. SVG is none of them: it is a document.
const IMAGES = { "image/png": "iVBORw0KGgo", "image/jpeg": "/9j/", "image/gif": "R0lGOD", "image/webp": "UklGR" };
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;
const LONG = 6000;
const MOST = 400000;

/** Returns a node for the input of a call: its fields, those of several lines as they are. */
export function input(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return json(value);
  const fields = Object.entries(value);
  if (!fields.length) return h("p", { class: "muted" }, "no parameters");
  return h(
    "dl",
    { class: "fields" },
    ...fields.flatMap(([name, field]) => [
      h("dt", {}, visible(name)),
      h("dd", {}, typeof field === "string" ? text(field) : json(field)),
    ]),
  );
}

/** Returns nodes for what a call or a prompt gave. */
export function output(value) {
  if (Array.isArray(value)) return value.map(block);
  if (value?.ok === true && Array.isArray(value.output?.blocks)) {
    const { blocks, metadata } = value.output;
    return [...blocks.map(block), metadata ? h("details", {}, h("summary", {}, "metadata"), json(metadata)) : null];
  }
  if (value?.ok === false) return [h("p", { class: "wrong" }, visible(`${value.reason ? `${value.reason}: ` : ""}${value.error}`))];
  return [json(value)];
}

/** Returns a node for an error's text. */
export const error = (words) => text(String(words), "wrong");

export const json = (value) => text(JSON.stringify(value, null, 2) ?? "null");

function block(value) {
  if (value?.type === "text" && typeof value.text === "string") return text(value.text);
  if (value?.type === "image") return image(value) ?? h("p", { class: "muted" }, `an image that is not shown (${visible(value.mimeType)})`);
  return json(value);
}

function image({ data, mimeType }) {
  const begin = Object.hasOwn(IMAGES, mimeType) ? IMAGES[mimeType] : null;
  if (begin === null || typeof data !== "string" || !data.startsWith(begin) || !BASE64.test(data)) return null;
  const picture = h("img", { alt: "image that the tool returned", decoding: "async", class: "picture", tabindex: 0 });
  picture.addEventListener("error", () => picture.replaceWith(h("p", { class: "muted" }, "an image that can't be read")));
  picture.src = `data:${mimeType};base64,${data}`;
  return picture;
}

/** Long text is folded; what is endless is cut, and says so. */
function text(value, kind = "") {
  const cut = value.length > MOST;
  const shown = terminal(cut ? value.slice(0, MOST) : value);
  const pre = h("pre", { class: kind, tabindex: 0 }, shown || " ");
  const note = cut ? h("p", { class: "muted" }, `cut: it has ${value.length} characters`) : null;
  if (shown.length <= LONG) return h("div", {}, pre, note);
  pre.classList.add("folded");
  const unfold = h("button", { type: "button", class: "quiet" }, `Show all of ${shown.length.toLocaleString("en")} characters`);
  unfold.addEventListener("click", () => {
    pre.classList.remove("folded");
    unfold.remove();
    pre.focus();
  });
  return h("div", {}, pre, unfold, note);
}
