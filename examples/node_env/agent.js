/** Commands of the agent's, run as another user than the server's, who can read neither its files nor its memory. */
import { spawn } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';

export const WORKSPACE = '/workspace';
export const AGENT = process.getuid() === 0 ? { uid: 10000, gid: 10000 } : {};

const PIPES_MS = 200;
const ROOM_MS = 200;
const ENVIRONMENT = { HOME: '/home/agent', LANG: 'C.UTF-8', PATH: '/usr/local/bin:/usr/bin:/bin', USER: 'agent' };

/**
 * Run a program as the agent. Where its processes leave no room for one more they are ended first.
 *
 * Returns {status, output}: how it ended ("exit code 0", "timed out after 60 s"…), and what it wrote to standard output
 * and standard error, at most `maxBytes` of it.
 */
export async function asAgent(program, args, options) {
  const done = await run(program, args, options);
  if (done.code !== 'EAGAIN') return done;
  endProcesses();
  await new Promise((resolve) => setTimeout(resolve, ROOM_MS));
  return run(program, args, options);
}

function run(program, args, { input = '', timeoutS, maxBytes }) {
  return new Promise((resolve) => {
    const child = spawn(program, args, { ...AGENT, cwd: WORKSPACE, env: ENVIRONMENT, detached: true });
    const pieces = [];
    let room = maxBytes;
    let timedOut = false;
    const timer = setTimeout(() => {
      timedOut = true;
      send(-child.pid, 'SIGKILL');
    }, timeoutS * 1000);

    const take = (piece) => {
      if (room > 0) pieces.push(piece.subarray(0, room));
      room -= piece.length;
    };
    const done = (status, code) => {
      clearTimeout(timer);
      const cut = room < 0 ? `\n[${-room} more bytes]` : '';
      resolve({ status, code, output: Buffer.concat(pieces).toString() + cut });
    };
    child.stdout.on('data', take);
    child.stderr.on('data', take);
    child.stdin.on('error', () => {}); // it need not read it
    child.stdin.end(input);
    child.on('error', (error) => done(`could not be started: ${error.message}`, error.code));
    child.on('exit', (code, signal) => {
      const status = timedOut ? `timed out after ${timeoutS} s` : signal ? `ended by ${signal}` : `exit code ${code}`;
      // What runs on in the background may hold the pipes; nobody waits for it.
      const pipes = setTimeout(() => [child.stdout, child.stderr].forEach((pipe) => pipe.destroy()), PIPES_MS);
      child.on('close', () => {
        clearTimeout(pipes);
        done(status);
      });
    });
  });
}

/** Write a file into the workspace, as the agent. */
export async function writeFile(name, text) {
  const { status, output } = await asAgent('tee', ['--', name], { input: text, timeoutS: 10, maxBytes: 1 });
  if (status !== 'exit code 0') throw new Error(`${name} could not be written: ${status} ${output}`);
}

/** End everything that the agent left running: stop it first, so that nothing is started meanwhile. */
export function endProcesses() {
  if (AGENT.uid === undefined) return;
  for (const signal of ['SIGSTOP', 'SIGKILL']) {
    const reached = new Set();
    for (let before = -1; before !== reached.size; ) {
      before = reached.size;
      for (const pid of agents()) {
        if (!reached.has(pid)) send(pid, signal);
        reached.add(pid);
      }
    }
  }
}

/** Return the ids of the agent's processes. */
function agents() {
  return readdirSync('/proc').map(Number).filter((pid) => {
    try {
      const [, uid] = readFileSync(`/proc/${pid}/status`, 'ascii').match(/^Uid:\t(\d+)/m);
      return Number(uid) === AGENT.uid;
    } catch {
      return false; // no process, or one that ended meanwhile
    }
  });
}

function send(pid, signal) {
  try {
    process.kill(pid, signal);
  } catch {
    // it ended meanwhile
  }
}
