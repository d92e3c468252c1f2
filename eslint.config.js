// Lint rules: typescript-eslint's strict set, plus the import arrows of docs/architecture.md.
import tseslint from 'typescript-eslint'

/** Forbids imports whose path matches one of the regexes, with the reason shown to the author. */
const forbid = (files, rules) => ({
  files,
  rules: {
    'no-restricted-imports': [
      'error',
      { patterns: rules.map(([regex, message]) => ({ regex, message })) },
    ],
  },
})

const rooms = 'sources|modes|kernel|sync|observe|cli|apiserver|playground|world'
const pure = 'state/ and every plan.ts and render.ts are pure: no I/O, no clock, no logger'

const ofModes = [
  [
    '\\.\\./\\.\\./(sources|sync|observe|cli|apiserver|playground)/',
    'a mode knows state/ and kernel/ only',
  ],
  ['^\\.\\./(userspace|iptables|nftables|ipvs|ebpf)/', 'modes never import each other'],
]

export default tseslint.config(
  { ignores: ['build/', 'node_modules/', '**/*.js', '**/*.d.ts'] },
  ...tseslint.configs.strictTypeChecked,
  {
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname },
    },
    rules: {
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        { allowNumber: true, allowBoolean: true },
      ],
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      '@typescript-eslint/no-unnecessary-condition': [
        'error',
        { allowConstantLoopConditions: true },
      ],
      '@typescript-eslint/switch-exhaustiveness-check': [
        'error',
        { considerDefaultExhaustiveForUnions: true },
      ],
      '@typescript-eslint/no-unused-vars': [
        'error',
        { ignoreRestSiblings: true, argsIgnorePattern: '^_', destructuredArrayIgnorePattern: '^_' },
      ],
      'max-lines': ['error', { max: 300, skipBlankLines: true, skipComments: true }],
    },
  },
  forbid(
    ['lib/state/**'],
    [
      ['^node:', pure],
      ['^[^.]', 'state/ uses no packages'],
      [`\\.\\./(${rooms})/`, 'state/ imports nothing outside itself'],
    ],
  ),
  forbid(['lib/modes/**'], ofModes),
  // The later entry wins for a file, so it repeats what holds for every file of a mode.
  forbid(
    ['lib/modes/*/plan.ts', 'lib/modes/*/render.ts'],
    [['^node:(?!crypto$)', pure], ['kernel/(?!nftables/|iptables)', pure], ...ofModes],
  ),
  forbid(
    ['lib/kernel/**'],
    [
      [
        '\\.\\./(sources|modes|sync|observe|cli|apiserver|playground)/',
        'kernel/ never sees a Service',
      ],
      ['\\.\\./state/(?!ip\\.js)', 'kernel/ never sees a Service'],
    ],
  ),
  forbid(
    ['lib/sources/**'],
    [
      [
        '\\.\\./(modes|kernel|sync|observe|cli|apiserver|playground)/',
        'sources know nothing about proxying',
      ],
    ],
  ),
  forbid(
    ['lib/sync/**'],
    [
      ['\\.\\./(sources|observe|cli|apiserver|playground)/', 'sync/ only calls the arrows'],
      ['\\.\\./modes/(?!mode\\.js)', 'sync/ knows modes by their interface'],
    ],
  ),
  {
    files: ['test/**', 'scripts/**', 'bench/**'],
    rules: {
      '@typescript-eslint/no-non-null-assertion': 'off',
      '@typescript-eslint/require-await': 'off',
      '@typescript-eslint/no-floating-promises': [
        'error',
        {
          // tap waits for its subtests itself.
          allowForKnownSafePromises: [
            { from: 'package', name: 'PromiseWithSubtest', package: '@tapjs/core' },
          ],
        },
      ],
      'max-lines': 'off',
    },
  },
)
