// Asking the host. The key, where one is needed, is in this tab's session storage and goes along as a header.

const KEY = "ors-host-key";

/** The host wants a key, or another one. */
export class KeyNeeded extends Error {}

/** The host doesn't answer, or not now. */
export class Away extends Error {}

/** It answered that this can't be had. */
export class Refused extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const forgetKey = () => sessionStorage.removeItem(KEY);
export const keepKey = (key) => sessionStorage.setItem(KEY, key);

const TIMEOUT_MS = 15000;

async function ask(method, path, params, signal) {
  const url = new URL(`api/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(params ?? {})) url.searchParams.set(name, value);
  const headers = hasKey() ? { "X-API-Key": sessionStorage.getItem(KEY) } : {};
  const signals = [AbortSignal.timeout(TIMEOUT_MS), ...(signal ? [signal] : [])];
  let response;
  let body;
  try {
    response = await fetch(url, { method, headers, cache: "no-store", redirect: "error", signal: AbortSignal.any(signals) });
    body = await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Away("The host does not answer.");
  }
  if (response.ok) return body;
  const words = String(body.detail ?? response.statusText);
  if (response.status === 401) throw new KeyNeeded(words);
  if (response.status >= 500) throw new Away(`The host says: ${words}`);
  throw new Refused(response.status, words);
}

export const get = (path, params, signal) => ask("GET", path, params, signal);
export const end = (ref) => ask("DELETE", `sessions/${ref}`);
