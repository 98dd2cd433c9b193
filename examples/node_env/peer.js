/**
 * Who is at the other end of a connection from this machine.
 *
 * The agent's commands run beside the server and reach its port. They must not play on their own account: open a second
 * session on the task, say, and find out by trying what the grader likes. The kernel knows whose a socket is.
 */
import { readFileSync } from 'node:fs';

import { AGENT } from './agent.js';

/** Tell whether a connection is the agent's, or was given up before that could be found out. */
export function isTheAgents({ localPort, remotePort, remoteAddress }) {
  const [here, there] = [localPort, remotePort].map((port) => port.toString(16).toUpperCase().padStart(4, '0'));
  for (const table of ['/proc/net/tcp', '/proc/net/tcp6']) {
    for (const line of readFileSync(table, 'ascii').split('\n').slice(1)) {
      const [, local, remote, , , , , uid, , inode] = line.trim().split(/\s+/);
      if (local?.endsWith(`:${there}`) && remote.endsWith(`:${here}`)) {
        return inode === '0' || Number(uid) === AGENT.uid;
      }
    }
  }
  return remoteAddress === undefined || remoteAddress.startsWith('127.');
}
