/** The tasks: what a function should do, a module in which it does not quite, and tests that nobody is shown. */
export const TASKS = {
  train: [
    {
      id: 'train-0',
      file: 'chunk.mjs',
      name: 'chunk',
      statement: 'chunk(list, size) cuts a list into lists of that size; the last one may be shorter.',
      source: `export function chunk(list, size) {
  const chunks = [];
  for (let start = 0; start + size <= list.length; start += size) {
    chunks.push(list.slice(start, start + size));
  }
  return chunks;
}
`,
      hidden: [
        [[[1, 2, 3, 4], 2], [[1, 2], [3, 4]]],
        [[[1, 2, 3], 2], [[1, 2], [3]]],
        [[[1], 5], [[1]]],
        [[[], 3], []],
      ],
    },
    {
      id: 'train-1',
      file: 'duration.mjs',
      name: 'seconds',
      statement: 'seconds(text) reads a duration such as "1h30m", "90s" or "2h" and returns it in seconds.',
      source: `export function seconds(text) {
  const [, hours, minutes, rest] = text.match(/(\\d)h(\\d)m(\\d)s/);
  return hours * 3600 + minutes * 60 + rest;
}
`,
      hidden: [
        [['1h30m'], 5400],
        [['90s'], 90],
        [['2h'], 7200],
        [['10h0m5s'], 36005],
        [['45m'], 2700],
      ],
    },
    {
      id: 'train-2',
      file: 'versions.mjs',
      name: 'newest',
      statement: 'newest(versions) returns the newest of some version numbers such as "1.10.2"; a part left out is zero.',
      source: `export function newest(versions) {
  return [...versions].sort().at(-1);
}
`,
      hidden: [
        [[['1.9.0', '1.10.0']], '1.10.0'],
        [[['2.0', '1.99.99']], '2.0'],
        [[['1.2', '1.2.1']], '1.2.1'],
        [[['0.0.9', '0.0.10', '0.0.2']], '0.0.10'],
      ],
    },
  ],
  test: [
    {
      id: 'test-0',
      file: 'slug.mjs',
      name: 'slug',
      statement:
        'slug(title) makes of a title what can stand in an address: small letters without accents and digits, words ' +
        'joined by single hyphens, none at the ends.',
      source: `export function slug(title) {
  return title.toLowerCase().replace(' ', '-');
}
`,
      hidden: [
        [['Hello World'], 'hello-world'],
        [['  Two  spaces here '], 'two-spaces-here'],
        [['Déjà vu: again?'], 'deja-vu-again'],
        [['C++ & 3.14'], 'c-3-14'],
      ],
    },
    {
      id: 'test-1',
      file: 'groups.mjs',
      name: 'anagrams',
      statement: 'anagrams(words) groups words of the same letters, groups and words in the order of first appearance.',
      source: `export function anagrams(words) {
  const groups = {};
  for (const word of words) (groups[word.length] ??= []).push(word);
  return Object.values(groups);
}
`,
      hidden: [
        [[['tea', 'eat', 'tan', 'ate', 'nat', 'bat']], [['tea', 'eat', 'ate'], ['tan', 'nat'], ['bat']]],
        [[['a']], [['a']]],
        [[[]], []],
        [[['12', '21', '3']], [['12', '21'], ['3']]],
      ],
    },
  ],
};
