// Lint rules: typescript-eslint's strict set, plus the arrows between rooms of scripts/rooms.mjs.
import { join } from 'node:path'
import tseslint from 'typescript-eslint'
import { housePlugin } from './scripts/rooms.mjs'

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
      // These two take a quarter of the time of all rules and have nothing to find: there are no
      // enums, and tsc keeps classes with private fields apart.
      '@typescript-eslint/no-unsafe-enum-assignment': 'off',
      '@typescript-eslint/no-unsafe-class-instance-assignment': 'off',
    },
  },
  {
    files: ['lib/**'],
    plugins: { house: housePlugin(join(import.meta.dirname, 'lib')) },
    rules: {
      'house/rooms': 'error',
      'house/circles': 'error',
      'max-lines-per-function': ['error', { max: 50, skipBlankLines: true, skipComments: true }],
    },
  },
  {
    // Programs of the kernel read this memory while it is written: a write byte by byte shows them halves.
    files: ['lib/kernel/bpf/mapped-array.ts'],
    rules: {
      'no-restricted-syntax': [
        'error',
        ...[
          'MemberExpression[property.name=/^(write|set|fill|copy|sort|reverse|with)/]',
          'AssignmentExpression > MemberExpression[computed=true].left',
          'UpdateExpression > MemberExpression[computed=true]',
          'NewExpression[callee.name=/^(DataView|(Big)?(Ui|I)nt.*Array)$/]',
          "Identifier[name='Buffer']",
        ].map((selector) => ({
          selector,
          message: 'only Atomics may write to memory that is shared with the kernel',
        })),
      ],
    },
  },
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
