import { join } from 'node:path'
import t from 'tap'
import { dashboardAccess } from '../../lib/page/dashboard/access.js'
import { ConfigError } from '../../lib/errors.js'
import { selfSigned } from '../../lib/lab/apiserver/certificate.js'

void t.test(
  'a certificate or key that cannot be used stops the start, and names the file',
  async (t) => {
    const made = () => selfSigned(['127.0.0.1'])
    const { certificate, key } = made()
    const folder = t.testdir({ certificate, key, other: made().key, words: 'no PEM' })
    const open = (cert: string, key: string) => {
      const pair = { tlsCertFile: join(folder, cert), tlsKeyFile: join(folder, key) }
      return dashboardAccess({ host: '127.0.0.1', port: 0 }, { tokenFile: '', ...pair })
    }
    t.ok((await open('certificate', 'key')).tls)
    const refused = async (cert: string, key: string, message: string) => {
      const error: unknown = await open(cert, key).catch((error: unknown) => error)
      t.ok(error instanceof ConfigError && error.message.startsWith(message), String(error))
    }
    const noCertificate = (name: string) =>
      `dashboardTLSCertFile: ${join(folder, name)} holds no certificate in PEM: `
    const noKey = (name: string) =>
      `dashboardTLSKeyFile: ${join(folder, name)} holds no private key in PEM, without a password, `
    await refused('words', 'key', noCertificate('words'))
    await refused('key', 'certificate', noCertificate('key'))
    await refused('certificate', 'words', noKey('words'))
    await refused('certificate', 'other', noKey('other'))
  },
)
