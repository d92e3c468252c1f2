import { join } from 'node:path'
import t from 'tap'
import { load } from './kernel-image.js'

t.test('a module without a file is part of the kernel, also where no list says so', async (t) => {
  const root = t.testdir({
    lib: { modules: { '7.3.4': { 'modules.dep': 'kernel/fs/fuse/virtiofs.ko.xz:\n' } } },
  })
  const modules = join(root, 'lib/modules')
  t.same(load(modules, '7.3.4', 'virtio_pci'), [])
  t.throws(() => load(modules, '7.3.4', 'virtiofs'), /modprobe/, 'asked for, and not there')
})
