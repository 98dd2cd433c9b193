// The frame of the dashboard: which view is shown, when it is asked anew, the key, the theme.

import { Away, forgetKey, hasKey, keepKey, KeyNeeded, Refused, end } from "./api.js";
import { mark, say } from "./dom.js";
import { brief, visible } from "./format.js";
import { Overview } from "./overview.js";
import { SessionView } from "./session.js";

const EVERY_MS = 2000;
const AGAIN_MS = [1000, 2000, 4000, 8000];
const THEMES = ["auto", "light", "dark"];
const at = (id) => document.getElementById(id);

let view = null;
let stop = new AbortController();
let failures = 0;

// --- Asking -------------------------------------------------------------------------------------------------------

function open() {
  stop.abort();
  stop = new AbortController();
  const ref = /^#\/session\/([0-9a-f]{16})$/.exec(location.hash)?.[1];
  view?.close?.();
  const frame = { asksToEnd, health };
  view = ref ? new SessionView(ref, frame) : new Overview(frame);
  at("main").replaceChildren(view.node);
  document.title = "ors-host";
  follow(view, stop.signal);
}

async function follow(shown, signal) {
  while (!signal.aborted) {
    let pause = EVERY_MS;
    try {
      await shown.refresh(signal);
      if (failures) banner(null);
      failures = 0;
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof KeyNeeded) return askForKey(hasKey() ? "That is not the key." : "");
      if (error instanceof Refused) {
        banner(`${error.message}.`);
        if (error.status === 404) return;
      } else if (error instanceof Away) {
        banner(`${error.message} What you see is from before; trying again …`);
      } else {
        banner("The dashboard met with an error; see the browser's console.");
        console.error(error);
      }
      pause = AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)];
      failures += 1;
    }
    mark(document.body, "data-ready", "yes");
    await rest(pause, signal);
  }
}

/** Waits, and while nobody looks at the page for as long as that. */
function rest(ms, signal) {
  return new Promise((resolve) => {
    const go = () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    const look = () => !document.hidden && go();
    const timer = setTimeout(() => !document.hidden && go(), ms);
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", go, { once: true });
  });
}

function banner(text) {
  at("banner").hidden = text === null;
  say(at("banner"), text ?? "");
  if (text !== null) health("unknown", "Not connected", "");
}

/** Shows how the host is: `tone` is good, busy, bad or unknown. */
function health(tone, words, facts) {
  mark(at("health"), "data-tone", tone);
  say(at("health"), words);
  if (facts) say(at("facts"), facts);
}

// --- The key ------------------------------------------------------------------------------------------------------

function askForKey(words) {
  forgetKey();
  at("leave").hidden = true;
  say(at("login-wrong"), words);
  health("unknown", "Signed out", "");
  at("key").value = "";
  if (!at("login").open) at("login").showModal();
  mark(document.body, "data-ready", "yes");
}

at("login").addEventListener("cancel", (event) => event.preventDefault());
at("login").addEventListener("close", () => {
  keepKey(at("key").value.trim());
  at("key").value = "";
  at("leave").hidden = false;
  open();
});
at("leave").hidden = !hasKey();
at("leave").addEventListener("click", () => {
  stop.abort();
  view = null;
  at("main").replaceChildren();
  askForKey("");
});

// --- Ending a session ---------------------------------------------------------------------------------------------

let toEnd = null;

function asksToEnd(session) {
  toEnd = session;
  const running = session.running ? ` It is in a call of ${visible(session.running.name)} for ${brief(session.running.for)}.` : "";
  say(
    at("confirm-text"),
    `${visible(session.sid)} (${visible(session.environment)}) ends at once, and its container is removed.${running} ` +
      "Its client is told that it was deleted.",
  );
  at("confirm").returnValue = "no";
  at("confirm").showModal();
}

at("confirm").addEventListener("close", async () => {
  const session = toEnd;
  toEnd = null;
  if (at("confirm").returnValue !== "yes" || !session) return;
  try {
    await end(session.ref);
    await view?.refresh(stop.signal);
  } catch (error) {
    if (!stop.signal.aborted) banner(`The session was not ended: ${error.message}`);
  }
});

// --- Theme, keyboard ----------------------------------------------------------------------------------------------

function setTheme(theme) {
  localStorage.setItem("ors-host-theme", theme);
  mark(document.documentElement, "data-theme", theme === "auto" ? null : theme);
  say(at("theme"), `Theme: ${theme}`);
}

setTheme(THEMES.includes(localStorage.getItem("ors-host-theme")) ? localStorage.getItem("ors-host-theme") : "auto");
at("theme").addEventListener("click", () => {
  const now = localStorage.getItem("ors-host-theme");
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
at("skip").addEventListener("click", () => at("main").focus());

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && view instanceof SessionView) location.hash = "#/";
  else view?.key?.(event);
});

addEventListener("hashchange", open);
open();
