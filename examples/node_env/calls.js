/** Tool calls and their event streams: each runs once, and is answered to whoever asks for it by its id. */
import { randomUUID } from 'node:crypto';

const CHUNK = 4096;
const COMMENT_MS = 10_000;
const LINGER_MS = 60_000;

/** The calls of one session. */
export function calls() {
  const known = new Map();
  let running = 0;

  const start = (id, run) => {
    running += 1;
    const outcome = run()
      .then(
        (result) => ({ event: 'end', data: JSON.stringify(result) }),
        (error) => ({ event: 'error', data: error.message || error.name }),
      )
      .finally(() => {
        running -= 1;
        setTimeout(() => known.delete(id), LINGER_MS).unref();
      });
    known.set(id, outcome);
    return outcome;
  };

  return {
    get running() {
      return running;
    },

    /** Answer with the outcome of the call of that id; if there is none, `run` is called for it, and only then. */
    async answer(response, id = randomUUID().replaceAll('-', ''), run) {
      response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' });
      response.write(eventOf('task_id', id));
      const comment = setInterval(() => response.write(': ping\n\n'), COMMENT_MS);
      const { event, data } = await (known.get(id) ?? start(id, run));
      clearInterval(comment);
      const pieces = event === 'end' ? piecesOf(data) : [data];
      const last = pieces.pop();
      for (const piece of pieces) response.write(eventOf('chunk', piece));
      response.end(eventOf(event, last));
    },
  };
}

function eventOf(name, data) {
  const lines = data.split(/\r\n|\r|\n/).map((line) => `data: ${line}\n`);
  return `event: ${name}\n${lines.join('')}\n`;
}

/** Cut JSON. No piece ends within a character, nor begins with white space, which clients strip: that is escaped. */
function piecesOf(json) {
  const pieces = [];
  while (json.length > CHUNK) {
    const end = /[\ud800-\udbff]/.test(json[CHUNK - 1]) ? CHUNK - 1 : CHUNK;
    pieces.push(json.slice(0, end));
    json = json.slice(end).replace(/^\s/, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, '0')}`);
  }
  return [...pieces, json];
}
