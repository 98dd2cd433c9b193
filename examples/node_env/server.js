/**
 * An ORS server on node:http alone: what the protocol asks for, for any environments.
 *
 * An environment is a class:
 *
 *   static envName, static tools: [{name, description, input_schema, run(env, input) → output}]
 *   static splits() → [{name, type}], static tasks(split) → [task]      (undefined if there is no such split)
 *   constructor(task, secrets), setup(), prompt() → blocks, teardown()
 */
import http from 'node:http';
import { randomUUID } from 'node:crypto';

import { calls } from './calls.js';
import { isTheAgents } from './peer.js';

const IDLE_MS = 15 * 60_000;
const MAX_BODY_BYTES = 16 * 2 ** 20;

/** What a client is told, with its HTTP status. */
class HttpError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Listen, until the process is told to end. */
export function serve(environments, { port, host = '0.0.0.0' }) {
  const server = http.createServer(handlerOf(new Map(environments.map((each) => [each.envName, each]))));
  server.on('connection', (socket) => {
    if (isTheAgents(socket)) socket.destroy();
  });
  server.listen(port, host, () => console.log(`listening on ${host}:${port}`));
  for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => process.exit(0));
}

function handlerOf(environments) {
  const sessions = new Map();
  setInterval(() => endIdle(sessions), 5_000).unref();

  const environmentOf = (name) => {
    const found = environments.get(name.toLowerCase());
    if (!found) throw new HttpError(404, `unknown environment '${name}'`);
    return found;
  };
  const sidOf = (request) => {
    const sid = request.headers['x-session-id']?.trim();
    if (!sid) throw new HttpError(400, 'X-Session-ID header is required');
    return sid;
  };
  const sessionOf = (request) => {
    const session = sessions.get(sidOf(request));
    if (!session) throw new HttpError(404, 'Active environment not found');
    session.usedAt = Date.now();
    return session;
  };

  const routes = {
    'GET /health': () => ({ status: 'ok' }),
    'GET /list_environments': () => [...environments.keys()],
    'GET /*/tools': ({ env }) => toolsOf(environmentOf(env)),
    'GET /*/splits': ({ env }) => environmentOf(env).splits(),
    'POST /*/tasks': ({ env, body }) => ({ tasks: tasksOf(environmentOf(env), body), env_name: env }),
    'POST /*/num_tasks': ({ env, body }) => ({ num_tasks: tasksOf(environmentOf(env), body).length }),
    'POST /*/task': ({ env, body }) => ({ task: taskOf(environmentOf(env), body), env_name: env }),
    'POST /*/task_range': ({ env, body }) => {
      const bounds = [body.start ?? undefined, body.stop ?? undefined];
      return { tasks: tasksOf(environmentOf(env), body).slice(...bounds), env_name: env };
    },

    'POST /create_session': () => ({ sid: randomUUID() }),
    'POST /create': async ({ request, body }) => {
      const sid = sidOf(request);
      const Environment = environmentOf(body.env_name ?? environments.keys().next().value);
      const task = body.task_spec ?? taskOf(Environment, body);
      if (sessions.has(sid)) throw new HttpError(400, 'Session already exists');
      const env = new Environment(task, { ...body.secrets, ...secretsIn(request) });
      const ready = Promise.resolve(env.setup());
      ready.catch(() => {}); // whoever waits for it is told
      sessions.set(sid, { env, ready, calls: calls(), usedAt: Date.now() });
      return { sid };
    },
    'POST /ping': ({ request }) => sessionOf(request) && { status: 'ok' },
    'GET /*/prompt': async ({ request }) => {
      const { env, ready } = sessionOf(request);
      await ready;
      return env.prompt();
    },
    'GET /*/task_tools': ({ request }) => toolsOf(sessionOf(request).env.constructor),
    'POST /*/call': ({ request, body, response }) => {
      const session = sessionOf(request);
      if (typeof body.name !== 'string') throw new HttpError(400, 'name: must be a string');
      if (typeof (body.task_id ?? '') !== 'string') throw new HttpError(400, 'task_id: must be a string');
      session.calls.answer(response, body.task_id ?? undefined, () => run(session, body.name, body.input ?? {}));
    },
    'POST /delete': async ({ request }) => {
      const sid = sidOf(request);
      await end(sessions, sid);
      return { sid };
    },
    'POST /delete_session': ({ request }) => ({ sid: sidOf(request) }),
  };

  return async (request, response) => {
    try {
      const { pathname } = new URL(request.url, 'http://localhost');
      const parts = pathname.split('/').slice(1);
      const route = routes[`${request.method} ${pathname}`] ?? routes[`${request.method} /*/${parts[1]}`];
      if (!route || parts.length > 2) throw new HttpError(404, `there is no ${request.method} ${pathname}`);
      const body = request.method === 'POST' ? await bodyOf(request) : {};
      const answer = await route({ request, response, body, env: decodeURIComponent(parts[0]) });
      if (answer !== undefined) send(response, 200, answer);
    } catch (error) {
      send(response, error.status ?? 500, { detail: error.message });
    }
  };
}

// --- Sessions ---------------------------------------------------------------------------------------------------------

async function end(sessions, sid) {
  const session = sessions.get(sid);
  sessions.delete(sid);
  if (session) await session.env.teardown();
}

function endIdle(sessions) {
  for (const [sid, { usedAt, calls }] of sessions) {
    if (!calls.running && Date.now() - usedAt > IDLE_MS) end(sessions, sid).catch(console.error);
  }
}

/** Run a tool. What is thrown becomes an `error` event; a tool or input that is not right is a result that says so. */
async function run(session, name, input) {
  const { env, ready } = session;
  await ready;
  if (session.finished) return { ok: false, error: `'${name}' was not run: the episode has finished` };
  const tool = env.constructor.tools.find((each) => each.name === name);
  if (!tool) return { ok: false, error: `'${name}' is not a valid tool` };
  const wrong = wrongWith(input, tool.input_schema);
  if (wrong) return { ok: false, error: `Tool input validation error: ${wrong}` };
  const output = await tool.run(env, input);
  session.finished ||= Boolean(output.finished);
  return { ok: true, output: { metadata: null, reward: null, finished: false, ...output } };
}

/** Say what is wrong with a tool's input. Of JSON Schema, as much as our tools use. */
function wrongWith(input, schema) {
  if (input === null || typeof input !== 'object' || Array.isArray(input)) return 'it must be an object';
  const { properties = {}, required = [] } = schema ?? {};
  const missing = required.find((name) => !(name in input));
  if (missing) return `${missing}: is required`;
  for (const [name, value] of Object.entries(input)) {
    const { type, maximum = Infinity, exclusiveMinimum = -Infinity } = properties[name] ?? {};
    if (!type) return `${name}: there is no such field`;
    if (typeof value !== type) return `${name}: must be a ${type}`;
    if (type === 'number' && !(value > exclusiveMinimum && value <= maximum)) {
      return `${name}: must be more than ${exclusiveMinimum} and at most ${maximum}`;
    }
  }
  return null;
}

// --- What an environment has ------------------------------------------------------------------------------------------

function toolsOf({ tools }) {
  return { tools: tools.map(({ name, description, input_schema }) => ({ name, description, input_schema })) };
}

function tasksOf(Environment, { split }) {
  const tasks = Environment.tasks(split);
  if (!tasks) throw new HttpError(400, 'Invalid split');
  return tasks;
}

function taskOf(Environment, { split, index }) {
  const task = Number.isInteger(index) ? tasksOf(Environment, { split }).at(index) : undefined;
  if (!task) throw new HttpError(400, 'Invalid index');
  return task;
}

// --- HTTP -------------------------------------------------------------------------------------------------------------

/** Read the header that the public clients send secrets in: base64 of {"NAME": {"value": …}}. */
function secretsIn(request) {
  const header = request.headers['x-secrets'];
  if (!header) return {};
  try {
    const entries = Object.entries(JSON.parse(Buffer.from(header, 'base64').toString()));
    return Object.fromEntries(entries.map(([name, { value }]) => [name, value]));
  } catch {
    throw new HttpError(400, 'X-Secrets can not be read');
  }
}

async function bodyOf(request) {
  const pieces = [];
  let size = 0;
  for await (const piece of request) {
    pieces.push(piece);
    if ((size += piece.length) > MAX_BODY_BYTES) throw new HttpError(413, `the body is over ${MAX_BODY_BYTES} bytes`);
  }
  if (!size) return {};
  try {
    const body = JSON.parse(Buffer.concat(pieces).toString());
    if (body !== null && typeof body === 'object' && !Array.isArray(body)) return body;
  } catch {
    // said below
  }
  throw new HttpError(400, 'the body must be a JSON object');
}

function send(response, status, body) {
  response.writeHead(status, { 'Content-Type': 'application/json' });
  response.end(JSON.stringify(body));
}
