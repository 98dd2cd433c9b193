/** Broken JavaScript modules to repair with a shell, graded by hidden tests. */
import { asAgent, endProcesses, writeFile, WORKSPACE } from './agent.js';
import { TASKS } from './tasks.js';

const OUTPUT_BYTES = 32 * 1024;
const GRADER_TIMEOUT_S = 10;

// Runs as the agent, as it runs the agent's code. It is given arguments and gives results; what is right stays here.
const DRIVER = `
const { file, name, args } = JSON.parse(require('fs').readFileSync(0, 'utf8'));
import(file).then((module) => {
  const results = args.map((each) => {
    try { return { value: module[name](...each) }; } catch (error) { return { error: String(error) }; }
  });
  process.stdout.write('\\n' + JSON.stringify(results) + '\\n', () => process.exit(0));
});
`;

export class NodeEnv {
  static envName = 'nodeenv';

  static tools = [
    {
      name: 'bash',
      description: 'Run a command with bash in the work directory; return its output and how it ended.',
      input_schema: {
        type: 'object',
        properties: {
          command: { type: 'string', description: 'The command line.' },
          timeout_s: { type: 'number', exclusiveMinimum: 0, maximum: 300, default: 60, description: 'In seconds.' },
        },
        required: ['command'],
      },
      run: (env, input) => env.bash(input),
    },
    {
      name: 'submit',
      description: 'Have the module tested. This ends the episode.',
      input_schema: null,
      run: (env) => env.submit(),
    },
  ];

  static splits() {
    return Object.keys(TASKS).map((name) => ({ name, type: name }));
  }

  static tasks(split) {
    return Object.hasOwn(TASKS, split) ? TASKS[split].map(({ id, statement }) => ({ id, statement })) : undefined;
  }

  constructor({ id }) {
    this.task = Object.values(TASKS).flat().find((each) => each.id === id);
    if (!this.task) throw Object.assign(new Error("the task's 'id' is not that of a known task"), { status: 400 });
  }

  setup() {
    return writeFile(this.task.file, this.task.source);
  }

  prompt() {
    const { file, statement } = this.task;
    const text =
      `${statement}\n\n${WORKSPACE}/${file} is meant to do that, and does not always. Repair it with the tool \`bash\` ` +
      '(node is there), then call the tool `submit`, once: hidden tests decide.';
    return [{ type: 'text', text, detail: null }];
  }

  async bash({ command, timeout_s: timeoutS = 60 }) {
    const { status, output } = await asAgent('bash', ['-c', command], { timeoutS, maxBytes: OUTPUT_BYTES });
    return say(`${output}\n[${status}]`);
  }

  async submit() {
    endProcesses(); // nothing may change under the grader
    const { file, name, hidden } = this.task;
    const passed = await this.passed();
    const verdict = `${name} in ${file} passes ${passed} of ${hidden.length} tests.`;
    return { ...say(verdict), reward: passed === hidden.length ? 1 : 0, finished: true };
  }

  /** Return how many hidden tests pass. */
  async passed() {
    const { file, name, hidden } = this.task;
    const input = JSON.stringify({ file: `${WORKSPACE}/${file}`, name, args: hidden.map(([args]) => args) });
    const options = { input, timeoutS: GRADER_TIMEOUT_S, maxBytes: OUTPUT_BYTES };
    const { output } = await asAgent('node', ['-e', DRIVER], options);
    let results;
    try {
      results = JSON.parse(output.trim().split('\n').pop());
    } catch {
      return 0;
    }
    if (!Array.isArray(results)) return 0;
    return hidden.filter(([, right], n) => JSON.stringify(results[n]?.value) === JSON.stringify(right)).length;
  }

  teardown() {
    endProcesses();
  }
}

function say(text) {
  return { blocks: [{ type: 'text', text, detail: null }] };
}
